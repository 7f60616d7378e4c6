"""What was gathered from a console log -> its Reading: where every line stands, tracks, events and how it ends."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gradforensics.evidence import events, names, numbers
from gradforensics.evidence.console import lines as grammar
from gradforensics.evidence.console.dialects import Dialect
from gradforensics.evidence.console.rows import Gathered, Places, Row, planned_totals
from gradforensics.evidence.console.scan import DICTS, PAIRS, Scan
from gradforensics.evidence.log_table import LogTable, Settled, settle
from gradforensics.evidence.readings import Reading, Track
from gradforensics.tables import SeriesFrame, Setting, StepUnit

_PAIRS_PER_DICT = 4
_LOSS_DECIMALS = 4  # the Trainer rounds the training loss before it logs it (versions before 5)
_SIGNIFICANT = 4  # digits of the numbers that the Trainer prints as strings (version 5)


def reading_of(scan: Scan, *, is_log: bool) -> Reading:
    """Tracks, events and trail of the whole log."""
    return _Result(scan).reading(is_log=is_log)


class _Result:
    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.found = Reading(events=[])
        self.lines: list[np.ndarray] = []  # of every row, with
        self.steps: list[np.ndarray] = []  # where it stands
        self.starts: list[int] = []  # lines at which later attempts begin

    def reading(self, *, is_log: bool) -> Reading:
        scan, found = self.scan, self.found
        for kind, gathered in self.kinds():
            if kind == DICTS:
                self.dicts(gathered)
            else:
                self.values(kind, gathered)
        found.tracks = _distinct(found.tracks)
        found.settings = scan.settings or None
        found.facts = scan.scanner.report.facts
        self.events()
        self.trail()
        found.speaks_of_training = bool(found.tracks) or scan.scanner.speaks_of_training
        remarkable = any(e.kind in events.TERMINAL for e in scan.scanner.events) and scan.scanner.speaks_of_training
        found.claimed = is_log or bool(found.tracks) or remarkable
        if found.tracks:
            known = ", ".join(sorted(dialect.title for dialect in scan.dialects.values()))
            generic = "no known dialect: read by the names beside its numbers"
            found.remark = f"dialect: {known}" if known else generic
        return found

    def kinds(self) -> list[tuple[str, Gathered]]:
        """What counts of the kinds of lines: those of a dialect and dicts, and pairs where there are many more."""
        counts = {kind: len(gathered) for kind, gathered in self.scan.gathered.items()}
        pairs = counts.pop(PAIRS)
        known = sum(counts.values())
        chosen = [(kind, gathered) for kind, gathered in self.scan.gathered.items() if kind != PAIRS and gathered]
        if known * _PAIRS_PER_DICT < pairs:
            # a few printed dicts beside the lines of another logger
            chosen = [(kind, gathered) for kind, gathered in chosen if kind != DICTS]
            if pairs > 1:
                chosen.append((PAIRS, self.scan.gathered[PAIRS]))
        return chosen

    # -- dicts -------------------------------------------------------------------------------------------------------

    def dicts(self, gathered: Gathered) -> None:
        """Rows of the Trainer's dicts; the step comes from the dict, from the bar beside it, or from the order."""
        rows = gathered.rows
        places = gathered.places()
        unit: StepUnit = "step"
        steps = _steps_of_dicts(gathered)
        planned = planned_totals(rows)
        if steps is None:
            unit = "row"
            trained = np.concatenate(
                [
                    np.array([_is_train(row.said) for row in rows], dtype=np.int64),
                    *(np.full(len(b.lines), _is_train(b.said), dtype=np.int64) for b in gathered.blocks),
                ]
            )[places.order]
            steps = np.maximum(np.cumsum(trained), 1).astype(np.float64)
            text = "the printed rows name no step: they are numbered in their order"
            self.found.notices.append((int(places.lines[0]), text))
        elif planned:
            self.found.trail.planned = planned.most_common(1)[0][0]
        closing = {key: key for row in rows if "train_runtime" in row.said.values for key in row.said.values}
        mapping = {**closing, **self.mapping(DICTS)}
        for track in self.settled(gathered.table(places, steps, unit), mapping).tracks:
            self.found.tracks.append(self.printed(track, gathered))

    def printed(self, track: Track, gathered: Gathered) -> Track:
        """A series of dict lines with the resolution of its printing, where the numbers were not printed whole."""
        stored = track.stored
        values = stored.frame["value"]
        highest = float(values.abs().max() or 0.0)  # type: ignore[arg-type]  # a Float64 column
        quoted = sum(row.said.quoted for row in gathered.rows)
        if quoted * 2 > len(gathered.rows) and highest > 0:
            resolution = 10.0 ** (math.floor(math.log10(highest)) + 1 - _SIGNIFICANT)
            track.stored = SeriesFrame(stored.frame, stored.step_unit, resolution)
        elif track.series == "loss" and numbers.rounded_to(values.to_list(), _LOSS_DECIMALS):
            track.stored = SeriesFrame(stored.frame, stored.step_unit, 10.0**-_LOSS_DECIMALS)
        return track

    # -- values ------------------------------------------------------------------------------------------------------

    def values(self, kind: str, gathered: Gathered) -> None:
        """Rows of one dialect or of the pairs: explicit steps, bars counted through the epochs, or epochs alone."""
        # a bar that is drawn anew at 0 still shows the values of before
        gathered.rows = [
            row
            for row in gathered.rows
            if not (row.said.bare and (row.said.phase in ("eval", "test") or (row.drawn and row.said.step == 0)))
        ]
        rows, blocks = gathered.rows, gathered.blocks
        training = [row.said for row in rows if not row.said.dialect or row.said.phase not in ("eval", "test")]
        explicit = any(said.step is not None and not said.bare for said in training or [r.said for r in rows]) or any(
            block.steps is not None for block in blocks
        )
        if explicit:
            for row in rows:
                if row.said.bare:
                    row.said.step = None
        elif any(row.said.step is not None for row in rows):
            _through_epochs(rows, self.scan.dialects.get(kind))
        places = gathered.places()
        if not len(places.lines):
            return
        only_epochs = bool(np.isnan(places.steps).all())
        stated = self.scan.kinds[kind].unit if kind in self.scan.kinds else "step"
        samples = not explicit and any(row.said.samples for row in rows)
        unit: StepUnit = "epoch" if only_epochs else ("samples" if samples else stated)
        total, count = places.most_common(places.last_epochs if only_epochs else places.totals)
        period = None
        dialect = self.scan.dialects.get(kind)
        first = dialect.epochs_from if dialect is not None else None
        if total and count * 2 > len(places.lines):
            if only_epochs:
                line, source = int(places.lines[-1]), self.scan.file.name
                self.scan.settings.append(Setting("num_train_epochs", "epoch", total, source, line, "runtime"))
            elif explicit and not bool((places.steps > total).any()):
                period = total if first is not None or _reached(places.steps, total) else None
                self.found.trail.planned = _planned(places, total)
        table = gathered.table(places, places.steps, unit)
        table.period, table.first_epoch = period, first
        del places  # settling needs the memory
        self.found.tracks += self.settled(table, self.mapping(kind)).tracks

    def mapping(self, kind: str) -> dict[str, str]:
        """What names mean in lines of this kind: as the user says, else as their dialect says."""
        chosen = self.scan.dialects.values() if kind == DICTS else filter(None, [self.scan.dialects.get(kind)])
        known = {name: series for dialect in chosen for name, series in dialect.mapping.items()}
        return {**known, **self.scan.file.columns}

    def settled(self, table: LogTable, mapping: dict[str, str]) -> Settled:
        """The table as tracks; where its rows stand is kept for the events."""
        result = settle(table, mapping)
        assert table.lines is not None
        self.lines.append(table.lines)
        self.steps.append(result.steps)
        self.starts += [int(table.lines[row]) for row in result.starts]
        self.found.notices += result.notices
        return result

    # -- events and the end ------------------------------------------------------------------------------------------

    def events(self) -> None:
        """The events with the step and the attempt at which they happened."""
        scanner = self.scan.scanner
        if len(self.lines) == 1:  # in the order of the file already
            lines, steps = self.lines[0], self.steps[0]
        else:
            lines = np.concatenate([np.zeros(0, dtype=np.uint32), *self.lines])
            steps = np.concatenate([np.zeros(0, dtype=np.int64), *self.steps])
            order = np.lexsort((steps, lines))
            lines, steps = lines[order], steps[order]
        starts = sorted(self.starts)
        assert self.found.events is not None
        for event in sorted(scanner.events, key=lambda e: e.line or 0):
            place = int(np.searchsorted(lines, event.line or 0, side="left"))
            step = int(steps[place - 1]) if place and len(steps) else None
            attempt = bisect_left(starts, (event.line or 0) + 1) if len(lines) else None
            self.found.events.append(replace(event, step=step, attempt=attempt))
        for kind, count in scanner.dropped.items():
            self.found.notices.append((None, f'{count} more events of the kind "{kind}" were left out'))
        self.last = (lines, steps)

    def trail(self) -> None:
        """What the end of the log tells."""
        scan, trail = self.scan, self.found.trail
        lines, steps = self.last
        rows = lines[~np.isin(lines, list(scan.redrawn))] if scan.redrawn else lines
        last_row = int(rows[-1]) if len(rows) else None
        trail.last_line = max((n for n in (scan.bars.line, last_row) if n), default=None)
        trail.last_step = int(steps.max()) if len(steps) else None
        trail.seconds_left = grammar.seconds_left(scan.last_text)
        trail.launch_line = scan.scanner.launch_line


