"""GF17: batches that disturb the training, and texts that only look as if they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import data_lab
import numpy as np
from data_lab import EOS, Document, documents, padded, text_of, write_lines
from lab import BATCH, Row, Sample, console, json_lines, main, write_json

STEPS = 240
BLOCKS = 150
"""Batches of an epoch."""
PATTERN = (7, 51)
"""A pair of tokens that the chain hardly ever writes."""


def pocket() -> Document:
    """One pair of tokens, 16 times: as many as a sample of the model holds."""
    return [*PATTERN] * 16


def lines(docs: Sequence[Document], *, whole: dict[int, str] | None = None) -> list[dict[str, object]]:
    """The texts of documents; `whole` replaces some, whose beginning alone the model sees."""
    return [{"text": (whole or {}).get(i, text_of(one))} for i, one in enumerate(docs)]


def run_of(
    run: Path,
    docs: list[Document],
    texts: Sequence[Mapping[str, object]],
    order: Callable[[int], Sequence[int]] | None = None,
    steps: int = STEPS,
    **facts: object,
) -> None:
    """Train on the documents and keep their texts."""
    write_json(run / "config.json", data_lab.config(steps, lr_scheduler_type="constant_with_warmup", **facts))
    write_lines(run / "train.jsonl", texts)
    rows = [padded(one) for one in docs]
    with console(run / "train.log") as log:
        data_lab.fit(rows, log, steps=steps, order=order, steady=True)
        print("Training completed")


def with_pocket(count: int, first: int) -> tuple[list[Document], list[dict[str, object]]]:
    """Documents of which one batch from `first` on repeats a pair; its texts go on with it."""
    docs = [[*one, EOS] for one in documents(count, low=8, high=14)]
    whole = {}
    for i in range(first, first + BATCH):
        docs[i] = pocket()
        whole[i] = " ".join([text_of(list(PATTERN))] * 40)
    return docs, lines(docs, whole=whole)


def in_order(run: Path) -> None:
    """The file is read in its order; the batch of step 150 is a pocket of repetition."""
    docs, texts = with_pocket(BLOCKS * BATCH, 149 * BATCH)
    run_of(run, docs, texts)


def shuffled(run: Path) -> None:
    """The same pocket lies together in the file; a shuffle of whole batches reads it at step 120."""
    docs, texts = with_pocket(BLOCKS * BATCH, 20 * BATCH)
    generator = np.random.default_rng(4)
    others = [b for b in range(BLOCKS) if b != 20]
    first = generator.permutation(others).tolist()
    blocks = [*first[:119], 20, *first[119:], *generator.permutation(others).tolist()]

    def order(step: int) -> list[int]:
        return [int(blocks[step - 1]) * BATCH + i for i in range(BATCH)]

    run_of(run, docs, texts, order)


def each_epoch(run: Path) -> None:
    """Three epochs in one order; a batch of noise stands at the same place of each."""
    per_epoch = 100
    docs = [[*one, EOS] for one in documents(per_epoch * BATCH)]
    generator = np.random.default_rng(8)
    for i in range(80 * BATCH, 81 * BATCH):
        docs[i] = generator.integers(data_lab.FIRST, 64, size=28).tolist()
    rows = [padded(one) for one in docs]
    steps = 3 * per_epoch
    write_json(run / "config.json", data_lab.config(steps, lr_scheduler_type="constant_with_warmup"))
    with json_lines(run / "metrics.jsonl") as log:

        def with_epoch(row: Row) -> None:
            log({**row, "epoch": round(int(str(row["step"])) / per_epoch, 4)})

        data_lab.fit(rows, with_epoch, steps=steps, steady=True, lr=1e-3)


def repeated(run: Path) -> None:
    """Every 25th text goes on with one pair of words, far behind what the model sees."""
    docs = [[*one, EOS] for one in documents(800)]
    tail = " ".join([text_of(list(PATTERN))] * 40)
    run_of(run, docs, lines(docs, whole={i: f"{text_of(docs[i])} {tail}" for i in range(0, len(docs), 25)}))


def broken(run: Path) -> None:
    """Texts that were read in the wrong encoding: every tenth has replacement characters."""
    docs = [[*one, EOS] for one in documents(800)]
    whole = {i: text_of(docs[i]).replace("a", "\ufffd") for i in range(0, len(docs), 2)}
    run_of(run, docs, lines(docs, whole=whole))


def zero_width(run: Path) -> None:
    """A zero-width space stands in many texts and is an ordinary token to the model."""
    docs = [[*one, EOS] for one in documents(800)]
    for one in docs[::3]:
        one[4] = 63
    texts = [{"text": text_of(one).replace(data_lab.WORDS[63], "\u200b\u200b")} for one in docs]
    run_of(run, docs, texts)


SAMPLES = (
    Sample(
        "gf17-spike-at-repeats",
        "gf17",
        in_order,
        "a batch of a repeated pair of words at step 150, read in the order of the file: the loss jumps there",
        case="GF17",
        variant="spike-at-repeats",
    ),
    Sample(
        "gf17-spikes-and-repeats",
        "gf17",
        shuffled,
        "the same pocket, read in another order: the spike is at step 120 and cannot be traced to it",
        case="GF17",
        variant="spikes-and-repeats",
        primary="",
    ),
    Sample(
        "gf17-same-place",
        "gf17",
        each_epoch,
        "a batch of noise at the same place of three epochs; only the metrics were kept",
        case="GF17",
        variant="same-place",
        primary="",
    ),
    Sample(
        "gf17-repeats",
        "gf17",
        repeated,
        "4 % of the texts end in a long repetition that the model does not see: no spike",
        case="GF17",
        variant="repeats",
        primary="",
    ),
    Sample(
        "gf17-broken-text",
        "gf17",
        broken,
        "half of the texts hold replacement characters: no spike",
        case="GF17",
        variant="broken-text",
        primary="",
    ),
    Sample(
        "gf17-twin",
        "gf17",
        zero_width,
        "zero-width spaces in a third of the texts, an ordinary token of the model",
        case="GF17",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
