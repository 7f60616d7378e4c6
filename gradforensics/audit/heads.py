"""Which columns a file of samples has, and whether a file is training data at all and no log of metrics."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["text", "chat", "ints", "other"]

# In the order in which they stand in a sample. Names that data sets of Hugging Face, LLaMA-Factory and trl have.
TEXTS = (
    "system", "text", "content", "document", "article", "passage", "context", "prompt", "question", "query",
    "instruction", "input", "inputs", "source", "sentence", "sentence1", "sentence2", "premise", "hypothesis",
    "messages", "conversations", "conversation", "dialogue", "completion", "response", "output", "outputs", "answer",
    "target", "targets", "summary", "chosen", "rejected",
)  # fmt: skip
ANSWERS = frozenset({"completion", "response", "output", "outputs", "answer", "target", "targets", "summary"})
IDS = ("input_ids", "token_ids", "tokens", "ids")
LABELS = ("labels", "label_ids", "target_ids")
MASKS = ("attention_mask",)
POSITIONS = ("position_ids",)
_ASKED = frozenset({"prompt", "question", "query", "instruction", "input", "source", "context"})
_NAMED = re.compile(
    r"(?:^|[/_.-])(?:data|datasets?|corpus|train|training|sft|samples|valid|validation|val|dev|eval|test)s?(?=[/_.-]|$)"
)
_HEAD_RECORDS = 50


@dataclass(frozen=True, slots=True)
class Roles:
    """The columns that are audited: texts in their order (`answers` among them), ids, labels, mask, position ids."""

    texts: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    ids: str | None = None
    labels: str | None = None
    mask: str | None = None
    positions: str | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything to audit."""
        return bool(self.texts or self.ids)

    @property
    def text_name(self) -> str:
        """What the table calls the text of a sample."""
        return "+".join(self.texts)


def kind_of(value: Any) -> Kind:
    """What a value of a sample is."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list) and value:
        if isinstance(value[0], Mapping) and ({"content", "value"} & value[0].keys()):
            return "chat"
        if all(isinstance(v, int) and not isinstance(v, bool) for v in value[:8]):
            return "ints"
    return "other"


def kinds_of(records: Iterable[Mapping[str, Any]]) -> dict[str, Kind]:
    """The kinds of all columns of some records; a column that is empty at first takes its kind from a later one."""
    found: dict[str, Kind] = {}
    for record in records:
        for name, value in record.items():
            if found.get(name, "other") == "other":
                found[name] = kind_of(value)
    return found


def roles_of(columns: Mapping[str, Kind]) -> Roles:
    """The roles of columns by their names; where no name is known, every column of text is one of the sample."""
    low = {name.lower().strip(): name for name in columns}
    texts = tuple(low[t] for t in TEXTS if t in low and columns[low[t]] in ("text", "chat"))
    ints = {name for name, kind in columns.items() if kind == "ints"}

    def first(names: Iterable[str]) -> str | None:
        return next((low[n] for n in names if n in low and low[n] in ints), None)

    ids = first(IDS)
    if not texts and ids is None:
        texts = tuple(name for name, kind in columns.items() if kind in ("text", "chat"))
    answers = tuple(t for t in texts if t.lower().strip() in ANSWERS)
    return Roles(texts, answers, ids, first(LABELS), first(MASKS), first(POSITIONS))


def is_training_data(columns: Mapping[str, Kind], name: str) -> bool:
    """Whether columns are plainly those of samples; name: the path of the file, which decides for a lone text.

    The caller rules out what has columns of metrics.
    """
    low = {n.lower().strip(): kind for n, kind in columns.items()}
    if any(low.get(n) == "ints" for n in ("input_ids", "token_ids")):
        return True
    if any(low.get(n) == "chat" for n in ("messages", "conversations", "conversation")):
        return True
    texts = {n for n, kind in low.items() if kind == "text"}
    if texts & _ASKED and texts & (ANSWERS | {"chosen"}):
        return True
    return bool(texts & {"text", "content"}) and _NAMED.search(name.lower()) is not None


def columns_of_head(start: str, suffix: str) -> dict[str, Kind]:
    """The columns of a file by the beginning of its text; empty where it is no JSON lines, JSON array or CSV."""
    bare = start.lstrip("\ufeff \t\r\n")
    if suffix in (".jsonl", ".ndjson", ".json", ".jsonlines") and bare.startswith(("{", "[")):
        return kinds_of(_records(bare))
    if suffix in (".csv", ".tsv"):
        return csv_columns(start, "\t" if suffix == ".tsv" else ",")
    return {}


def _records(text: str) -> list[dict[str, Any]]:
    """The whole objects at the beginning of a text, one behind the other or in an array."""
    decoder = json.JSONDecoder()
    at = 1 if text.startswith("[") else 0
    found: list[dict[str, Any]] = []
    while len(found) < _HEAD_RECORDS:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict):
            break
        found.append(value)
    return found


def csv_columns(start: str, separator: str) -> dict[str, Kind]:
    """The columns of a CSV by its first rows: text where a cell is no number."""
    try:
        rows = list(csv.reader(start.lstrip("\ufeff").splitlines(keepends=True)[:_HEAD_RECORDS], delimiter=separator))
    except csv.Error:
        return {}
    if len(rows) < 2:
        return {}
    columns: dict[str, Kind] = {}
    for index, name in enumerate(rows[0]):
        cells = [row[index] for row in rows[1:] if index < len(row) and row[index]]
        columns[name] = "text" if any(not _is_number(cell) for cell in cells) else "other"
    return columns


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