def _distinct(tracks: Sequence[Track]) -> list[Track]:
    """Of series that two kinds of lines hold under one name, the one with most points."""
    best: dict[tuple[str, str, str], Track] = {}
    for track in tracks:
        key = (track.phase, track.series, track.tag)
        if key not in best or track.stored.frame.height > best[key].stored.frame.height:
            best[key] = track
    return list(best.values())


def _is_train(said: grammar.Line) -> bool:
    return "train_runtime" not in said.values and any(names.series_of(tag)[0] != "eval" for tag in said.values)


def _steps_of_dicts(gathered: Gathered) -> np.ndarray | None:
    """float64 (n,), a step per row in the order of the file, or None where neither dicts nor bars tell it."""
    rows = gathered.rows
    train = [row for row in rows if _is_train(row.said)]
    inside = [row.said.step is not None for row in train]
    inside += [block.steps is not None for block in gathered.blocks if _is_train(block.said)]
    named = any(row.said.step is not None for row in rows) or any(b.steps is not None for b in gathered.blocks)
    if named and all(inside):
        return gathered.places().steps
    if gathered.blocks:
        return None
    found = _steps_of_bars(rows, train)
    return None if found is None else np.array([math.nan if s is None else s for s in found], dtype=np.float64)


def _steps_of_bars(rows: Sequence[Row], train: Sequence[Row]) -> list[int | None] | None:
    """The step of every dict from the progress bars around it."""
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


