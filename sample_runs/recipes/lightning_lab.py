"""Runs written by Lightning's CSVLogger: metrics.csv and hparams.yaml."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import lightning
import numpy as np
import torch
from lab import BATCH, Chain, Schedule, TinyLM, adamw, gradient_norm, next_token_loss
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
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
        self.before_step: Callable[[int], object] = lambda _step: None

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

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *limits: object, **more: object) -> None:
        """Clip as the Trainer was told, then call the hook."""
        super().configure_gradient_clipping(optimizer, *limits, **more)
        self.before_step(self.global_step + 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take this machine's folders out."""
        neutralise(checkpoint)

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW and the multiplier, stepped as `interval` says."""
        optimizer = adamw(self.model, float(self.hparams["learning_rate"]))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": self.interval}}


def neutralise(checkpoint: dict[str, Any]) -> None:
    """Take this machine's folders out of what ModelCheckpoint remembers."""
    for state in checkpoint.get("callbacks", {}).values():
        for key, value in state.items():
            if isinstance(value, str) and value.startswith("/"):
                state[key] = f"/workspace/run/{value.rpartition('/run/')[2]}"


class Keeper(ModelCheckpoint):
    """Saves after one step only, not also after its multiples."""

    __qualname__ = "ModelCheckpoint"  # its state is kept under the name of the class

    def __init__(self, run: Path, step: int) -> None:
        super().__init__(f"{run.name}/checkpoints", "{step}", save_top_k=-1, every_n_train_steps=step)
        self._step = step

    def on_train_batch_end(self, trainer: lightning.Trainer, *arguments: Any, **more: Any) -> None:
        """Save where this is the step."""
        if trainer.global_step == self._step:
            super().on_train_batch_end(trainer, *arguments, **more)


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
    saved: Collection[int] = (),
    before_step: Callable[[int], object] | None = None,
    accumulate: int = 1,
    **facts: object,
) -> None:
    """Train on fresh sequences, each seen once; validate every `validate_every` steps when that is not 0.

    model: another one than the usual. saved: optimizer steps after which a checkpoint is kept. before_step: called with
    the step between clipping and the optimizer's step. accumulate: micro-batches per step; steps_per_epoch counts them.
    """
    lightning.seed_everything(0, verbose=False)
    module = LitLM(schedule, interval, **facts)
    module.model = model or module.model
    module.before_step = before_step or module.before_step
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
            callbacks=[LearningRateMonitor("step"), *(Keeper(run, step) for step in saved)],
            accumulate_grad_batches=accumulate,
            log_every_n_steps=log_every,
            val_check_interval=validate_every or None,
            check_val_every_n_epoch=None if validate_every else 1,
            limit_val_batches=1.0 if validate_every else 0,
            num_sanity_val_steps=0,
            gradient_clip_val=1.0,
            enable_checkpointing=bool(saved),
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(Fresh(), BATCH), DataLoader(held_out, 64) if validate_every else None)
