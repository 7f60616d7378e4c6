"""Training data for the recipes: documents of a Markov chain as token ids and as texts, their batches, their files."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from lab import BATCH, LENGTH, VOCAB, Chain, Log, TinyLM, adamw, constant, cosine, plain_config, scheduler, train
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

PAD, EOS = 0, 1
FIRST = 2
"""The lowest id of the text."""
IGNORED = -100
WIDE = LENGTH + 1

Document = list[int]
Fields = dict[str, list[int]]


def documents(count: int, seed: int = 1, low: int = 10, high: int = 28, chain: Chain | None = None) -> list[Document]:
    """Sequences of `low` to `high` tokens of a chain over ids 2 to 63."""
    generator = np.random.default_rng(seed)
    chain = chain or Chain.make(vocab=VOCAB - FIRST)
    tokens = (chain.sample(generator, count=count, length=high) + FIRST).tolist()
    lengths = generator.integers(low, high + 1, size=count)
    return [row[:n] for row, n in zip(tokens, lengths.tolist(), strict=True)]


def padded(document: Document, *, pad: int = PAD, prompt: int = 0, width: int = WIDE, left: bool = False) -> Fields:
    """Ids, mask and labels of one document; the labels of the first `prompt` tokens and of pads are ignored."""
    ids = document[:width]
    room = width - len(ids)
    labels = [IGNORED] * min(prompt, len(ids)) + ids[prompt:]
    fill = ([pad] * room, [0] * room, [IGNORED] * room)
    parts = (ids, [1] * len(ids), labels)
    laid = [f + p if left else p + f for f, p in zip(fill, parts, strict=True)]
    return dict(zip(("input_ids", "attention_mask", "labels"), laid, strict=True))


def write_lines(path: Path, records: Sequence[Mapping[str, object]]) -> None:
    """One JSON object per line, as datasets write them."""
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(dict(record), ensure_ascii=False) + "\n" for record in records)


class Samples(Dataset[dict[str, Tensor]]):
    """Padded documents for the Trainer."""

    def __init__(self, rows: Sequence[Fields]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: torch.tensor(values) for name, values in self.rows[index].items()}


def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over the labels that are not -100."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED)


def fit(
    rows: Sequence[Fields],
    log: Log,
    *,
    steps: int,
    lr: float = 3e-3,
    order: Callable[[int], Sequence[int]] | None = None,
    steady: bool = False,
) -> None:
    """Train the tiny model on padded documents, in the order of the file, again from its start when it ends.

    order: the rows of a step (default: the next BATCH rows); steady: a constant rate after the warm-up.
    """
    torch.manual_seed(0)
    model = TinyLM()
    ids = torch.tensor([row["input_ids"] for row in rows])
    labels = torch.tensor([row["labels"] for row in rows])

    def objective(step: int) -> Tensor:
        chosen = [((step - 1) * BATCH + i) % len(rows) for i in range(BATCH)] if order is None else list(order(step))
        loss: Tensor = masked_loss(model(ids[chosen][:, :-1]), labels[chosen])
        return loss

    optimizer = adamw(model, lr)
    schedule = scheduler(optimizer, constant(20) if steady else cosine(20, steps))
    train(model, optimizer, objective, log, steps=steps, schedule=schedule)


def config(steps: int, **facts: object) -> dict[str, object]:
    """Configuration of these runs."""
    common: dict[str, object] = {
        "learning_rate": 3e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 20,
        "max_steps": steps,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
    }
    return plain_config(**(common | facts))


WORDS = tuple(
    a + b
    for a in ("ba", "co", "di", "fe", "gu", "ha", "jo", "ki")
    for b in ("lan", "mer", "nos", "pit", "rus", "sel", "tam", "vor")
)


def text_of(document: Document) -> str:
    """The text of a document: one word per id."""
    return " ".join(WORDS[token] for token in document)


def told(error: BaseException) -> str:
    """The traceback of an error as its program would have printed it, with the folders of another machine."""
    text = "".join(traceback.format_exception(error))
    text = re.sub(r'File "[^"]*/site-packages/', 'File "/opt/venv/lib/python3.11/site-packages/', text)
    return re.sub(r'File "[^"]*/recipes/\w+\.py"', 'File "train.py"', text)


def append_traceback(log: Path, error: BaseException) -> None:
    """Write an error at the end of a console log, where its program would have left it."""
    with log.open("a", encoding="utf-8") as stream:
        stream.write(told(error))