def _planned(places: Places, total: int) -> int | None:
    """Planned steps where "step 20/50" stands beside an epoch: 50 in all, or in every epoch."""
    placed = ~np.isnan(places.epochs) & ~np.isnan(places.steps)
    if not placed.any():
        return total
    epochs, steps = places.epochs[placed], places.steps[placed]
    planned = places.most_common(places.last_epochs)[0]
    first = 0 if epochs.min() < 1 else 1
    anew = bool(((np.diff(steps) < 0) & (np.diff(epochs) > 0)).any())
    ahead = planned and bool((steps * planned > total * (epochs + 1 - first) + planned).any())
    if not (anew or ahead):
        return total
    return total * planned if planned else None


def _reached(steps: np.ndarray, total: int) -> bool:
    """Whether some epoch came to its last step, as far as the interval of logging tells."""
    known = steps[~np.isnan(steps)]
    forward = np.diff(known)
    forward = forward[forward > 0]
    return bool(known.max() + (np.median(forward) if len(forward) else 0) >= total)


def _through_epochs(rows: Sequence[Row], dialect: Dialect | None) -> None:
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
    if dialect is not None and dialect.epochs_from is not None:
        base = float(dialect.epochs_from)
    for row in bars:
        said = row.said
        if said.epoch is not None and said.step is not None and said.total:
            said.step = int(said.epoch - base) * said.total + said.step
