"""Console logs: series from dict lines or from "key: value" lines, and the events of every training."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from gradforensics.evidence import events, names, numbers
from gradforensics.evidence.files import File, plain
from gradforensics.evidence.readers import console_lines as grammar
from gradforensics.evidence.readers.console_bars import Bars
from gradforensics.evidence.rows import Reading, RowLog, Track
from gradforensics.tables import Phase, SeriesFrame, Setting, StepUnit

name = "console"

_LOGS = re.compile(r"\.(?:log|out|err|stdout|stderr|[oe]\d+)$|^(?:nohup|log|stdout|stderr|output|slurm)")
_TEXTS = frozenset({"", ".txt"})
_NO_LOGS = re.compile(
    r"^(?:readme|licen[cs]e|copying|notice|changelog|requirements|constraints|makefile|dockerfile|authors|citation)\b"
)
_QUIET_BYTES = 32 << 20  # a .txt without a sign of a training in so many bytes is a corpus
_CONTEXT = 40  # lines below a step header whose losses belong to it
_ADJACENT = 2  # lines below the last line of such a block where also other known values do
_HEADER = re.compile(r"(?i)^[\s>*=#-]*(?:global[_ ])?(?:epoch|step|iteration|iter)\b|-- ?GLOBAL_STEP|-- ?STEP:")
_PHASE_HEADER = re.compile(r"^[\s>*=#-]*(EVAL\w*|VALIDATION|TRAIN\w*|TEST\w*)\b")
_BANNER = re.compile(
    r"\s*(Num [Ee]pochs|Instantaneous batch size per device|Total train batch size|"
    r"Gradient Accumulation steps|Total optimization steps)"
    r"[^=]*= ([\d,]+)\s*$"
)
_BEHIND_BAR = re.compile(r"%\|[^|]*\|\s*\d+/\d+ \[[^\]]*\]\s*([^\s{].*)")
_PAIRS_PER_DICT = 4
_LOSS_DECIMALS = 4  # the Trainer rounds the training loss before it logs it (versions before 5)
_SIGNIFICANT = 4  # digits of the numbers that the Trainer prints as strings (version 5)


@dataclass
class _Row:
    line: int
    said: grammar.Line
    rank: int | None
    drawn: bool = False
    before: dict[int, int] = field(default_factory=dict)
    after: tuple[int, int] | None = None


def sniff(file: File) -> bool:
    """Any text whose name does not speak against it; read() claims it where it finds something."""
    if _NO_LOGS.match(file.base):
        return False
    return file.alone or _LOGS.search(file.base) is not None or file.suffix in _TEXTS


def read(file: File) -> Reading:
    """One pass over the lines. Dict lines win over pairs where a log holds both."""
    scan = _Scan(file)
    is_log = _LOGS.search(file.base) is not None
    for number, line in file.lines():
        scan.line(number, line)
        if not is_log and number % 4096 == 0 and scan.quiet():
            break
    return scan.reading(is_log)


class _Scan:
    """The state of reading one log."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.dicts: list[_Row] = []
        self.pairs: list[_Row] = []
        self.settings: list[Setting] = []
        self.bars = Bars()
        self.redrawn: set[int] = set()
        self.last_text = ""
        self.context = grammar.Line()
        self.context_line = -_CONTEXT
        self.context_phase: Phase | None = None
        self.block = False
        self.last_step: int | None = None
        self.bytes = 0
        self.scanner = events.Scanner(file.name, lambda: self.last_step)

    def quiet(self) -> bool:
        """Whether so much was read in vain that the file is no log."""
        return self.bytes > _QUIET_BYTES and not (self.dicts or self.pairs or self.scanner.events)

    def line(self, number: int, line: str) -> None:
        """One line of the file; the states of a progress bar are looked at one by one."""
        self.bytes += len(line)
        if "\r" in line or "\b" in line:
            for part in re.split(r"[\r\b]+", line):
                if part.strip():
                    self.part(number, plain(part))
        else:
            self.part(number, plain(line))

    def part(self, number: int, text: str) -> None:
        """One state of one line; a traceback or closing words may follow a bar without a line break."""
        if "%|" in text and (behind := _BEHIND_BAR.search(text)) and events.suspicious(behind[1]):
            self.said(number, text[: behind.start(1)])
            self.scanner.feed(number, behind[1])
        else:
            self.said(number, text)

    def said(self, number: int, text: str) -> None:
        """What one program wrote at once."""
        if (bar := grammar.bar(text)) is not None:
            self.bars.draw(number, *bar, self.scanner.closing_line)
            for row in reversed(self.dicts):
                if row.after is not None:
                    break
                row.after = bar
        if "{" in text and ("loss" in text or "train_runtime" in text or "eval_" in text):
            said = grammar.read_dict(text)
            if said is not None:
                row = _Row(number, said, events.rank_of(text), before=dict(self.bars.states))
                self.dicts.append(row)
                if "train_runtime" in said.values:
                    self.scanner.keep(
                        number, "completed", "the Trainer printed its closing summary (train_runtime)", {}
                    )
                return
        if " = " in text and (banner := _BANNER.match(text)):
            value = int(banner[2].replace(",", ""))
            key = names.setting_key(banner[1].lower())
            self.settings.append(Setting(key, banner[1], value, self.file.name, number, "runtime"))
        elif grammar.promising(text) or (self.block and number - self.context_line <= _ADJACENT and ":" in text):
            if self.value_line(number, text) and not self.scanner.inside_traceback:
                return
        elif _could_head(text) and _HEADER.search(text):
            self.header(number, text)
        elif (phase := _PHASE_HEADER.match(text)) and self.context_line > 0:
            self.context_phase, self.context_line, self.block = _phase(phase[1]), number, True
        self.scanner.feed(number, text)

    def header(self, number: int, text: str) -> None:
        """A line such as "--- Step 10 ---" or "Epoch 3/10": it says where the lines below it stand."""
        said = grammar.read_pairs(text)
        if said.step is None and said.epoch is None:
            return
        if said.step is None and not self.context.bare:
            said.step, said.total = self.context.step, self.context.total
        if said.epoch is None:
            said.epoch, said.epochs = self.context.epoch, self.context.epochs
        self.context, self.context_line, self.context_phase, self.block = said, number, None, True
        if said.step is not None and not said.bare:
            self.last_step = said.step

    def value_line(self, number: int, text: str) -> bool:
        """Whether a line holds values that count: with a step or epoch of its own or of a header close above."""
        said = grammar.read_pairs(text)
        placed = said.step is not None or said.epoch is not None
        if placed and not said.has_metric:
            if _HEADER.search(text):
                self.header(number, text)
            return False
        if not placed:
            if not self.below_header(number, said):
                return False
        else:
            if said.bare and said.evaluation:  # the bar of an evaluation says nothing about the training step
                return False
            if said.bare and said.epoch is None:
                said.epoch, said.epochs = self.context.epoch, self.context.epochs
            self.context, self.context_line, self.context_phase, self.block = said, number, None, False
        self.pairs.append(_Row(number, said, events.rank_of(text), drawn="%|" in text))
        if said.step is not None:
            self.last_step = said.step
        if said.bare and not self.bars.moves(said.step or 0, said.total or 0, self.scanner.closing_line):
            self.redrawn.add(number)
        else:
            self.bars.line = number
        self.last_text = text
        return True

    def below_header(self, number: int, said: grammar.Line) -> bool:
        """Give a line without a step the place of the header above it; whether it has one and is worth it."""
        context = self.context
        if context.step is None and context.epoch is None:
            return False
        distance = number - self.context_line
        inside = self.block and distance <= _CONTEXT
        if said.has_metric:
            if not (inside or said.evaluation):
                return False
        elif not (inside and distance <= _ADJACENT and any(_is_canonical(tag) for tag in said.values)):
            return False
        said.step, said.total, said.bare = context.step, context.total, context.bare
        said.epoch, said.epochs = context.epoch, context.epochs
        if inside:
            said.phase = said.phase or self.context_phase
            self.context_line = number
        return True

    # -- the result --------------------------------------------------------------------------------------------------

    def reading(self, is_log: bool) -> Reading:
        """Tracks, events and trail of the whole log."""
        reading = Reading(events=[], settings=self.settings or None)
        log = None
        if len(self.dicts) * _PAIRS_PER_DICT < len(self.pairs):
            self.dicts = []  # a few printed dicts beside the lines of another logger
        if self.dicts:
            log = self.dict_rows(reading)
        elif len(self.pairs) > 1:
            log = self.pair_rows(reading)
        if log is not None:
            reading.tracks = log.finish()
            if self.dicts:
                reading.tracks = [self.printed(track) for track in reading.tracks]
            reading.notices += log.notices
        stands = sorted(log.stands) if log is not None else []
        for event in sorted(self.scanner.events, key=lambda e: e.line or 0):
            place = bisect_left(stands, (event.line or 0, 0))
            step = stands[place - 1][1] if place and stands else None
            attempt = log.attempt_at(event.line or 0) if log is not None else None
            assert reading.events is not None
            reading.events.append(replace(event, step=step, attempt=attempt))
        for kind, count in self.scanner.dropped.items():
            reading.notices.append((None, f'{count} more events of the kind "{kind}" were left out'))
        rows = [line for line, _ in stands if line not in self.redrawn]
        reading.trail.last_line = max((n for n in (self.bars.line, *rows[-1:]) if n), default=None)
        reading.trail.last_step = max((step for _, step in stands), default=None)
        reading.trail.seconds_left = grammar.seconds_left(self.last_text)
        reading.trail.launch_line = self.scanner.launch_line
        reading.speaks_of_training = bool(reading.tracks) or self.scanner.speaks_of_training
        remarkable = any(e.kind in events.TERMINAL for e in self.scanner.events) and self.scanner.speaks_of_training
        reading.claimed = is_log or bool(reading.tracks) or remarkable
        return reading

    def dict_rows(self, reading: Reading) -> RowLog:
        """Rows of the Trainer's dicts; the step comes from the dict, from the bar beside it, or from the order."""
        steps = _steps_of_dicts(self.dicts)
        planned = Counter(row.after[1] for row in self.dicts if row.after and "loss" in row.said.values)
        unit: StepUnit = "step"
        if steps is None:
            unit, steps, count = "row", [], 0
            for row in self.dicts:
                count += _is_train(row.said)
                steps.append(max(count, 1))
            reading.notices.append(
                (self.dicts[0].line, "the printed rows name no step: they are numbered in their order")
            )
        elif planned:
            reading.trail.planned = planned.most_common(1)[0][0]
        closing = {key: key for row in self.dicts if "train_runtime" in row.said.values for key in row.said.values}
        log = RowLog({**closing, **self.file.columns}, unit=unit)
        for row, step in zip(self.dicts, steps, strict=True):
            log.add(row.line, row.said.values, step=step, epoch=row.said.epoch, rank=row.rank)
        return log

    def printed(self, track: Track) -> Track:
        """A series of dict lines with the resolution of its printing, where the numbers were not printed whole."""
        stored = track.stored
        values = stored.frame["value"].to_list()
        highest = max((abs(v) for v in values if v), default=0.0)
        if sum(row.said.quoted for row in self.dicts) * 2 > len(self.dicts) and highest > 0:
            resolution = 10.0 ** (math.floor(math.log10(highest)) + 1 - _SIGNIFICANT)
            track.stored = SeriesFrame(stored.frame, stored.step_unit, resolution)
        elif track.series == "loss" and numbers.rounded_to(values, _LOSS_DECIMALS):
            track.stored = SeriesFrame(stored.frame, stored.step_unit, 10.0**-_LOSS_DECIMALS)
        return track

    def pair_rows(self, reading: Reading) -> RowLog:
        """Rows of the pairs: explicit steps, bars counted through the epochs, or epochs alone."""
        rows = [
            row
            for row in self.pairs
            if not (row.said.bare and (row.said.phase in ("eval", "test") or (row.drawn and row.said.step == 0)))
        ]  # a bar that is drawn anew at 0 still shows the values of before
        explicit = [row for row in rows if row.said.step is not None and not row.said.bare]
        if explicit:
            for row in rows:
                if row.said.bare:
                    row.said.step = None
        elif any(row.said.step is not None for row in rows):
            _through_epochs(rows)
        only_epochs = all(row.said.step is None for row in rows)
        samples = not explicit and any(row.said.samples for row in rows)
        log = RowLog(self.file.columns, unit="epoch" if only_epochs else ("samples" if samples else "step"))
        totals = Counter(row.said.epochs if only_epochs else row.said.total for row in rows)
        total, count = totals.most_common(1)[0]
        if total and count * 2 > len(rows):
            if only_epochs:
                self.settings.append(
                    Setting("num_train_epochs", "epoch", total, self.file.name, rows[-1].line, "runtime")
                )
                reading.settings = self.settings
            elif explicit and not any(row.said.step is not None and row.said.step > total for row in rows):
                log.period = total
                reading.trail.planned = _planned(explicit, total)
        for row in rows:
            said = row.said
            log.add(
                row.line,
                said.values,
                step=said.step,
                epoch=said.epoch,
                time=said.time,
                rank=row.rank,
                phase=said.phase,
                texts=said.texts,
            )
        return log


