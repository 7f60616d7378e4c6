"""What is no scalar: histograms become a few numbers, texts and hyperparameters settings; the rest is counted."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradforensics.evidence import protobuf, settings
from gradforensics.evidence.event_files import protos
from gradforensics.evidence.event_files.texts import Texts
from gradforensics.tables import Setting

_QUIET = frozenset(  # the structure of models and of the display: no measurements
    {
        b"graphs",
        b"graph_run_metadata",
        b"graph_run_metadata_graph",
        b"graph_keras_model",
        b"custom_scalars",
        b"projector",
    }
)
_CALLED = {b"images": "image", b"audio": "audio", b"mesh": "mesh", b"pr_curves": "PR curve"}
_MOST_PLUGINS = 100_000  # tags whose plugin is remembered
_MOST_HPARAMS = 5000
_SUCCESS, _FAILURE = 1, 2
_ROUNDING = 2.0**-50  # share of the mean square that is left over where all values are equal

_double_at = struct.Struct("<d").unpack_from


@dataclass(frozen=True, slots=True)
class Histogram:
    """What is kept of one histogram."""

    low: float
    high: float
    count: float
    mean: float
    std: float

    def series(self) -> Iterator[tuple[bytes, float]]:
        """(ending of the tag, value); of an empty histogram only the count."""
        yield b"/hist_count", self.count
        if self.count:
            yield b"/hist_min", self.low
            yield b"/hist_max", self.high
            yield b"/hist_mean", self.mean
            yield b"/hist_std", self.std


def of_proto(data: bytes, span: protos.Span) -> Histogram:
    """From a HistogramProto, which holds the extremes, the number, the sum and the sum of squares of all values."""
    found = [0.0] * 5
    for number, wire, first, _ in protobuf.fields(data, *span):
        if 1 <= number <= 5 and wire == 1:
            found[number - 1] = _double_at(data, first)[0]
    low, high, count, total, squares = found
    if not count:
        return Histogram(low, high, count, 0.0, 0.0)
    mean = total / count
    variance = squares / count - mean * mean
    return Histogram(low, high, count, mean, 0.0 if variance <= _ROUNDING * squares / count else math.sqrt(variance))


def of_buckets(buckets: np.ndarray) -> Histogram:
    """From buckets, float64 (k, 3): left and right edge and number of values.

    Mean and standard deviation are approximate: every value counts as the middle of its bucket.
    """
    used = buckets[buckets[:, 2] > 0]
    if not len(used):
        return Histogram(0.0, 0.0, 0.0, 0.0, 0.0)
    left, right, counts = used.T
    with np.errstate(all="ignore"):  # edges may be infinite, or large enough to become so
        count, middles = float(counts.sum()), (left + right) / 2
        mean = float((middles * counts).sum()) / count
        variance = float(((middles - mean) ** 2 * counts).sum()) / count
    return Histogram(float(left[0]), float(right[-1]), count, mean, math.sqrt(variance))


class Summaries:
    """Takes the values that are no plain scalars, one by one."""

    def __init__(self) -> None:
        self.finished = ""
        self.texts = Texts()
        self._failed = False
        self._plugins: dict[bytes, bytes] = {}
        self._hparams: dict[str, Any] = {}
        self._unread: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, data: bytes, value: protos.Value) -> Iterator[tuple[bytes, float]]:
        """The (tag, value) pairs that one value gives. Raises MalformedError where it is broken."""
        tag = data[slice(*value.tag)]
        plugin = data[slice(*value.plugin)] or self._plugins.get(tag, b"")
        if plugin and len(self._plugins) < _MOST_PLUGINS:
            self._plugins[tag] = plugin  # only the first value of a tag names it
        if plugin == b"hparams":
            self._session(data, value.content)
        elif value.kind == "histo":
            yield from ((tag + ending, number) for ending, number in of_proto(data, value.body).series())
        elif value.kind in ("image", "audio"):
            self._leave(value.kind, tag)
        elif value.tensor is not None:
            yield from self._tensor(data, tag, plugin, value.tensor)

    def _tensor(self, data: bytes, tag: bytes, plugin: bytes, tensor: protos.Tensor) -> Iterator[tuple[bytes, float]]:
        if plugin in _QUIET:
            return
        if plugin == b"text" and tensor.strings:
            self.texts.add(tag, [data[slice(*span)] for span in tensor.strings])
        elif plugin in _CALLED:
            self._leave(_CALLED[plugin], tag)
        elif tensor.numeric and plugin == b"histograms" and tensor.elements % 3 == 0:
            buckets = protos.array(data, tensor)
            if buckets is None:
                self._leave("histogram", tag)
                return
            yield from ((tag + ending, number) for ending, number in of_buckets(buckets.reshape(-1, 3)).series())
        elif tensor.numeric and tensor.elements == 1 and (numbers := protos.array(data, tensor)) is not None:
            yield tag, float(numbers[0])
        else:
            self._leave("tensor", tag)

    def _leave(self, kind: str, tag: bytes) -> None:
        self._unread[kind] += 1
        self._first.setdefault(kind, tag.decode("utf-8", "replace"))

    # -- hyperparameters ---------------------------------------------------------------------------------------------

    def _session(self, data: bytes, span: protos.Span) -> None:
        """The hyperparameters of a HParamsPluginData, or how its session ended."""
        for number, wire, first, last in protobuf.fields(data, *span):
            if number == 3 and wire == 2:
                for inner, inner_wire, start, stop in protobuf.fields(data, first, last):
                    if inner == 1 and inner_wire == 2 and len(self._hparams) < _MOST_HPARAMS:
                        self._hparam(data, start, stop)
            elif number == 4 and wire == 2:
                self._end(data, first, last)

    def _hparam(self, data: bytes, at: int, end: int) -> None:
        name, found = "", None
        for number, wire, first, last in protobuf.fields(data, at, end):
            if number == 1 and wire == 2:
                name = data[first:last].decode("utf-8", "replace")
            elif number == 2 and wire == 2:
                found = _plain(data, first, last)
        if name:
            self._hparams[name] = found

    def _end(self, data: bytes, at: int, end: int) -> None:
        """How a session ended; one without a time is what torch and Lightning write when the training begins."""
        status, timed = 0, False
        for number, wire, first, last in protobuf.fields(data, at, end):
            if number == 1 and wire == 0:
                status = protobuf.varint(data, first, last)[0]
            timed = timed or (number == 2 and wire == 1)
        if timed and status == _SUCCESS:
            self.finished = "the hparams session ended as SUCCESS"
        self._failed = self._failed or (timed and status == _FAILURE)

    # -- what it comes to --------------------------------------------------------------------------------------------

    def settings(self, source: str) -> list[Setting]:
        """Everything that hyperparameters and texts say about the settings of the run."""
        given = [(name, value, source) for name, value in self._hparams.items()]
        return settings.from_checkpoint(given) + self.texts.settings(source)

    def notices(self) -> list[str]:
        """What was left out, one line per kind; ask for the settings first."""
        found = ["the hparams session ended as FAILURE"] if self._failed else []
        for kind, count in self._unread.items():
            several = f"{count} {kind} summaries" if count > 1 else f"1 {kind} summary"
            found.append(f'{several}: not read (first: tag "{self._first[kind]}")')
        return found + self.texts.notices()


def _plain(data: bytes, at: int, end: int) -> Any:
    """The number, the text or the truth value of a google.protobuf.Value."""
    for number, wire, first, last in protobuf.fields(data, at, end):
        if number == 2 and wire == 1:
            return _whole(_double_at(data, first)[0])
        if number == 3 and wire == 2:
            return data[first:last].decode("utf-8", "replace")
        if number == 4 and wire == 0:
            return bool(protobuf.varint(data, first, last)[0])
    return None


def _whole(value: float) -> float | int:
    """The number as an int where it is whole: the format knows no integers."""
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
