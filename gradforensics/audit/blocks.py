"""Some samples as a frame: what all formats are read into."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl

from gradforensics.audit.heads import Roles

# row counts samples from 1; line is that of a text file, null elsewhere; text: all texts of the sample, one behind the
# other; answer: those that the model is to give; a list is null where the sample has none
BLOCK: dict[str, Any] = {
    "row": pl.UInt32, "line": pl.UInt32, "text": pl.String, "answer": pl.String, "ids": pl.List(pl.Int64),
    "labels": pl.List(pl.Int64), "mask": pl.List(pl.Int64), "positions": pl.Boolean,
}  # fmt: skip
Row: TypeAlias = tuple[
    int, int | None, str | None, str | None, list[int] | None, list[int] | None, list[int] | None, bool
]


class UnreadError(Exception):
    """A file that is not read at all; the text says why, in words for the user."""


_SURROGATE = re.compile("[\ud800-\udfff]")
_LARGEST = 1 << 62
_ASSISTANT = frozenset({"assistant", "gpt", "model", "bot"})


def row_of(number: int, line: int | None, record: Mapping[str, Any], roles: Roles) -> Row | None:
    """The sample of a record; None where it has none of the columns."""
    texts: list[str] = []
    answers: list[str] = []
    held = False
    for name in roles.texts:
        value = record.get(name)
        if isinstance(value, str):
            held = True
            texts.append(value)
            if name in roles.answers:
                answers.append(value)
        elif isinstance(value, list):
            held = True
            said, answered = _chat(value)
            texts += said
            answers += answered
    ids, labels, mask = (_ints(record.get(name)) if name else None for name in (roles.ids, roles.labels, roles.mask))
    if not held and ids is None:
        return None
    return (
        number, line, _joined(texts) if held else None, _joined(answers) if answers else None, ids, labels, mask,
        roles.positions is not None,
    )  # fmt: skip


def _joined(texts: Sequence[str]) -> str:
    text = "\n".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write and no encoding can
        return _SURROGATE.sub("\ufffd", text)
    return text


def _chat(turns: Sequence[Any]) -> tuple[list[str], list[str]]:
    """(all texts, those of the model) of a conversation, whatever its keys are."""
    said: list[str] = []
    answered: list[str] = []
    for turn in turns:
        if isinstance(turn, str):
            said.append(turn)
            continue
        if not isinstance(turn, Mapping):
            continue
        content = turn.get("content", turn.get("value"))
        parts = content if isinstance(content, list) else [content]
        texts = [p if isinstance(p, str) else p.get("text") for p in parts if isinstance(p, (str, Mapping))]
        found = [t for t in texts if isinstance(t, str)]
        said += found
        if turn.get("role", turn.get("from")) in _ASSISTANT:
            answered += found
    return said, answered


def _ints(value: Any) -> list[int] | None:
    if not isinstance(value, list):
        return None
    if value and isinstance(value[0], list) and len(value) == 1:  # a batch of one
        value = value[0]
    return [v for v in value if type(v) is int and -_LARGEST < v < _LARGEST]


def frame_of(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows as a frame."""
    columns = list(zip(*rows, strict=True))
    return pl.DataFrame(
        [pl.Series(name, column, dtype=BLOCK[name]) for name, column in zip(BLOCK, columns, strict=True)]
    )
