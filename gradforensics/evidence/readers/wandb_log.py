"""W&B's binary log of a run: run-ID.wandb, written online and offline."""

from __future__ import annotations

import polars as pl

from gradforensics.evidence import protobuf, rounding
from gradforensics.evidence.files import File
from gradforensics.evidence.log_table import Column, LogTable, settle
from gradforensics.evidence.readers import console
from gradforensics.evidence.readings import Reading
from gradforensics.evidence.wandb_log import framing, output, wire
from gradforensics.evidence.wandb_log.history import Rows
from gradforensics.evidence.wandb_log.items import Value
from gradforensics.evidence.wandb_log.losses import Losses
from gradforensics.evidence.wandb_log.run import Run
from gradforensics.evidence.wandb_log.summary import points
from gradforensics.evidence.wandb_log.table import STEP, History, table_of

name = "wandb-log"

_HISTORY, _SUMMARY, _STATS = 2, 3, 7
_KNOWN = frozenset({_HISTORY, _SUMMARY, _STATS, 5, 12, 17, 18, 21, 23, 26, *output.RECORDS})
_NUMBER_TAG = b"\x08"
_FREQUENT = (b"\x12", b"\x1a", b"\x6a", b"\x3a")  # tags of history, summary, output_raw and stats
_ITEM_OF_STATS = b"\x1a"


def sniff(file: File) -> bool:
    """By the first bytes, or by the suffix where those are damaged."""
    return file.head.startswith(framing.FILE_HEADER) or file.suffix == ".wandb"


def read(file: File) -> Reading:
    """One pass over the records; the output of the program is read by the reader of console logs."""
    log = _Log()
    for record in framing.records(file):
        if isinstance(record, framing.Gap):
            log.losses.gap(record)
        else:
            log.record(record)
    return log.reading(file)


class _Log:
    """The state of reading one log."""

    def __init__(self) -> None:
        self.losses = Losses()
        self.run = Run()
        self.output = output.Output()
        self.history = Rows()
        self.steps: dict[int, int] = {}
        self.summary: dict[int, Value] = {}
        self.stats = Rows(_ITEM_OF_STATS)
        self.times: list[float | None] = []
        self.own_step = self.history.items.code(STEP)

    def record(self, record: framing.Record) -> None:
        """One record: its number, and one message of the kind that the number of its field tells."""
        number = 0
        try:
            number, kind, message = _union(record.data)
            self.losses.record(number, record.offset)
            if kind == _HISTORY:
                self.row(message)
            elif kind == _SUMMARY:
                codes, values, _ = self.history.items.read(message)
                self.summary.update(zip(codes, values, strict=True))
            elif kind in output.RECORDS:
                self.output.add(message)
            elif kind == _STATS:
                self.sample(message)
            else:
                self.run.take(kind, message)
        except protobuf.MalformedError as error:
            self.losses.broken(number, record.offset, str(error))

    def row(self, message: bytes) -> None:
        """A row of the history; its own step stands beside the values, since some time also among them."""
        codes, values, rest = self.history.items.read(message)
        if self.own_step not in codes:
            for number, value in wire.fields(rest):
                if number == 2 and isinstance(value, bytes):
                    steps = [
                        protobuf.signed(step) for n, step in wire.fields(value) if n == 1 and isinstance(step, int)
                    ]
                    self.steps[self.history.height] = steps[-1] if steps else 0
        self.history.append(codes, values)

    def sample(self, message: bytes) -> None:
        """A measurement of the machine: a time, then its values."""
        time, place = None, 0
        while message[place : place + 1] not in (_ITEM_OF_STATS, b""):
            tag, after = protobuf.varint(message, place, len(message))
            size, after = protobuf.varint(message, after, len(message))
            if tag == 18:
                time = wire.seconds(message[after : after + size])
            place = after + (size if tag & 7 == 2 else 0)
        codes, values, _ = self.stats.items.read(message[place:])
        self.stats.append(codes, values)
        self.times.append(time)

    # -- the result --------------------------------------------------------------------------------------------------

    def reading(self, file: File) -> Reading:
        """Everything that the log tells."""
        reading = Reading(speaks_of_training=self.history.height > 0)
        reading.notices += [(None, text) for text in self.losses.notices()]
        settings, notices = self.run.settings(file.name)
        reading.settings = settings
        reading.notices += [(None, text) for text in notices]
        reading.facts = self.run.facts(file.name)
        reading.events = self.run.events(file.name) or None
        if self.run.exit_code == 0:
            reading.trail.finished = "W&B recorded exit code 0"
        elif self.run.exit_code is None:
            reading.notices.append((None, "no exit record: the program was killed, or it was still running"))
        self.add_history(reading, file)
        self.add_machine(reading)
        self.add_output(reading, file)
        return reading

    def add_history(self, reading: Reading, file: File) -> None:
        """The series of the history, and the last values of what only the summary holds."""
        series = self.history.finish()
        rows = History(self.history.height, series, self.steps, self.run.metrics, reading.settings or ())
        table, said = table_of(rows, file.columns)
        settled = settle(table, file.columns)
        reading.tracks = rounding.settled(settled.tracks)
        reading.notices += [*((None, text) for text in (*said, *self.history.others())), *settled.notices]
        reading.columns = set(series)
        if len(settled.steps) and table.unit != "row":
            reading.trail.last_step = int(settled.steps.max())
        self.add_summary(reading, file)

    def add_summary(self, reading: Reading, file: File) -> None:
        """The last values of what the history does not hold."""
        items = self.history.items
        last = Rows()
        known = reading.columns | {key for key in items.names if key.startswith("_")}
        for code, value in self.summary.items():
            if items.names[code] not in known and (own := last.items.code(items.names[code])) is not None:
                last.append([own], [value])
        only = {key: float(found.values[-1]) for key, found in last.finish().items()}
        reading.tracks += points(only, file.columns)

    def add_machine(self, reading: Reading) -> None:
        """Measurements of the machine have times but no steps: they are rows of a table of their own."""
        series = self.stats.finish()
        if not series:
            return
        columns = [Column(f"system/{key}", pl.Series(found.values), found.rows) for key, found in series.items()]
        times = pl.Series(self.times, dtype=pl.Float64)
        table = LogTable(self.stats.height, columns, times=times, unit="row")
        reading.tracks += settle(table).tracks
        reading.notices += [(None, f"of the machine: {text}") for text in self.stats.others()]

    def add_output(self, reading: Reading, file: File) -> None:
        """What was printed, as a log inside of this file: its lines are counted from the first one that was printed."""
        member = self.output.file(file)
        if member is None:
            return
        printed = console.read(member)
        held = {(track.phase, track.series) for track in reading.tracks}
        printed.tracks = [track for track in printed.tracks if (track.phase, track.series) not in held]
        if printed.claimed and (printed.tracks or printed.events or printed.settings):
            reading.members[output.MEMBER] = printed


def _union(data: bytes) -> tuple[int, int, bytes]:
    """(number of the record, field number of its kind, message of that kind); 0 and nothing where nothing is read."""
    if data[:1] == _NUMBER_TAG:
        number, place = protobuf.varint(data, 1, len(data))
        if data[place : place + 1] in _FREQUENT:
            length, begin = protobuf.varint(data, place + 1, len(data))
            if begin + length <= len(data):
                return protobuf.signed(number), data[place] >> 3, data[begin : begin + length]
    number = 0
    for field, value in wire.fields(data):
        if field == 1 and isinstance(value, int):
            number = protobuf.signed(value)
        elif field in _KNOWN and isinstance(value, bytes):
            return number, field, value
    return number, 0, b""
