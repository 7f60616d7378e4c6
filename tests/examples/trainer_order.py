"""Trains with the Hugging Face Trainer and prints, per case, the samples of every step as they came and as rebuilt.

python trainer_order.py EXAMPLE FOLDER: EXAMPLE is the folder of the example's train.py, FOLDER takes checkpoints.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]  # it brings no types
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from transformers import PrinterCallback, Trainer, TrainingArguments

SAMPLES = 43  # six micro-batches of 8, the last of them short


class Watched(Trainer):
    """Notes the ids of every micro-batch, by optimizer step."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: dict[int, list[list[int]]] = defaultdict(list)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Draw random numbers as dropout does: the order must not depend on it."""
        self.seen[self.state.global_step + 1].append(inputs["input_ids"][:, 0].tolist())
        torch.rand(3)
        loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss


def case(example: Any, folder: Path, resume: int, accumulation: int, **options: Any) -> dict[str, Any]:
    """One training: what came and what was rebuilt, by step."""
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=3, per_device_train_batch_size=example.BATCH,
        gradient_accumulation_steps=accumulation, save_strategy="steps", save_steps=4, report_to="none",
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    samples = [{"input_ids": torch.tensor([i, i]), "labels": torch.tensor([-100, i])} for i in range(SAMPLES)]
    trainer = Watched(model=example.make_model(), args=arguments, train_dataset=samples)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{resume}") if resume else None)
    seed = arguments.data_seed if arguments.data_seed is not None else arguments.seed
    rebuilt = {
        step: example.data_order(step, seed, samples=len(samples), accumulation=accumulation) for step in trainer.seen
    }
    return {"seen": trainer.seen, "rebuilt": rebuilt}


def second_of_two(example: Any) -> dict[str, Any]:
    """Three epochs of the second rank, as accelerate shares the batches out: no second process is needed for that."""
    samples = torch.arange(SAMPLES)
    loader = DataLoader(TensorDataset(samples), batch_size=8, sampler=RandomSampler(samples))
    mine = prepare_data_loader(loader, num_processes=2, process_index=1, use_seedable_sampler=True, data_seed=3)
    seen: list[list[list[int]]] = []
    for epoch in range(3):
        mine.set_epoch(epoch)
        ids = [batch[0].tolist() for batch in mine]
        seen += [ids[place : place + 2] for place in range(0, len(ids), 2)]
    options = {"samples": len(samples), "batch": 8, "accumulation": 2, "world_size": 2, "rank": 1}
    steps = range(1, len(seen) + 1)
    rebuilt = {step: example.data_order(step, 3, **options) for step in steps}
    return {"seen": dict(zip(steps, seen, strict=True)), "rebuilt": rebuilt}


def main(example_folder: str, folder: str) -> None:
    """Print all cases as JSON."""
    torch.set_num_threads(1)
    sys.path.insert(0, example_folder)
    example = importlib.import_module("train")
    cases = {
        "one after the other": case(example, Path(folder) / "a", 0, 1, seed=3),
        "accumulated": case(example, Path(folder) / "b", 0, 4, seed=3),
        "resumed within an epoch": case(example, Path(folder) / "a", 12, 1, seed=3),
        "with workers and a data seed": case(
            example, Path(folder) / "c", 0, 2, seed=3, data_seed=11, dataloader_num_workers=2
        ),
        "second of two ranks": second_of_two(example),
    }
    sys.stdout.write(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
