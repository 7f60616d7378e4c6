"""Measures on the texts of samples: characters, lengths, empty and repeated ones, repeated n-grams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from gradforensics.audit.measures import Found, Measure, quoted
from gradforensics.token_ids import MOST_REPEATS, longest_repeats

# Unicode categories: Cf (format: U+200B to U+200F, U+FEFF, U+00AD ...) and Cc without tab and line breaks
CHARACTERS = {"zero_width": r"\p{Cf}", "control": r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", "replacement": "\ufffd"}
_ANY = r"[\p{Cf}\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\x{fffd}]"


class Texts:
    """Adds up block by block; `measures` gives the result. name: what the table calls the text."""

    def __init__(self) -> None:
        self.samples = 0
        self.characters = 0
        self._odd = {name: Found() for name in CHARACTERS}
        self._empty, self._no_answer = Found(), Found()
        self._answers = 0
        self._lengths: list[np.ndarray] = []
        self._longest: tuple[int, int, int | None] = (-1, 0, None)
        self._repeated = Found()
        self._worst: tuple[int, int, int | None, str] = (0, 0, None, "")

    def add(self, block: pl.DataFrame) -> None:
        """Count a block of the schema BLOCK."""
        held = block.select("row", "line", "text").filter(pl.col("text").is_not_null())
        answers = block.select("row", "line", "answer").filter(pl.col("answer").is_not_null())
        self._answers += answers.height
        self._note(self._no_answer, answers.filter(pl.col("answer").str.strip_chars() == ""))
        if not held.height:
            return
        held = held.with_columns(pl.col("text").str.len_chars().alias("length"))
        self.samples += held.height
        self.characters += int(held["length"].sum())
        self._note(self._empty, held.filter(pl.col("text").str.strip_chars() == ""))
        lengths = held["length"].to_numpy().astype(np.int64)
        self._lengths.append(lengths)
        most = int(np.argmax(lengths))
        if int(lengths[most]) > self._longest[0]:
            self._longest = (int(lengths[most]), *_place(held, most))
        odd = held.filter(pl.col("text").str.contains(_ANY))
        for name, pattern in CHARACTERS.items():
            counted = odd.with_columns(pl.col("text").str.count_matches(pattern).alias("n")).filter(pl.col("n") > 0)
            if counted.height:
                found = counted["text"].head(1).str.extract(f"({pattern})").item()
                self._note(self._odd[name], counted, int(counted["n"].sum()), _named(found))
        self._repeats(held)

    def _note(self, found: Found, rows: pl.DataFrame, total: int = 0, text: str = "") -> None:
        if rows.height:
            found.add(rows.height, total, _place(rows, 0), text)

    def _repeats(self, held: pl.DataFrame) -> None:
        """Repeated n-grams of words, as white space separates them."""
        words = (
            held.select(pl.col("text").str.replace_all("\n", " ", literal=True).str.split(" "))
            .with_row_index("owner")
            .explode("text")
            .filter(pl.col("text").str.len_bytes() > 0)
        )
        if not words.height:
            return
        owners = words["owner"].to_numpy().astype(np.int64)
        found = longest_repeats(words["text"].hash().to_numpy(), owners, held.height)
        many = np.flatnonzero(found.times >= MOST_REPEATS)
        if len(many):
            self._repeated.add(len(many), 0, _place(held, int(many[0])))
        worst = int(np.argmax(found.times))
        if found.times[worst] > self._worst[0]:
            start, length = int(found.starts[worst]), int(found.lengths[worst])
            said = " ".join(words["text"][start : start + length].to_list())
            self._worst = (int(found.times[worst]), *_place(held, worst), quoted(said))

    def measures(self, column: str) -> Iterator[Measure]:
        """Everything that was measured."""
        if not self.samples:
            return
        lengths = np.concatenate(self._lengths)
        most, row, line = self._longest
        yield Measure(column, "length", float(np.median(lengths)), "characters (median)", self.samples)
        yield Measure(column, "longest", float(most), "characters", 1, row, line)
        yield _share(column, "empty", self._empty, self.samples)
        if self._answers:
            yield _share(column, "empty_answer", self._no_answer, self._answers)
        for name, found in self._odd.items():
            value = found.total / max(self.characters, 1)
            yield Measure(column, name, value, "share of characters", found.samples, found.row, found.line, found.text)
        times, row, line, text = self._worst
        yield Measure(
            column, "repeats", float(times), "times in a row (words)", self._repeated.samples, row, line, text
        )


def _place(rows: pl.DataFrame, index: int) -> tuple[int, int | None]:
    return int(rows["row"][index]), rows["line"][index]


def _share(column: str, quantity: str, found: Found, whole: int) -> Measure:
    value = found.samples / max(whole, 1)
    return Measure(column, quantity, value, "share of samples", found.samples, found.row, found.line)


def _named(character: str | None) -> str:
    return f"U+{ord(character):04X}" if character else ""
