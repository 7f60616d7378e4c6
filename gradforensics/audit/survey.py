"""Files of samples -> rows of the table `data`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import polars as pl

from gradforensics.audit.blocks import UnreadError
from gradforensics.audit.copies import Copies, is_held_out, pairs
from gradforensics.audit.files import DataFile
from gradforensics.audit.known import Coder, Known
from gradforensics.audit.measures import Measure
from gradforensics.audit.texts import Texts
from gradforensics.audit.tokens import Tokens
from gradforensics.notices import Notice
from gradforensics.schemas import TABLES

ENCODED = 32 << 20  # characters of a file that are encoded with the tokenizer
_AT_ONCE = 512  # texts that the tokenizer gets at once


@dataclass
class Audited:
    """What the audit of one file found. read: whether it could be read at all."""

    name: str
    measures: list[Measure] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    read: bool = True


def audit(files: Sequence[DataFile], known: Known, coder: Coder | None = None) -> list[Audited]:
    """Audit files of samples, each on its own and those of the evaluation against those of the training.

    coder: a tokenizer for the texts, whose first 32 million characters it encodes. What cannot be read is a notice.
    """
    done: list[Audited] = []
    copies: list[Copies] = []
    columns: list[str] = []
    for file in files:
        found, same = _one(file, known, coder)
        done.append(found)
        copies.append(same)
        columns.append(file.roles.text_name or file.roles.ids or "")
    for held, trained in pairs([one.name for one in done]):
        measure = copies[held].overlap(copies[trained], done[trained].name, columns[held])
        if measure is not None:
            done[held].measures.append(measure)
    return done


def _one(file: DataFile, known: Known, coder: Coder | None) -> tuple[Audited, Copies]:
    texts, tokens, encoded, same = Texts(), Tokens(known), Tokens(known), Copies()
    spent, left_out = 0, 0
    found = Audited(file.name)
    try:
        for block in file.blocks():
            texts.add(block)
            tokens.add(block)
            same.add(block)
            if coder is not None and block["text"].null_count() < block.height:
                if spent < ENCODED:
                    spent += _encode(block, coder, encoded)
                else:
                    left_out += block.height
    except UnreadError as error:
        file.tell(None, str(error))
        found.read = texts.samples + tokens.samples > 0
    if left_out:
        file.tell(
            None, f"the tokenizer encoded the first {spent >> 20} million characters; {left_out} samples were not"
        )
    if not same.complete:
        file.tell(None, f"copies were looked for among the first samples only, of {same.seen}")
    use = "evaluation" if is_held_out(file.name) else "training"
    column = file.roles.text_name or file.roles.ids or ""
    if found.read:
        found.measures.append(Measure(column, "samples", float(file.rows), "samples", file.rows, None, None, use))
        if file.bad:
            found.measures.append(Measure(column, "unread", file.bad / max(file.rows + file.bad, 1),
                                          "share of records", file.bad))  # fmt: skip
        found.measures += texts.measures(file.roles.text_name)
        found.measures += same.measures(column)
        found.measures += tokens.measures(file.roles.ids or "", file.roles.labels)
        found.measures += encoded.measures(f"{file.roles.text_name} (tokenizer)", None)
    found.notices = list(file.notices)
    return found, same


def _encode(block: pl.DataFrame, coder: Coder, into: Tokens) -> int:
    """Encode the texts of a block; returns how many characters they have."""
    held = block.filter(pl.col("text").is_not_null())
    for part in held.iter_slices(_AT_ONCE):
        ids = pl.Series("ids", coder.encode(part["text"].to_list()), dtype=pl.List(pl.Int64))
        nothing = pl.lit(None, dtype=pl.List(pl.Int64))
        into.add(part.with_columns(ids, nothing.alias("labels"), nothing.alias("mask")))
    return int(held["text"].str.len_chars().sum())


def rows_of(audited: Iterable[Audited]) -> pl.DataFrame:
    """The table `data`."""
    rows = [
        (one.name, m.column, m.quantity, m.value, m.unit, m.count, m.row, m.line, m.text)
        for one in audited
        for m in one.measures
    ]
    return pl.DataFrame(rows, schema=TABLES["data"], orient="row")
