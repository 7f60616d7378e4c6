"""Lines of JSON by their shape: where all that differs between two lines are their numbers and words.

A logger writes the same keys in the same order, line after line. One such line is decoded by the standard library and
becomes a Shape: the texts around its scalars. Lines of that shape are cut at their commas as a table is, all that is no
scalar is compared with the shape, and the scalars become columns. That is exact: every scalar is checked against the
grammar of JSON, and a line that departs in anything is left over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from gradforensics.evidence.blocks import Plain, split
from gradforensics.evidence.cells import Cells, Part, settled

Decode = Callable[[str], Mapping[str, Any] | None]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s,:{}\[\]"]+')
_COLON = re.compile(r"\s*:")
# a number as json.loads takes it, but for -0, which is the whole number 0 there
_NUMBER = r"^(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)|0|-?[1-9][0-9]*)$"
_LONGEST = 256  # bytes of a number that polars may read
_MOST_FIELDS = 512
_NEW_SHAPES = 8  # in one block
_KNOWN_SHAPES = 16
_FEWEST = 16  # lines that are worth looking for a shape


@dataclass(frozen=True, slots=True)
class Shape:
    """A line cut at its commas.

    fields: what stands before and after the scalar of each, or the whole field where it has none; names: the flattened
    keys in their order, each with the field that holds its scalar.
    """

    fields: tuple[tuple[str, str] | str, ...]
    names: tuple[tuple[str, int], ...]


def shape_of(line: str, decode: Decode) -> Shape | None:
    """The shape of a line, where it can be cut at its commas and `decode` takes it."""
    spans = [m.span() for m in _TOKEN.finditer(line) if line[m.start()] != '"' or not _COLON.match(line, m.end())]
    fields: list[tuple[str, str] | str] = []
    numbered: list[str] = []
    start = 0
    for index, text in enumerate(line.split(",")):
        end = start + len(text)
        scalars = [span for span in spans if start <= span[1] - 1 and span[0] < end]
        if len(scalars) > 1 or any(a < start or b > end for a, b in scalars):
            return None
        for a, b in scalars:
            fields.append((line[start:a], line[b:end]))
            numbered.append(f"{line[start:a]}{index}{line[b:end]}")
        if not scalars:
            fields.append(text)
            numbered.append(text)
        start = end + 1
        if index >= _MOST_FIELDS:
            return None
    named = decode(",".join(numbered))
    if named is None or not all(type(field) is int for field in named.values()):
        return None
    return Shape(tuple(fields), tuple(named.items()))


class Shapes:
    """The shapes of one file's lines, learnt as they come."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: list[Shape] = []

    def take(self, block: Plain) -> tuple[list[Part], list[int]]:
        """(the rows of all lines that have a shape, the other lines' places in the block)."""
        dangling = block.array[block.ends - 1] == ord(",")  # the empty cell behind it would look like none
        left = np.flatnonzero(~dangling)
        parts: list[Part] = []
        if self._known:
            frame = split(_lines(block, left), ",", max(len(shape.fields) for shape in self._known) + 1)
            for shape in list(self._known):
                if not len(left):
                    break
                frame, left = self._match(shape, frame, left, parts)
        others: list[int] = np.flatnonzero(dangling).tolist()
        for _ in range(_NEW_SHAPES):
            if len(left) < _FEWEST:
                break
            first = int(left[0])
            new = shape_of(block.line(first), self._decode)
            if new is not None and new not in self._known:
                frame = split(_lines(block, left), ",", len(new.fields) + 1)
                _, left = self._match(new, frame, left, parts)
            if len(left) and left[0] == first:
                others.append(first)
                left = left[1:]
        return parts, sorted([*others, *left.tolist()])

    def _match(
        self, shape: Shape, frame: pl.DataFrame, left: np.ndarray, parts: list[Part]
    ) -> tuple[pl.DataFrame, np.ndarray]:
        """Take the lines of one shape out of those that are left."""
        fits = _fitting(shape, frame)
        if not fits.any():
            return frame, left
        tokens = _tokens(shape, frame if fits.all() else frame.filter(fits))
        fields, sound = _fields(tokens)
        if sound is not None:
            places = np.flatnonzero(fits.to_numpy())[~sound.to_numpy()]
            fits = fits.scatter(places, values=False)
            fields, _ = _fields(tokens.filter(sound))
        taken = fits.to_numpy()
        if taken.any():
            parts.append(Part(left[taken], [(name, fields[index]) for name, index in shape.names]))
            self._known = [shape, *(other for other in self._known if other != shape)][:_KNOWN_SHAPES]
        return frame.filter(~fits), left[~taken]


def _lines(block: Plain, places: np.ndarray) -> bytes:
    """Only these lines of a block."""
    if len(places) == len(block.ends):
        return block.data
    starts = np.concatenate([[0], block.ends[:-1] + 1])[places].tolist()
    return b"".join(block.data[a : b + 1] for a, b in zip(starts, block.ends[places].tolist(), strict=True))


def _fitting(shape: Shape, frame: pl.DataFrame) -> pl.Series:
    """Boolean: the lines that consist of the texts of the shape, whatever stands in place of its scalars."""
    conditions = [pl.col(str(len(shape.fields))).is_null()]
    for index, around in enumerate(shape.fields):
        column = pl.col(str(index))
        if isinstance(around, str):
            conditions.append(column == around)
            continue
        before, after = around
        conditions.append(column.str.starts_with(before) if before else column.is_not_null())
        if after:
            conditions.append(column.str.ends_with(after))
    return frame.select(pl.all_horizontal(conditions).fill_null(value=False)).to_series()


def _tokens(shape: Shape, frame: pl.DataFrame) -> pl.DataFrame:
    """The texts of the scalars, one column for each, called after its field."""
    return frame.select(
        pl.col(str(index)).str.strip_prefix(around[0]).str.strip_suffix(around[1])
        for index, around in enumerate(shape.fields)
        if not isinstance(around, str)
    )


def _fields(tokens: pl.DataFrame) -> tuple[dict[int, Cells], pl.Series | None]:
    """(the cells of every field, None), or (nothing, the lines in which all texts are scalars) where some are not."""
    numeric = tokens.select(pl.all().str.contains(_NUMBER) & (pl.all().str.len_bytes() <= _LONGEST))
    values = tokens.select(pl.all().cast(pl.Float64, strict=False))
    odd = {name: ~numeric[name] for name in tokens.columns if not numeric[name].all()}
    wrong = [
        tokens[name].is_in(broken)
        for name, mask in odd.items()
        if (broken := [text for text in tokens[name].filter(mask).unique().to_list() if not _is_scalar(text)])
    ]
    if wrong:
        return {}, ~pl.DataFrame([w.alias(str(i)) for i, w in enumerate(wrong)]).max_horizontal()
    return {int(name): _cells(tokens[name], values[name], odd.get(name)) for name in tokens.columns}, None


def _is_scalar(text: str) -> bool:
    try:
        return not isinstance(json.loads(text), (dict, list))
    except (ValueError, RecursionError):
        return False


def _cells(tokens: pl.Series, values: pl.Series, odd: pl.Series | None) -> Cells:
    states: np.ndarray | None = None
    if odd is not None:
        values, states = settled(values, odd, tokens, lambda text: json.loads(text or ""))
    return Cells(values, states, lambda i: json.loads(tokens[i]), partial(_strings, tokens, states))


def _strings(tokens: pl.Series, states: np.ndarray | None, count: int) -> list[str | None]:
    """The first values as far as they are strings."""
    if states is None:
        return [None] * count
    return [json.loads(text) if '"' in text else None for text in tokens.head(count).to_list()]