def _could_head(text: str) -> bool:
    """A cheap first look for _HEADER."""
    return "tep" in text or "poch" in text or "iter" in text or "Iter" in text or "STEP" in text or "EPOCH" in text


def _is_canonical(tag: str) -> bool:
    return names.series_of(tag)[1] in names.table()["series"]


def _phase(word: str) -> Phase | None:
    low = word.lower()
    return "eval" if low.startswith(("eval", "valid")) else ("test" if low.startswith("test") else None)


def _is_train(said: grammar.Line) -> bool:
    return "train_runtime" not in said.values and any(names.series_of(tag)[0] != "eval" for tag in said.values)


def _steps_of_dicts(rows: Sequence[_Row]) -> list[int | None] | None:
    """A step per row, or None where neither the dicts nor the bars beside them tell it."""
    if all(row.said.step is not None for row in rows if _is_train(row.said)) and any(
        row.said.step is not None for row in rows
    ):
        return [row.said.step for row in rows]
    train = [row for row in rows if _is_train(row.said)]
    totals = Counter(row.after[1] for row in train if row.after) or Counter(t for row in train for t in row.before)
    if not totals:
        return None
    total = totals.most_common(1)[0][0]
    found: list[int | None] = []
    for row in rows:
        # tqdm redraws its bar right after a row was written: the next bar is exact, but one step on for an evaluation
        before = row.before.get(total)
        after = row.after[0] if row.after and row.after[1] == total else None
        first, second = (after, before) if _is_train(row.said) else (before, after)
        found.append(second if first is None else first)
    logged = [step for row, step in zip(rows, found, strict=True) if _is_train(row.said)]
    gaps = Counter(b - a for a, b in pairwise(logged) if a is not None and b is not None)
    steady = (
        gaps.most_common(1)[0][1] * 10 >= 8 * (len(logged) - 1) if gaps else len(logged) == 1 and logged[0] is not None
    )
    return found if steady and (not gaps or gaps.most_common(1)[0][0] > 0) else None


