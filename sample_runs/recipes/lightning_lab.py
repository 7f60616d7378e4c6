"""Runs written by Lightning's CSVLogger: metrics.csv and hparams.yaml."""

from __future__ import annotations

import contextlib
import logging
import warnings
from pathlib import Path
from typing import Literal

import lightning
import numpy as np
import torch
from lab import BATCH, Chain, Schedule, TinyLM, adamw, gradient_norm, next_token_loss
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning.*")

Interval = Literal["step", "epoch"]


class LitLM(lightning.LightningModule):
    """The tiny transformer with AdamW and a schedule that Lightning steps every `interval`."""

    def __init__(self, schedule: Schedule, interval: Interval, **facts: object) -> None:
        super().__init__()
        self.save_hyperparameters(facts)
        self.model = TinyLM()
        self.schedule = schedule
        self.interval = interval

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        """Log train_loss."""
        loss = next_token_loss(self.model(batch[0][:, :-1]), batch[0])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        """Log val_loss."""
        self.log("val_loss", next_token_loss(self.model(batch[0][:, :-1]), batch[0]))

    def on_before_optimizer_step(self, _optimizer: torch.optim.Optimizer) -> None:
        """Log the gradient norm before clipping."""
        self.log("grad_norm", gradient_norm(self.model))

    def configure_optimizers(self) -> dict[str, object]:  # type: ignore[override]  # Lightning accepts a plain dict
        """AdamW and the multiplier, stepped as `interval` says."""
        optimizer = adamw(self.model, float(self.hparams["learning_rate"]))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": self.interval}}


def fit(
    run: Path,
    chain: Chain,
    *,
    steps: int,
    steps_per_epoch: int,
    schedule: Schedule,
    interval: Interval = "step",
    validate_every: int = 0,
    log_every: int = 2,
    model: TinyLM | None = None,
    **facts: object,
) -> None:
    """Train on fresh sequences, each seen once; validate every `validate_every` steps when that is not 0.

    model: another one than the usual.
    """
    lightning.seed_everything(0, verbose=False)
    module = LitLM(schedule, interval, **facts)
    module.model = model or module.model
    generator = np.random.default_rng(1)
    held_out = TensorDataset(chain.sample(np.random.default_rng(2), count=512))

    class Fresh(TensorDataset):
        """One epoch's worth of sequences, drawn anew at each access."""

        def __init__(self) -> None:
            super().__init__(torch.empty(steps_per_epoch * BATCH, 0))

        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            return (chain.sample(generator, count=1)[0],)

    with contextlib.chdir(run.parent):
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=CSVLogger(save_dir=".", name=run.name, version="version_0"),
            callbacks=[LearningRateMonitor("step")],
            log_every_n_steps=log_every,
            val_check_interval=validate_every or None,
            check_val_every_n_epoch=None if validate_every else 1,
            limit_val_batches=1.0 if validate_every else 0,
            num_sanity_val_steps=0,
            gradient_clip_val=1.0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(Fresh(), BATCH), DataLoader(held_out, 64) if validate_every else None)
