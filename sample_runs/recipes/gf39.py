"""GF39: samples that are seen again, in the training or in the evaluation."""

from __future__ import annotations

from pathlib import Path

import data_lab
import hf_lab
import numpy as np
from data_lab import EOS, Document, Samples, documents, padded, text_of, write_lines
from lab import BATCH, Sample, main

STEPS = 160


def texts(docs: list[Document]) -> list[dict[str, object]]:
    """The texts of documents without their EOS."""
    return [{"text": text_of(one[:-1])} for one in docs]


def ended(count: int, seed: int) -> list[Document]:
    """Documents that end with EOS, all of one chain."""
    return [[*one, EOS] for one in documents(count, seed=seed)]


def with_evaluation(run: Path, train: list[Document], held_out: list[Document]) -> None:
    """HF Trainer with an evaluation set; the texts of both are kept."""
    write_lines(run / "train.jsonl", texts(train))
    write_lines(run / "eval.jsonl", texts(held_out))
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        Samples([padded(one) for one in train]),
        steps=STEPS,
        evaluate=Samples([padded(one) for one in held_out]),
        eval_strategy="steps",
        eval_steps=20,
    )


def overlap(run: Path) -> None:
    """Most of the evaluation was drawn from the training data."""
    train = ended(STEPS * BATCH // 2, 1)
    with_evaluation(run, train, [*train[:120], *ended(80, 2)])


def clean(run: Path) -> None:
    """New documents for the evaluation, two epochs over the training data."""
    with_evaluation(run, ended(STEPS * BATCH // 2, 1), ended(200, 2))


def copies(run: Path) -> None:
    """A file that was appended to itself in part."""
    train = ended(1200, 1)
    with_evaluation(run, [*train, *train[:600]], ended(200, 2))


def staircase(run: Path) -> None:
    """Few sequences, a model that can remember them, seven epochs: the loss steps down where an epoch begins."""
    docs = [[*one, EOS] for one in documents(320, low=26, high=30)]
    rows = [padded(one) for one in docs]
    generator = np.random.default_rng(0)
    for row in rows:  # a first token of its own, so that a sample can be known again
        row["input_ids"][:3] = row["labels"][:3] = generator.integers(data_lab.FIRST, 64, size=3).tolist()
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(width=256),
        Samples(rows),
        steps=7 * 20,
        learning_rate=3e-3,
        lr_scheduler_type="constant_with_warmup",
        logging_steps=1,
    )


SAMPLES = (
    Sample(
        "gf39-eval-overlap",
        "gf39",
        overlap,
        "HF Trainer: 60 % of the evaluation samples are training samples",
        case="GF39",
        variant="eval-overlap",
    ),
    Sample(
        "gf39-copies",
        "gf39",
        copies,
        "HF Trainer: a third of the training samples are exact copies of others",
        case="GF39",
        variant="copies",
        primary="",
    ),
    Sample(
        "gf39-epoch-steps",
        "gf39",
        staircase,
        "HF Trainer: seven epochs over 320 samples; the loss steps down at each",
        case="GF39",
        variant="epoch-steps",
        primary="",
    ),
    Sample(
        "gf39-twin",
        "gf39",
        clean,
        "HF Trainer: two epochs over enough samples, an evaluation on new ones",
        case="GF39",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
