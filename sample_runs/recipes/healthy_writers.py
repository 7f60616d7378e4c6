"""Healthy runs whose checkpoints were written by the frameworks: nothing may be said of any of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_writers as writers
import hf_lab
import lightning
import torch
from checkpoint_lab import VOCAB, small_lm
from healthy_others import perceptron, rings
from lab import Sample, main
from lightning.pytorch.loggers import CSVLogger
from lightning_lab import Keeper, neutralise
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)

STEPS, SAVED = 80, (60, 61)
PEAK = 3e-3


def by_fsdp2() -> writers.Setup:
    """Of each process of `dcp`."""
    return writers.Setup(writers.words(), STEPS, SAVED)


def by_fsdp1() -> writers.Setup:
    """Of each process, with the older FSDP."""
    return writers.Setup(writers.words(), STEPS, SAVED[:1], sharding="fsdp1")


def by_ddp() -> writers.Setup:
    """Of each process, rank 0 of which saves."""
    return writers.Setup(small_lm(layers=1, width=8), STEPS, SAVED, sharding="ddp")


def accelerated(run: Path) -> None:
    """Accelerate's save_state."""
    model = small_lm(layers=1, width=8)
    writers.accelerate(run, model, torch.optim.AdamW(model.parameters(), lr=PEAK), steps=STEPS, saved=SAVED)


def in_shards(run: Path) -> None:
    """The Trainer, its weights in three files."""
    writers.trainer(run, hf_lab.tiny_gpt2(VOCAB, width=8, layers=1), steps=STEPS, saved=SAVED, shard_bytes=4000)


def accumulated(run: Path) -> None:
    """Lightning with four micro-batches per step."""
    writers.pytorch_lightning(run, small_lm(layers=1, width=8), steps=STEPS, saved=SAVED, accumulate=4)


class Adversaries(lightning.LightningModule):  # type: ignore[misc]  # mypy is told not to follow lightning
    """A GAN in Lightning, which counts the steps of both optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = perceptron(4, 2, width=16), perceptron(2, 1, width=16)

    def training_step(self, batch: list[Tensor], _index: int) -> None:
        """Update both."""
        real = batch[0]
        by_generator, by_discriminator = self.optimizers()
        fake = self.generator(torch.randn(len(real), 4))
        judged = functional.softplus(-self.discriminator(real)).mean()
        judged = judged + functional.softplus(self.discriminator(fake.detach())).mean()
        by_discriminator.zero_grad()
        self.manual_backward(judged)
        by_discriminator.step()
        made = functional.softplus(-self.discriminator(fake)).mean()
        by_generator.zero_grad()
        self.manual_backward(made)
        by_generator.step()
        for schedule in self.lr_schedulers():
            schedule.step()
        self.log_dict({"loss_G": made, "loss_D": judged})

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[LRScheduler]]:
        """Adam for each."""
        generator, discriminator = (
            torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.5, 0.999))
            for net in (self.generator, self.discriminator)
        )
        both: list[torch.optim.Optimizer] = [generator, discriminator]
        return both, [torch.optim.lr_scheduler.StepLR(optimizer, 250) for optimizer in both]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take this machine's folders out."""
        neutralise(checkpoint)


def two_in_lightning(run: Path) -> None:
    """The GAN: 300 batches, 600 steps."""
    lightning.seed_everything(0, verbose=False)
    points = TensorDataset(rings(torch.Generator().manual_seed(1), 300 * 64))
    with contextlib.chdir(run.parent):
        lightning.Trainer(
            max_steps=600,
            accelerator="cpu",
            logger=CSVLogger(save_dir=".", name=run.name, version="version_0"),
            callbacks=[Keeper(run, 400), Keeper(run, 402)],
            log_every_n_steps=5,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Adversaries(), DataLoader(points, 64))


def _run(name: str, make: Callable[[Path], None], note: str, ending: str = "completed") -> Sample:
    return Sample(
        f"healthy-{name}", "healthy_writers", make, note, case="GF30", twin=True, ending=ending, checkpoints=True
    )


SAMPLES = (
    _run("fsdp2", lambda run: writers.dcp(run, by_fsdp2), "fully_shard on two processes, saved with DCP"),
    _run("fsdp1", lambda run: writers.dcp(run, by_fsdp1), "FSDP on two processes, saved with DCP"),
    _run("ddp-rank-0", lambda run: writers.dcp(run, by_ddp), "two processes, of which rank 0 saves"),
    _run(
        "zero2", lambda run: writers.deepspeed(run, small_lm(layers=1, width=8), steps=STEPS, saved=SAVED),
        "DeepSpeed's layout: bfloat16 weights, float32 masters in two parts",
    ),
    _run("accelerate", accelerated, "Accelerate's save_state: weights sorted by name, states by number"),
    _run("sharded", in_shards, "the Trainer, weights in three files"),
    _run("lightning-accumulation", accumulated, "Lightning, four micro-batches per step"),
    _run("lightning-gan", two_in_lightning, "two optimizers under manual optimization", ending="unknown"),
)  # fmt: skip

if __name__ == "__main__":
    main(SAMPLES)
