"""Measures on ids, labels and masks of samples that are tokenised already, or that a tokenizer has just encoded (D41).

Labels count where they are not -100. As in a replayed batch, an end-of-sequence token should be trained where it
follows a token that is trained; one at the start of a text or between the turns of a prompt has no label in any case.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from gradforensics.audit.known import Known
from gradforensics.audit.measures import Found, Measure
from gradforensics.token_ids import MOST_REPEATS, longest_repeats

IGNORED = -100


class Tokens:
    """Adds up block by block; `measures` gives the result."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.samples = 0
        self._lengths: list[np.ndarray] = []
        self._largest: tuple[int, int | None, int | None] = (-1, None, None)
        self._smallest: tuple[int, int | None, int | None] = (0, None, None)
        self._largest_label: tuple[int, int | None, int | None] = (-1, None, None)
        self._names = (
            "ids_outside", "labels_outside", "pads_trained", "eos_behind", "eos_trained", "eos_held", "unlabelled",
            "uneven", "left_padded", "unmasked", "repeated", "whole_text",
        )  # fmt: skip
        self._found = {name: Found() for name in self._names}
        self._labelled = 0  # samples with labels
        self._trained = 0  # labels that count
        self._masked = 0  # samples with a mask
        self._last_of: list[np.ndarray] = []
        self._positions = False
        self._worst: tuple[int, int | None, int | None, str] = (0, None, None, "")

    def add(self, block: pl.DataFrame) -> None:
        """Count a block of the schema BLOCK."""
        held = block.filter(pl.col("ids").is_not_null())
        if not held.height:
            return
        self._positions = bool(held["positions"].any())
        lengths = held["ids"].list.len()
        uneven = held.filter(
            (pl.col("labels").list.len() != lengths).fill_null(value=False)
            | (pl.col("mask").list.len() != lengths).fill_null(value=False)
        )
        self._note("uneven", uneven, np.arange(uneven.height))
        self.samples += held.height
        part = _Part(held)
        self._ids(held, part)
        if held["mask"].null_count() < held.height:
            self._mask(held, part)
        self._ends(held, part)
        if held["labels"].null_count() < held.height:
            self._labels(held, part)
        self._repeats(held, part)

    def _note(self, name: str, rows: pl.DataFrame, which: np.ndarray, total: int = 0) -> None:
        if len(which):
            first = int(which[0])
            self._found[name].add(len(which), total, _place(rows, first))

    # -- ids -----------------------------------------------------------------------------------------------------------

    def _ids(self, held: pl.DataFrame, part: _Part) -> None:
        if len(part.ids):
            for index, best, larger in (
                (int(np.argmax(part.ids)), self._largest, True), (int(np.argmin(part.ids)), self._smallest, False),
            ):  # fmt: skip
                value = int(part.ids[index])
                if larger and value > best[0]:
                    self._largest = (value, *_place(held, int(part.owners[index])))
                elif not larger and value < best[0]:
                    self._smallest = (value, *_place(held, int(part.owners[index])))
        vocabulary = self.known.vocabulary
        if vocabulary:
            self._note("ids_outside", held, part.rows((part.ids < 0) | (part.ids >= vocabulary)))

    def _mask(self, held: pl.DataFrame, part: _Part) -> None:
        masked = part.sizes[part.has_mask] > 0
        self._masked += int(masked.sum())
        self._note("unmasked", held, np.flatnonzero(part.has_mask & (part.sizes > 0) & (part.real == 0)))
        starts = part.starts
        first = np.zeros(len(part.sizes), dtype=bool)
        some = part.has_mask & (part.sizes > 0) & (part.real > 0)
        first[some] = ~part.kept[starts[some]]
        self._note("left_padded", held, np.flatnonzero(first))

    def _ends(self, held: pl.DataFrame, part: _Part) -> None:
        """The last real token of every sample, and whether it ends the text."""
        self._lengths.append(part.real)
        self._last_of.append(part.last())
        if self.known.ends:
            is_end = np.isin(part.ids, list(self.known.ends)) & part.kept
            self._note("eos_held", held, part.rows(is_end))

    # -- labels --------------------------------------------------------------------------------------------------------

    def _labels(self, held: pl.DataFrame, part: _Part) -> None:
        counts = part.label_sizes
        has = counts > 0
        self._labelled += int(has.sum())
        valid = part.labels != IGNORED
        self._trained += int(valid.sum())
        with_any = np.zeros(len(counts), dtype=bool)
        with_any[part.label_owners[valid]] = True
        self._note("unlabelled", held, np.flatnonzero(has & ~with_any))
        if valid.any():
            place = int(np.argmax(part.labels))
            if int(part.labels[place]) > self._largest_label[0]:
                self._largest_label = (int(part.labels[place]), *_place(held, int(part.label_owners[place])))
        vocabulary = self.known.vocabulary
        if vocabulary:
            outside = valid & ((part.labels < 0) | (part.labels >= vocabulary))
            self._note("labels_outside", held, np.unique(part.label_owners[outside]))
        even = np.flatnonzero(counts == part.sizes)
        if not len(even):
            return
        here, there = np.isin(part.owners, even), np.isin(part.label_owners, even)
        self._against(held, part, here, part.labels[there])

    def _against(self, held: pl.DataFrame, part: _Part, here: np.ndarray, labels: np.ndarray) -> None:
        """The labels beside the ids of the same places."""
        ids, kept, owners = part.ids[here], part.kept[here], part.owners[here]
        valid = labels != IGNORED
        pads = np.where(part.has_mask[owners], ~kept, np.isin(ids, list(self.known.pads - self.known.ends)))
        wrong = valid & pads
        self._note("pads_trained", held, np.unique(owners[wrong]), int(wrong.sum()))
        same = np.ones(len(part.sizes), dtype=bool)
        same[owners[~pads & (labels != ids)]] = False
        whole = np.zeros(len(part.sizes), dtype=bool)
        whole[owners[valid]] = True
        self._note("whole_text", held, np.flatnonzero(same & whole))
        if not self.known.ends:
            return
        given = np.isin(ids, list(self.known.ends))
        before = np.zeros(len(ids), dtype=bool)
        before[1:] = valid[:-1] & (owners[1:] == owners[:-1])
        trained = given & valid & (labels == ids)
        behind = given & before & ~valid & (kept | ~part.has_mask[owners])
        self._note("eos_trained", held, np.unique(owners[trained & ~pads]))
        self._note("eos_behind", held, np.unique(owners[(trained & ~pads) | behind]))

    def _repeats(self, held: pl.DataFrame, part: _Part) -> None:
        ids, owners = part.ids[part.kept], part.owners[part.kept]
        if self.known.pads:
            real = ~np.isin(ids, list(self.known.pads))
            ids, owners = ids[real], owners[real]
        if not len(ids):
            return
        found = longest_repeats(ids.astype(np.uint64), owners, held.height)
        self._note("repeated", held, np.flatnonzero(found.times >= MOST_REPEATS))
        worst = int(np.argmax(found.times))
        if found.times[worst] > self._worst[0]:
            start, length = int(found.starts[worst]), int(found.lengths[worst])
            said = str(ids[start : start + length].tolist())
            self._worst = (int(found.times[worst]), *_place(held, worst), said)

    # -- the result ----------------------------------------------------------------------------------------------------

    def measures(self, column: str, labels: str | None) -> Iterator[Measure]:
        """Everything that was measured."""
        if not self.samples:
            return
        lengths = np.concatenate(self._lengths)
        longest = int(lengths.max())
        yield Measure(column, "tokens", float(np.median(lengths)), "tokens (median)", self.samples)
        yield Measure(column, "longest", float(longest), "tokens", int((lengths == longest).sum()))
        yield Measure(column, "empty", float((lengths == 0).mean()), "share of samples", int((lengths == 0).sum()))
        yield Measure(column, "max_id", float(self._largest[0]), "id", 1, *self._largest[1:])
        if self.known.tokenizer_size:
            yield Measure(column, "tokenizer_size", float(self.known.tokenizer_size), "ids")
        if self._smallest[0] < 0:
            yield Measure(column, "min_id", float(self._smallest[0]), "id", 1, *self._smallest[1:])
        known = self.known
        if known.vocabulary:
            yield self._counted(column, "ids_outside", self.samples, f"of {known.vocabulary} ids (vocab_size)")
        if known.longest:
            cut = lengths >= known.longest
            text = f"at {known.longest} tokens"
            yield Measure(column, "cut_off", float(cut.mean()), "share of samples", int(cut.sum()), None, None, text)
        times, row, line, text = self._worst
        yield Measure(column, "repeats", float(times), "times in a row (tokens)", self._found["repeated"].samples, row,
                      line, text)  # fmt: skip
        if self._found["uneven"].samples:
            yield self._counted(column, "uneven", self.samples, "labels or mask of another length than the ids")
        yield from self._end_measures(column, lengths, longest)
        if self._masked:
            with_positions = "with position_ids" if self._positions else "without position_ids"
            yield self._counted(column, "left_padded", self._masked, with_positions)
            yield self._counted(column, "unmasked", self._masked, "the mask has no 1")
        if labels is not None and self._labelled:
            yield from self._label_measures(labels)

    def _end_measures(self, column: str, lengths: np.ndarray, longest: int) -> Iterator[Measure]:
        """How samples end that were not cut at the longest length."""
        limit = min(longest, self.known.longest or longest)
        last = np.concatenate(self._last_of)
        uncut = last[(lengths < limit) & (lengths > 0)]
        yield Measure(
            column, "full", float((lengths >= limit).mean()), "share of samples", int((lengths >= limit).sum())
        )
        if self.known.ends:
            yield self._counted(column, "eos_held", self.samples, f"ids {sorted(self.known.ends)}")
            if len(uncut):
                ended = np.isin(uncut, list(self.known.ends))
                yield Measure(column, "eos_last", float(ended.mean()), "share of uncut samples", int(ended.sum()))
        if len(uncut):
            values, counts = np.unique(uncut, return_counts=True)
            most = int(np.argmax(counts))
            yield Measure(column, "common_end", float(counts[most] / len(uncut)), "share of uncut samples",
                          len(uncut), None, None, f"id {int(values[most])}")  # fmt: skip
        both = self.known.pads & self.known.ends
        if both:
            yield Measure(column, "pad_is_eos", float(min(both)), "id")

    def _label_measures(self, column: str) -> Iterator[Measure]:
        yield Measure(column, "max_label", float(self._largest_label[0]), "id", 1, *self._largest_label[1:])
        if self.known.vocabulary:
            yield self._counted(
                column, "labels_outside", self._labelled, f"of {self.known.vocabulary} ids (vocab_size)"
            )
        yield self._counted(column, "unlabelled", self._labelled, "all labels are ignored")
        yield self._counted(column, "whole_text", self._labelled, "the labels are the whole text")
        pads = self._found["pads_trained"]
        yield Measure(column, "pads_trained", pads.total / max(self._trained, 1), "share of the labels that count",
                      pads.total, pads.row, pads.line)  # fmt: skip
        if self.known.ends:
            yield self._counted(column, "eos_behind", self._labelled, "the trained text ends with EOS")
            yield self._counted(column, "eos_trained", self._labelled, "and EOS has a label")

    def _counted(self, column: str, name: str, whole: int, text: str) -> Measure:
        found = self._found[name]
        value = found.samples / max(whole, 1)
        return Measure(column, name, value, "share of samples", found.samples, found.row, found.line, text)


