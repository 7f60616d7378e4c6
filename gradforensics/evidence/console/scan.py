"""The state of reading one console log: where it stands, which lines hold values, and what else happened."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from gradforensics.evidence import events, names, prefixes
from gradforensics.evidence.console import lines as grammar
from gradforensics.evidence.console.bars import Bars
from gradforensics.evidence.console.blocks import Block, Marks
from gradforensics.evidence.console.dialects import Dialect, Known, LineKind
from gradforensics.evidence.console.matching import Prepared, match, prepare
from gradforensics.evidence.console.rows import Gathered, Row
from gradforensics.evidence.console.templates import LONGEST, Template, Templates
from gradforensics.evidence.console.templates import Block as Values
from gradforensics.evidence.files import File, plain
from gradforensics.tables import Phase, Setting

PAIRS, DICTS = "", "dict"  # what Gathered of the generic grammar are kept under

_QUIET_BYTES = 32 << 20  # a .txt without a sign of a training in so many bytes is a corpus
_CONTEXT = 40  # lines below a step header whose losses belong to it
_ADJACENT = 2  # lines below the last line of such a block where also other known values do
_FUTILE = 1000  # templates that are made in vain before no more are made for a while
_REST = 32  # blocks without new templates then
_ZONES = 900  # seconds: time zones differ by quarters of an hour
_FARTHEST = 50_400  # seconds: the zone farthest from UTC
_HEADER = re.compile(r"(?i)^[\s>*=#-]*(?:global[_ ])?(?:epoch|step|iteration|iter)\b|-- ?GLOBAL_STEP|-- ?STEP:")
_HEADER_MARKS = ("tep", "poch", "iter", "Iter", "STEP", "EPOCH")
_PHASE_HEADER = re.compile(r"^[\s>*=#-]*(EVAL\w*|VALIDATION|TRAIN\w*|TEST\w*)\b")
_PHASE_MARKS = ("EVAL", "VALIDATION", "TRAIN", "TEST")
_BANNER = re.compile(
    r"\s*(Num [Ee]pochs|Instantaneous batch size per device|Total train batch size|"
    r"Gradient Accumulation steps|Total optimization steps|Number of trainable parameters)"
    r"[^=]*= ([\d,]+)\s*$"
)
_BANNER_MARKS = (
    "Num Epochs",
    "Num epochs",
    "Instantaneous batch",
    "Total train batch",
    "Gradient Accumulation",
    "Total optimization",
    "Number of trainable",
)
_DICT_MARKS = ("train_runtime", "eval_")
_FRAME_MARK = 'File "'
_BEHIND_BAR = re.compile(r"%\|[^|]*\|\s*\d+/\d+ \[[^\]]*\]\s*([^\s{].*)")


@cache
def _marks() -> tuple[Marks, Marks]:
    """What a line must hold to mean anything, and what the state of a bar must hold to be more than motion."""
    speaking = (*events.MARKS, *grammar.MARKS, *Known().marks)
    places = (*_HEADER_MARKS, *_PHASE_MARKS, *_BANNER_MARKS, *_DICT_MARKS, _FRAME_MARK, "%|")
    return Marks((*speaking, *places)), Marks((*speaking, "{"))


class Scan:
    """Fed with the lines of one log, or with whole blocks of them."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.gathered: dict[str, Gathered] = {PAIRS: Gathered(), DICTS: Gathered()}
        self.kinds: dict[str, LineKind] = {}
        self.dialects: dict[str, Dialect] = {}
        self.settings: list[Setting] = []
        self.bars = Bars()
        self.redrawn: set[int] = set()
        self.last_text = ""
        self.bytes = 0
        self.last_step: int | None = None
        self.scanner = events.Scanner(file.name, lambda: self.last_step)
        self._known = Known()
        self._context = grammar.Line()
        self._context_line = -_CONTEXT
        self._context_phase: Phase | None = None
        self._block = False
        self._learnable: Row | None = None
        self._templates = Templates()
        self._hits = self._resting = 0
        self._marks, self._speaking = _marks()

    def quiet(self) -> bool:
        """Whether so much was read in vain that the file is no log."""
        return self.bytes > _QUIET_BYTES and not (any(self.gathered.values()) or self.scanner.events)

    # -- line by line ------------------------------------------------------------------------------------------------

    def line(self, number: int, line: str) -> None:
        """One line of the file; the states of a progress bar are looked at one by one."""
        self.bytes += len(line)
        if "\r" in line or "\b" in line:
            for part in re.split(r"[\r\b]+", line):
                if part.strip():
                    self._part(number, plain(part))
        else:
            self._part(number, plain(line))

    def _part(self, number: int, text: str) -> None:
        """One state of one line; a traceback or closing words may follow a bar without a line break."""
        self._learnable = None
        if "%|" in text and (behind := _BEHIND_BAR.search(text)) and events.suspicious(behind[1]):
            self._said(number, text[: behind.start(1)])
            self.scanner.feed(number, behind[1])
        else:
            self._said(number, text)

    def _said(self, number: int, text: str) -> None:
        """What one program wrote at once."""
        if not text:
            self.scanner.feed(number, text)
            return
        if (bar := grammar.bar(text)) is not None:
            self.bars.draw(number, *bar, self.scanner.closing_line)
            for row in reversed(self.gathered[DICTS].rows):
                if row.after is not None:
                    break
                row.after = bar
        if (known := self._dialect(text)) is not None:
            if self._dialect_line(number, text, *known):
                return
        elif "{" in text and ("loss" in text or "train_runtime" in text or "eval_" in text):
            said = grammar.read_dict(text)
            if said is not None:
                self._dict(number, text, said)
                return
        if " = " in text and (banner := _BANNER.match(text)):
            value = int(banner[2].replace(",", ""))
            key = names.setting_key(banner[1].lower())
            self.settings.append(Setting(key, banner[1], value, self.file.name, number, "runtime"))
        elif known is None and (
            grammar.promising(text) or (self._block and number - self._context_line <= _ADJACENT and ":" in text)
        ):
            if self._value_line(number, text) and not self.scanner.inside_traceback:
                return
        elif known is None and any(mark in text for mark in _HEADER_MARKS) and _HEADER.search(text):
            self._header(number, grammar.read_pairs(text))
        elif (phase := _PHASE_HEADER.match(text)) and self._context_line > 0:
            self._context_phase, self._context_line, self._block = _phase(phase[1]), number, True
        self.scanner.feed(number, text)

    def _dialect(self, text: str) -> tuple[Dialect, LineKind, grammar.Line] | None:
        """What a known dialect makes of a line, with the spans of the whole line."""
        fitting = self._known.fitting(text)
        if not fitting:
            return None
        bare = prefixes.read(text).rest
        found = self._known.read(bare, fitting)
        if found is not None and (shift := len(text) - len(bare)):
            spans = found[2].spans
            found[2].spans = {name: (start + shift, stop + shift) for name, (start, stop) in spans.items()}
            found[2].free = [(start + shift, stop + shift) for start, stop in found[2].free]
        return found

    def _dialect_line(self, number: int, text: str, dialect: Dialect, kind: LineKind, said: grammar.Line) -> bool:
        """Take a line of a known dialect; whether the scanner of events has nothing to look for in it."""
        if kind.what == "ignored":
            return False
        if kind.what == "header":
            self._header(number, said)
            return False
        self.dialects[dialect.id] = dialect
        if said.is_dict:
            self._dict(number, text, said)
            return True
        placed = said.step is not None or said.epoch is not None
        if not placed and not self._below_header(number, said):
            return False
        if said.bare and said.epoch is None:  # the epoch that a header above names
            said.epoch, said.epochs = self._context.epoch, self._context.epochs
        self.kinds.setdefault(dialect.id, kind)
        self._keep(number, text, said, dialect.id)
        if placed:
            self._stand(number, said)
        return not self.scanner.inside_traceback

    def _dict(self, number: int, text: str, said: grammar.Line) -> None:
        row = _row(number, text, said)
        row.before = dict(self.bars.states)
        self.gathered[DICTS].rows.append(row)
        if not (row.before or "train_runtime" in said.values):
            self._learnable = row
        if "train_runtime" in said.values:
            self.scanner.keep(number, "completed", "the Trainer printed its closing summary (train_runtime)", {})

    def _header(self, number: int, said: grammar.Line) -> None:
        """A line such as "--- Step 10 ---" or "Epoch 3/10": it says where the lines below it stand."""
        if said.step is None and said.epoch is None:
            if said.phase is not None and self._context_line > 0:
                self._context_phase, self._context_line, self._block = said.phase, number, True
            return
        if said.step is None and not self._context.bare:
            said.step, said.total = self._context.step, self._context.total
        if said.epoch is None:
            said.epoch, said.epochs = self._context.epoch, self._context.epochs
        self._context, self._context_line, self._context_phase, self._block = said, number, said.phase, True
        if said.step is not None and not said.bare:
            self.last_step = said.step

    def _value_line(self, number: int, text: str) -> bool:
        """Whether a line holds values that count: with a step or epoch of its own or of a header close above."""
        said = grammar.read_pairs(text)
        placed = said.step is not None or said.epoch is not None
        if placed and not said.has_metric:
            if _HEADER.search(text):
                self._header(number, grammar.read_pairs(text))
            return False
        if not placed:
            if not self._below_header(number, said):
                return False
        else:
            if said.bare and said.evaluation:  # the bar of an evaluation says nothing about the training step
                return False
            if said.bare and said.epoch is None:
                said.epoch, said.epochs = self._context.epoch, self._context.epochs
        self._keep(number, text, said, PAIRS)
        if placed:
            self._stand(number, said)
        return True

    def _keep(self, number: int, text: str, said: grammar.Line, kind: str) -> None:
        """Add a value line to those of its kind."""
        row = _row(number, text, said)
        self.gathered.setdefault(kind, Gathered()).rows.append(row)
        if said.step is not None:
            self.last_step = said.step
        if said.bare and not self.bars.moves(said.step or 0, said.total or 0, self.scanner.closing_line):
            self.redrawn.add(number)
        else:
            self.bars.line = number
        self.last_text = text
        if not (said.bare or row.drawn):
            self._learnable = row

    def _stand(self, number: int, said: grammar.Line) -> None:
        """The lines below stand where this one does."""
        self._context, self._context_line, self._context_phase, self._block = said, number, None, False

    def _below_header(self, number: int, said: grammar.Line) -> bool:
        """Give a line without a step the place of the header above it; whether it has one and is worth it."""
        context = self._context
        if context.step is None and context.epoch is None:
            return False
        distance = number - self._context_line
        inside = self._block and distance <= _CONTEXT
        if said.has_metric or said.dialect:
            if not (inside or said.evaluation):
                return False
        elif not (inside and distance <= _ADJACENT and any(_is_canonical(tag) for tag in said.values)):
            return False
        said.step, said.total, said.bare = context.step, context.total, context.bare
        said.epoch, said.epochs = context.epoch, context.epochs
        said.spans.pop("<step>", None)
        if inside:
            said.phase = said.phase or self._context_phase
            self._context_line = number
        return True

    # -- block by block ----------------------------------------------------------------------------------------------

    def prepare(self, raw: bytes) -> Prepared:
        """What a block holds, as far as that does not depend on the lines before it; may run in a thread."""
        return prepare(raw, self._templates, self._marks, self._speaking)

    def take(self, prepared: Prepared, first: int) -> int:
        """The next block: what its lines mean where they stand. first: the number of its first line.

        Returns the number of the line behind it.
        """
        block, owned = prepared.block, prepared.owned
        block.first = first
        self.bytes += len(block.raw)
        self._resting -= self._resting > 0
        made, hits = self._templates.made, self._hits
        self._store(block, prepared.values)
        for template in self._templates.since(prepared.made):
            rows = np.flatnonzero(block.lengths == template.length)
            self._store(block, match(block, owned, rows, (template,)))
        self._walk(block, owned, prepared.wanted)
        made = self._templates.made - made
        if made > _FUTILE and self._hits - hits < made:
            self._resting = _REST
        return first + block.behind

    def _store(self, block: Block, found: Sequence[Values]) -> None:
        """Keep what the templates read of a block."""
        for values in found:
            values.lines = values.lines + block.first
            self._hits += len(values.lines)
            self.gathered[DICTS if values.said.is_dict else values.said.dialect].add(values)

    def _walk(self, block: Block, owned: np.ndarray, wanted: np.ndarray) -> None:
        """Read the candidates of a block one by one, with the lines around them that they ask for."""
        seen = -1
        queue = iter(wanted.tolist())
        following = next(queue, None)
        while True:
            while following is not None and (following <= seen or owned[following]):
                following = next(queue, None)
            index = following
            above = block.number(seen) if seen >= 0 else block.first - 1
            if seen + 1 < len(block) and self._asks_for_more(above):
                index = seen + 1
            if index is None:
                break
            self._catch_up(block, owned, seen + 1, index)
            seen = index
            number = block.number(index)
            if owned[index]:  # its values are known already; a traceback may end here all the same
                self._catch_up(block, owned, index, index + 1)
                if self.scanner.inside_traceback:
                    self.scanner.feed(number, plain(block.text(index)))
                continue
            self._learnable = None
            text = block.text(index)
            if "\b" in text or "\r" in text:
                self.line(number, text)
                continue
            if text.strip() or not block.beside_return(index):
                self._part(number, plain(text))
            self._learn(block, owned, index)
        self._catch_up(block, owned, seen + 1, len(block))

    def _asks_for_more(self, number: int) -> bool:
        """Whether the line below this one matters whatever it holds."""
        return self.scanner.inside_traceback or (self._block and number - self._context_line < _ADJACENT)

    def _catch_up(self, block: Block, owned: np.ndarray, start: int, stop: int) -> None:
        """Stand where the last line stands that a template read between two others."""
        if start >= stop or not owned[start:stop].any():
            return
        index = start + int(np.flatnonzero(owned[start:stop])[-1])
        number, text = block.number(index), plain(block.text(index))
        found = self._dialect(text)
        said = found[2] if found is not None else grammar.read_dict(text) if "{" in text else None
        if said is not None and said.is_dict:
            return
        said = said or grammar.read_pairs(text)
        self._stand(number, said)
        if said.step is not None:
            self.last_step = said.step
        self.bars.line = number
        self.last_text = text

    # -- templates ---------------------------------------------------------------------------------------------------

    def _learn(self, block: Block, owned: np.ndarray, index: int) -> None:
        """Make a template of a line that was just read, if it is worth one, and read the rest of the block with it."""
        row = self._learnable
        if row is None or self._resting:
            return
        template = self._template(block.line(index), row)
        if template is None:
            return
        self._templates.add(template)
        rest = np.flatnonzero(block.lengths[index + 1 :] == template.length) + index + 1
        self._store(block, match(block, owned, rest, (template,)))

    def _template(self, raw: bytes, row: Row) -> Template | None:
        """A template of a line that reads the line itself as it was read, or None."""
        text = raw.decode("utf-8", errors="replace")
        if len(raw) > LONGEST or not text.isascii() or "\x1b" in text:
            return None
        said, free = row.said, [*grammar.clocks(text), *row.said.free]
        if not said.spans:
            said, more = grammar.locate_pairs(text)
            free += more
        place = "<step>" in said.spans or "<epoch>" in said.spans or said.is_dict
        if not place or None in said.values.values():
            return None
        factors: Mapping[str, float] = {}
        if said.dialect:
            factors = self.dialects[said.dialect].factors
        moment = grammar.moment(text) if row.said.time is not None else None
        if (moment is None) != (row.said.time is None):
            return None
        if row.rank is not None:  # the digits of a rank say which one it is
            start = len(text) - len(prefixes.read(text).rest)
            free = [span for span in free if span[0] >= start or span in grammar.clocks(text)]
        try:
            template = Template(raw, said, rank=row.rank, task=row.task, free=free, moment=moment, factors=factors)
        except ValueError:
            return None
        line = np.zeros((1, template.width), dtype=np.uint8)
        line[0, : len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        own = template.block(template.match(line)[1], np.zeros(1, dtype=np.int64))
        if own.times is not None:
            template.shift = (row.said.time or 0.0) - float(own.times[0])
            if template.shift % _ZONES or abs(template.shift) > _FARTHEST:
                return None
        stands = own.steps is None or own.steps[0] == row.said.step
        return template if stands and _same_values(own.values, row.said.values) else None


def _row(number: int, text: str, said: grammar.Line) -> Row:
    """A value line with what its prefix says."""
    writer = prefixes.read(text)
    if writer.time is not None:
        said.time = writer.time
    task = writer.label.rstrip(":").isdigit()
    return Row(number, said, writer.rank, drawn="%|" in text, task=task)


def _same_values(own: Mapping[str, np.ndarray], said: Mapping[str, float | None]) -> bool:
    """Whether a template computes from its own line what was read there."""
    if own.keys() != said.keys():
        return False
    return all(
        np.array_equal(own[tag], np.array([value], dtype=np.float64), equal_nan=True) for tag, value in said.items()
    )


def _is_canonical(tag: str) -> bool:
    return names.series_of(tag)[1] in names.table()["series"]


def _phase(word: str) -> Phase | None:
    low = word.lower()
    return "eval" if low.startswith(("eval", "valid")) else ("test" if low.startswith("test") else None)
