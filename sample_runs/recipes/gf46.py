"""GF46: averaged copies of the weights that are none, and the healthy ones that look like it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import lightning
import numpy as np
import torch
from checkpoint_lab import CHAIN, VOCAB, configure, objective, small_lm
from lab import BATCH, Sample, TinyLM, adamw, console, constant, current_lr, main
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning_lab import LitLM
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

STEPS, SAVED, WIDTH = 240, (120, 240), 8
Update = Callable[[int], None]
Pack = Callable[[nn.Module], dict[str, object]]


def train(run: Path, prepare: Callable[[TinyLM], tuple[Update, Pack]], rate: float = 3e-3) -> None:
    """Train, call the average's update after every step, and save what `pack` makes of the model after two of them."""
    torch.set_num_threads(1)
    model = small_lm(width=WIDTH)
    optimizer, loss = adamw(model, rate), objective(model)
    update, pack = prepare(model)
    configure(run, hidden_size=WIDTH, learning_rate=rate, max_steps=STEPS)
    with console(run / "train.log") as log:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            update(step)
            if step % 10 == 0:
                log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in SAVED:
                state = {"optimizer": optimizer.state_dict(), "step": step} | pack(model)
                torch.save(state, run / f"checkpoint-{step}.pt")


def swa_utils(*, called: bool = True) -> Callable[[TinyLM], tuple[Update, Pack]]:
    """An AveragedModel with PyTorch's EMA under the key "ema"; called: whether the loop updates it."""

    def prepare(model: TinyLM) -> tuple[Update, Pack]:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))  # type: ignore[no-untyped-call]  # torch's own

        def update(_step: int) -> None:
            if called:
                average.update_parameters(model)

        return update, lambda live: {"model": live.state_dict(), "ema": average.state_dict()}

    return prepare


def by_hand(
    *, copied: bool = True, decay: float = 0.99, dtype: torch.dtype = torch.float32
) -> Callable[[TinyLM], tuple[Update, Pack]]:
    """An EMA of the loop's own, saved as timm saves it.

    copied: whether it is a copy of the model, and not the model itself; dtype: in which it is kept and updated.
    """

    def prepare(model: TinyLM) -> tuple[Update, Pack]:
        average = copy.deepcopy(model).to(dtype) if copied else model

        def update(_step: int) -> None:
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs.to(dtype), 1 - decay)

        return update, lambda live: {"state_dict": live.state_dict(), "state_dict_ema": average.state_dict()}

    return prepare


def late(model: TinyLM) -> tuple[Update, Pack]:
    """Stochastic weight averaging that is to begin at 75 % of a run that was stopped before."""
    average = AveragedModel(model)

    def update(step: int) -> None:
        if step > 0.75 * 2 * STEPS:
            average.update_parameters(model)

    return update, lambda live: {"model": live.state_dict(), "swa_model": average.state_dict()}


class Saving(lightning.Callback):  # type: ignore[misc]  # mypy is told not to follow lightning
    """Saves as ModelCheckpoint does, but without the path of the folder, which that one keeps in the file."""

    def on_train_batch_end(self, trainer: lightning.Trainer, *_facts: object) -> None:
        """Save after every 60th step."""
        if trainer.global_step % 60 == 0:
            trainer.save_checkpoint(f"checkpoints/step={trainer.global_step}.ckpt")


def through_lightning(run: Path) -> None:
    """Lightning's own callback: the average lies in `state_dict`, the live weights in `current_model_state`."""
    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    module = LitLM(constant(), "step", learning_rate=3e-3, vocab_size=VOCAB, max_steps=120)
    module.model = TinyLM(vocab=VOCAB, width=WIDTH)
    tokens = TensorDataset(CHAIN.sample(np.random.default_rng(1), count=120 * BATCH))
    with contextlib.chdir(run):
        trainer = lightning.Trainer(
            max_steps=120,
            accelerator="cpu",
            logger=CSVLogger(save_dir=".", name="", version="version_0"),
            callbacks=[EMAWeightAveraging(decay=0.99), Saving()],
            log_every_n_steps=2,
            gradient_clip_val=1.0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(tokens, BATCH))


SAMPLES = (
    Sample(
        "gf46-never-updated",
        "gf46",
        lambda run: train(run, swa_utils(called=False)),
        "an AveragedModel is made and saved, and the loop never calls update_parameters",
        case="GF46",
        variant="never-updated",
        checkpoints=True,
    ),
    Sample(
        "gf46-rounded",
        "gf46",
        lambda run: train(run, by_hand(decay=0.9999, dtype=torch.bfloat16), rate=1e-3),
        "an EMA with decay 0.9999 that is kept in bfloat16: nearly all of its steps are rounded away",
        case="GF46",
        variant="rounded",
        checkpoints=True,
    ),
    Sample(
        "gf46-live-equals",
        "gf46",
        lambda run: train(run, by_hand(copied=False)),
        "the average is the model itself: the loop lacks a deepcopy",
        case="GF46",
        variant="live-equals",
        checkpoints=True,
    ),
    Sample(
        "gf46-twin",
        "gf46",
        lambda run: train(run, by_hand()),
        "an EMA with decay 0.99 under timm's key",
        case="GF46",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf46-twin-late",
        "gf46",
        lambda run: train(run, late),
        "stochastic weight averaging before its start: the average is still the initial model",
        case="GF46",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf46-twin-lightning",
        "gf46",
        through_lightning,
        "Lightning's EMAWeightAveraging: the average in state_dict, the live weights in current_model_state",
        case="GF46",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