class _Part:
    """The lists of a block as arrays, all samples one behind the other.

    ids, owners, kept: (n,), the sample that a token belongs to and whether its mask is 1 (True without a mask);
    sizes, starts, real: (samples,), tokens, the place of the first and how many are no padding.
    """

    def __init__(self, held: pl.DataFrame) -> None:
        self.sizes = held["ids"].list.len().to_numpy().astype(np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.sizes)[:-1])).astype(np.int64)
        self.owners = np.repeat(np.arange(held.height), self.sizes)
        self.ids = _flat(held["ids"])
        mask_sizes = held["mask"].list.len().fill_null(0).to_numpy().astype(np.int64)
        self.has_mask = (mask_sizes == self.sizes) & (self.sizes > 0) & held["mask"].is_not_null().to_numpy()
        self.kept = np.ones(len(self.ids), dtype=bool)
        if self.has_mask.any():
            values = _flat(held["mask"])
            there = np.repeat(self.has_mask, mask_sizes)
            self.kept[np.repeat(self.has_mask, self.sizes)] = values[there] != 0
        self.real = np.bincount(self.owners[self.kept], minlength=held.height).astype(np.int64)
        self.label_sizes = held["labels"].list.len().fill_null(0).to_numpy().astype(np.int64)
        self.label_owners = np.repeat(np.arange(held.height), self.label_sizes)
        self.labels = _flat(held["labels"])

    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """The samples of tokens (a mask over all of them), each once."""
        found: np.ndarray = np.unique(self.owners[tokens])
        return found

    def last(self) -> np.ndarray:
        """int64 (samples,): the last token that is no padding, -1 for an empty sample."""
        out = np.full(len(self.sizes), -1, dtype=np.int64)
        out[self.owners[self.kept]] = self.ids[self.kept]  # the last of equal places wins
        return out


def _flat(lists: pl.Series) -> np.ndarray:
    """The elements of all lists; those of empty and missing lists are none."""
    held = lists.filter(lists.list.len().fill_null(0) > 0)
    if not len(held):
        return np.zeros(0, dtype=np.int64)
    flat: np.ndarray = held.explode().fill_null(0).to_numpy()
    return flat


def _place(rows: pl.DataFrame, index: int) -> tuple[int, int | None]:
    return int(rows["row"][index]), rows["line"][index]
