"""Trains with Lightning and prints, per case, the samples of every step as they came and as rebuilt.

python lightning_order.py EXAMPLE: EXAMPLE is the folder of the example's train.py.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 50, 8


class Watched(lightning.LightningModule):
    """Notes the ids of every micro-batch, by optimizer step."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(1, 1), nn.Dropout(dropout))
        self.seen: dict[int, list[list[int]]] = defaultdict(list)

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        """The ids are the data."""
        self.seen[self.global_step + 1].append(batch[0][:, 0].long().tolist())
        loss: Tensor = self.layer(batch[0]).mean()
        return loss

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        """Nothing is measured."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any will do."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def case(
    example: Any,
    accumulation: int,
    *,
    workers: int = 0,
    own: bool = False,
    dropout: float = 0.0,
    validate: bool = False,
) -> dict[str, Any]:
    """One training: what came and what was rebuilt, by step. own: the loader has a generator of its own."""

    def make() -> tuple[Watched, DataLoader[Any]]:
        lightning.seed_everything(3, verbose=False)
        module = Watched(dropout)
        generator = torch.Generator().manual_seed(5) if own else None
        data = TensorDataset(torch.arange(float(SAMPLES))[:, None])
        return module, DataLoader(data, BATCH, shuffle=True, generator=generator, num_workers=workers)

    module, loader = make()
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", accumulate_grad_batches=accumulation, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader, DataLoader(TensorDataset(torch.zeros(4, 1)), 2) if validate else None)
    order = example.DataOrder(make()[1], accumulation)
    return {"seen": module.seen, "rebuilt": {step: order.ids(step) for step in module.seen}}


def main(example_folder: str) -> None:
    """Print all cases as JSON."""
    torch.set_num_threads(1)
    sys.path.insert(0, example_folder)
    example = importlib.import_module("train")
    cases = {
        "one after the other": case(example, 1),
        "accumulated": case(example, 3),
        "with workers": case(example, 2, workers=1),
        "with a generator of its own, dropout and validation": case(example, 2, own=True, dropout=0.5, validate=True),
        "near miss: dropout draws from the same generator": case(example, 2, dropout=0.5),
    }
    sys.stdout.write(json.dumps(cases) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
