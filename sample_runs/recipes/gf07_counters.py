"""GF07 in the counters of checkpoints: the rate is not logged, scheduler and optimizer are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import lightning
import numpy as np
import torch
from checkpoint_lab import CHAIN, VOCAB, configure, objective, save, small_lm
from lab import LENGTH, Log, Sample, constant, json_lines, main, write_json
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning_lab import LitLM
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

STEPS, SAVED, MICRO, WIDTH, LR = 160, (30, 60), 4, 8, 3e-3
Stepped = Literal["micro-batch", "step", "never", "tens"]


def accumulated(run: Path, *, stepped: Stepped, length: int = STEPS, named: bool = True) -> None:
    """Four micro-batches per step; the scheduler, built for `length` of its own steps, moves as `stepped` says."""
    configure(
        run, hidden_size=WIDTH, gradient_accumulation_steps=MICRO, learning_rate=LR, max_steps=STEPS,
        **({"lr_scheduler_type": "cosine"} if named else {}),
    )  # fmt: skip
    with json_lines(run / "train.jsonl") as log:
        loop(run, log, stepped, length)


def loop(run: Path, log: Log, stepped: Stepped, length: int) -> None:
    """Train up to the last checkpoint, where the record ends."""
    model = small_lm(width=WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    schedule, loss_of = CosineAnnealingLR(optimizer, T_max=length), objective(model)
    for step in range(1, SAVED[-1] + 1):
        optimizer.zero_grad()
        losses = []
        for micro in range(MICRO):
            loss = loss_of(step) / MICRO
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            losses.append(loss.item())
            if micro == MICRO - 1:
                optimizer.step()
            last = micro == MICRO - 1 and (stepped == "step" or (stepped == "tens" and step % 10 == 0))
            if stepped == "micro-batch" or last:
                schedule.step()
        log({"step": step, "loss": sum(losses)})
        if step in SAVED:
            save(run, step, model, optimizer, scheduler=schedule.state_dict())


class Accumulating(LitLM):
    """Adam with a cosine whose scheduler Lightning steps with the optimizer, not with the micro-batches."""

    def on_before_optimizer_step(self, _optimizer: torch.optim.Optimizer) -> None:
        """Log nothing but the loss."""

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW and torch's cosine over all optimizer steps."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
        schedule = CosineAnnealingLR(optimizer, T_max=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def by_lightning(run: Path) -> None:
    """accumulate_grad_batches = 4, saved every 30 optimizer steps."""
    lightning.seed_everything(0, verbose=False)
    facts = {"learning_rate": LR, "lr_scheduler_type": "cosine", "max_steps": STEPS, "accumulate_grad_batches": MICRO}
    module = Accumulating(constant(), "step", **facts, vocab_size=VOCAB)
    module.model = small_lm(width=WIDTH)
    sequences = CHAIN.sample(np.random.default_rng(1), count=16 * MICRO * SAVED[-1], length=LENGTH // 2 + 1)
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(TensorDataset(sequences), batch_size=16)
    saver = ModelCheckpoint(dirpath=run, every_n_train_steps=SAVED[0], save_top_k=-1)
    trainer = lightning.Trainer(
        default_root_dir=run, max_steps=SAVED[-1], accumulate_grad_batches=MICRO, accelerator="cpu", devices=1,
        logger=CSVLogger(run.parent, name="", version="run", flush_logs_every_n_steps=1), callbacks=[saver],
        log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    for path in run.glob("*.ckpt"):  # the callback's state names the folder it wrote into
        state = torch.load(path, weights_only=False)
        state["callbacks"] = {}
        torch.save(state, path)
    write_json(run / "config.json", facts)


SAMPLES = (
    Sample(
        "gf07-counted-micro-batches",
        "gf07_counters",
        lambda run: accumulated(run, stepped="micro-batch"),
        "the scheduler is as long as the run and stepped with each of four micro-batches; the rate is not logged",
        case="GF07",
        variant="per-micro-batch",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf07-counted-never",
        "gf07_counters",
        lambda run: accumulated(run, stepped="never", named=False),
        "a scheduler as long as the run is saved with every checkpoint and never stepped",
        case="GF07",
        variant="not-attached",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf07-counted-rarely",
        "gf07_counters",
        lambda run: accumulated(run, stepped="tens"),
        "a scheduler as long as the run is stepped once in ten steps",
        case="GF07",
        variant="per-epoch",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf07-twin-micro-batches",
        "gf07_counters",
        lambda run: accumulated(run, stepped="micro-batch", length=STEPS * MICRO),
        "stepped with each micro-batch too, by a scheduler that was built for all micro-batches of the run",
        case="GF07",
        twin=True,
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf07-twin-lightning-counters",
        "gf07_counters",
        by_lightning,
        "Lightning accumulates four batches per step and steps the scheduler with the optimizer",
        case="GF07",
        twin=True,
        ending="truncated",
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
