"""GF16: attention masks and positions that do not follow the padding."""

from __future__ import annotations

from pathlib import Path

import data_lab
import hf_lab
from data_lab import EOS, PAD, Fields, Samples, documents, padded, write_lines
from lab import Sample, console, main, write_json

STEPS = 120
COUNT = 480


def with_trainer(run: Path, rows: list[Fields]) -> None:
    """Train a GPT-2 with the HF Trainer, and keep the file of its data."""
    write_lines(run / "train.jsonl", rows)
    model = hf_lab.tiny_gpt2()
    model.config.update({"pad_token_id": PAD, "eos_token_id": EOS})
    hf_lab.fit(run, model, Samples(rows), steps=STEPS)


def left(run: Path) -> None:
    """Left padding with its mask and without position ids: learned positions start inside of the padding."""
    with_trainer(run, [padded([*one, EOS], left=True) for one in documents(COUNT)])


def left_with_positions(run: Path) -> None:
    """The same with position_ids = cumsum(mask) - 1."""
    rows = [padded([*one, EOS], left=True) for one in documents(COUNT)]
    for row in rows:
        gone = row["attention_mask"].count(0)
        row["position_ids"] = [max(0, i - gone) for i in range(len(row["input_ids"]))]
    with_trainer(run, rows)


def in_settings(run: Path) -> None:
    """Only the configuration says that batches are padded on the left."""
    rows = [padded([*one, EOS], left=True) for one in documents(COUNT)]
    write_json(run / "config.json", data_lab.config(STEPS, model_type="gpt2", padding_side="left"))
    with console(run / "train.log") as log:
        data_lab.fit(rows, log, steps=STEPS)
        print("Training completed")


def empty_masks(run: Path) -> None:
    """Samples that a filter emptied are padding from end to end."""
    with_trainer(run, [padded([*one, EOS] if i % 40 else []) for i, one in enumerate(documents(COUNT))])


SAMPLES = (
    Sample(
        "gf16-left-in-data",
        "gf16",
        left,
        "HF Trainer: left-padded data without position_ids for a GPT-2",
        case="GF16",
        variant="left-in-data",
    ),
    Sample(
        "gf16-left-in-settings",
        "gf16",
        in_settings,
        "left padding for a model with learned positions; only its configuration says so",
        case="GF16",
        variant="left-in-settings",
        primary="",
    ),
    Sample(
        "gf16-empty-masks",
        "gf16",
        empty_masks,
        "HF Trainer: one sample in 40 has no token, its attention mask no 1",
        case="GF16",
        variant="empty-masks",
        primary="",
    ),
    Sample(
        "gf16-twin",
        "gf16",
        left_with_positions,
        "HF Trainer: left-padded data with position_ids from the mask",
        case="GF16",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