def _planned(rows: Sequence[_Row], total: int) -> int | None:
    """Planned steps where "step 20/50" stands beside an epoch: 50 in all, or in every epoch."""
    placed = [(r.said.epoch, r.said.step or 0) for r in rows if r.said.epoch is not None and r.said.step is not None]
    if not placed:
        return total
    epochs = Counter(r.said.epochs for r in rows).most_common(1)[0][0]
    first = 0 if min(epoch for epoch, _ in placed) < 1 else 1
    anew = any(b < a and later > early for (early, a), (later, b) in pairwise(placed))
    ahead = epochs and any(step * epochs > total * (epoch + 1 - first) + epochs for epoch, step in placed)
    if not (anew or ahead):
        return total
    return total * epochs if epochs else None


def _through_epochs(rows: Sequence[_Row]) -> None:
    """Bars that run once per epoch, counted through; a bar that runs once for the whole training stays."""
    bars = [row for row in rows if row.said.step is not None]
    falls = any(b.said.step < a.said.step for a, b in pairwise(bars))  # type: ignore[operator]
    full = sum(row.said.step == row.said.total for row in bars)
    if not falls and full < 2:
        return
    first = min((row.said.epoch for row in bars if row.said.epoch is not None), default=None)
    if first is None:
        return
    base = 1.0 if first == 1 else 0.0
    for row in bars:
        said = row.said
        if said.epoch is not None and said.step is not None and said.total:
            said.step = int(said.epoch - base) * said.total + said.step
