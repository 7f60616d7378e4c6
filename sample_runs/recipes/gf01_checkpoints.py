"""GF01 in checkpoints: parts of a model that no gradient or no update reaches, and parts that are meant to stay."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection
from pathlib import Path

import lightning
import numpy as np
import torch
from checkpoint_lab import CHAIN, VOCAB, configure, objective, save, small_lm, train_and_save
from hf_lab import fit, fresh, tiny_gpt2
from lab import BATCH, LENGTH, Sample, TinyLM, adamw, console, current_lr, gradient_norm, main, next_token_loss, train
from lab import silent as unlogged
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, SAVED = 90, (30, 90)
LR = 3e-3
SMALL = 8


def cut_before(module: nn.Module, how: Callable[[Tensor], Tensor] = Tensor.detach) -> None:
    """Let nothing upstream of a module get the gradient of what it is given."""
    module.register_forward_pre_hook(lambda _module, inputs: (how(inputs[0]), *inputs[1:]))


def plain(
    run: Path,
    model: TinyLM,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    before: Callable[[int], object] | None = None,
    saved: Collection[int] = SAVED,
    **facts: object,
) -> None:
    """Train in a plain loop, the whole console in train.log; before: called with the step before its forward pass."""
    configure(run, learning_rate=LR, lr_scheduler_type="constant", max_steps=STEPS, **facts)
    loss = objective(model)

    def of_step(step: int) -> Tensor:
        if before is not None:
            before(step)
        return loss(step)

    with console(run / "train.log") as log:
        used = optimizer or adamw(model, LR)
        train_and_save(run, model, used, of_step, log, steps=STEPS, saved=saved, every=3)
        print("Training completed")


def pretrained() -> TinyLM:
    """A model that has learned already, the usual beginning of a run with frozen layers."""
    model = small_lm(width=SMALL)
    train(model, adamw(model, LR), objective(model, seed=7), unlogged, steps=60)
    return model


def possibly_cut(run: Path) -> None:
    """The graph is cut behind the first block of a pretrained model: that looks as if it were frozen on purpose."""
    model = pretrained()
    cut_before(model.blocks[1])
    plain(run, model)


def frozen(run: Path) -> None:
    """The first block is frozen on purpose, the optimizer holds it all the same, and the configuration says so."""
    model = pretrained()
    for part in (model.embedding, model.position, model.blocks[0]):
        part.requires_grad_(requires_grad=False)
    plain(run, model, freeze_layers=1)


def left_out(run: Path) -> None:
    """The optimizer is built from the embeddings and the blocks only: the last norm and the head stay as they began."""
    model = small_lm(width=SMALL)
    model.head = nn.Linear(model.head.in_features, VOCAB)
    parts = [*model.embedding.parameters(), *model.position.parameters(), *model.blocks.parameters()]
    plain(run, model, torch.optim.AdamW(parts, lr=LR, betas=(0.9, 0.95), weight_decay=0.1))


def zero_gradient(run: Path) -> None:
    """What enters the second block is detached, and the sum that should keep its gradient is multiplied by 0."""
    model = small_lm(width=SMALL)
    cut_before(model.blocks[1], lambda hidden: hidden.detach() + 0.0 * hidden)
    plain(run, model)


def stopped(run: Path) -> None:
    """Full fine-tuning in which a condition on the step detaches what enters the second block from step 41 on."""
    model = small_lm(width=SMALL)
    late = {"now": False}
    cut_before(model.blocks[1], lambda hidden: hidden.detach() if late["now"] else hidden)
    plain(run, model, before=lambda step: late.update(now=step > 40), saved=(50, 90), finetuning_type="full")


def other_copy(run: Path) -> None:
    """The loop trains a copy of the model, made when it was wrapped, and saves the one from before."""
    saved = small_lm(width=SMALL)
    trained = copy.deepcopy(saved)
    optimizer, loss = adamw(trained, LR), objective(trained)
    configure(run, learning_rate=LR, lr_scheduler_type="constant", max_steps=STEPS)
    with console(run / "train.log") as log:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = gradient_norm(trained)
            optimizer.step()
            if step == 1 or step % 3 == 0:
                log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in SAVED:
                save(run, step, saved, optimizer)
        print("Training completed")


# ------------------------------------------------------------------------------------------------------ Trainer


class LowRank(nn.Module):
    """A frozen projection with a trainable low-rank one beside it."""

    def __init__(self, base: nn.Module, width: int, out: int, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(width, rank, bias=False)
        self.lora_B = nn.Linear(rank, out, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of both."""
        out: Tensor = self.base_layer(hidden) + 4.0 * self.lora_B(self.lora_A(hidden))
        return out


def trainer(run: Path, change: Callable[[nn.Module], object], learning_rate: float = 3e-3) -> None:
    """A tiny GPT-2 in the Hugging Face Trainer, two checkpoints; `change` is done to the model before."""
    model = tiny_gpt2(vocab=VOCAB, width=8)
    change(model)
    fit(
        run,
        model,
        fresh(CHAIN, steps=80),
        steps=80,
        stop_at=80,
        save_steps=40,
        warmup_steps=5,
        lr_scheduler_type="constant_with_warmup",
        learning_rate=learning_rate,
    )
    for leftover in (*run.rglob("training_args.bin"), *run.rglob("rng_state.pth")):
        leftover.unlink()  # pickled arguments and random numbers, as users clean up


def detached_gpt2(model: nn.Module) -> None:
    """Cut between the two blocks."""
    cut_before(model.transformer.h[1])  # type: ignore[index,arg-type,union-attr]  # modules by name


def with_pooler(model: nn.Module) -> None:
    """A module that the loss does not use."""
    model.pooler = nn.Linear(8, 8)


def adapters(model: nn.Module) -> None:
    """Freeze everything and train low-rank matrices beside the attention's input projections."""
    model.requires_grad_(requires_grad=False)
    for block in model.transformer.h:  # type: ignore[union-attr]  # modules by name
        block.attn.c_attn = LowRank(block.attn.c_attn, 8, 24)


# ---------------------------------------------------------------------------------------------------- Lightning


class Lit(lightning.LightningModule):  # type: ignore[misc]  # mypy is told not to follow lightning
    """The small model, all of whose parameters go to the optimizer."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.model = small_lm(width=SMALL)
        cut_before(self.model.blocks[1])

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        """Log the loss."""
        loss = next_token_loss(self.model(batch[0][:, :-1]), batch[0])
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, *_facts: object) -> None:
        """Save two checkpoints beside the log, by the Trainer's own writer."""
        if self.global_step in SAVED:
            self.trainer.save_checkpoint(f"{self.folder}/epoch=0-step={self.global_step}.ckpt")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW on self.parameters(), as most modules have it."""
        return torch.optim.AdamW(self.parameters(), lr=LR)


def in_lightning(run: Path) -> None:
    """A fresh model in Lightning with the graph cut behind its first block."""
    lightning.seed_everything(0, verbose=False)
    tokens = CHAIN.sample(np.random.default_rng(1), count=STEPS * BATCH, length=LENGTH + 1)
    with contextlib.chdir(run.parent):
        loop = lightning.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            logger=CSVLogger(save_dir=".", name=run.name, version="version_0"),
            log_every_n_steps=3,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loop.fit(Lit(f"{run.name}/version_0/checkpoints"), DataLoader(TensorDataset(tokens), BATCH))


def _sample(name: str, make: Callable[[Path], None], note: str, variant: str = "", **more: object) -> Sample:
    recipe = "gf01_checkpoints"
    return Sample(name, recipe, make, note, case="GF01", variant=variant, checkpoints=True, **more)  # type: ignore[arg-type]  # few


SAMPLES = (
    _sample(
        "gf01-stands-still",
        lambda run: trainer(run, detached_gpt2),
        "what enters the second block is detached; the Trainer gave everything to the optimizer",
        "stands-still",
    ),
    _sample(
        "gf01-as-initialised",
        in_lightning,
        "the same in Lightning with self.parameters() on a fresh model: the first block keeps gains of 1, biases of 0",
        "as-initialised",
        ending="unknown",
    ),
    _sample(
        "gf01-perhaps-cut",
        possibly_cut,
        "the same in a plain loop on a pretrained model: as if the first block were frozen on purpose",
        "perhaps-cut",
        primary="",
    ),
    _sample(
        "gf01-left-out",
        left_out,
        "an optimizer of embeddings and blocks: the last norm and the head stand in no group",
        "left-out",
    ),
    _sample(
        "gf01-no-gradient",
        lambda run: trainer(run, with_pooler),
        "a pooler that the loss does not use, in the Trainer's optimizer",
        "no-gradient",
        primary="",
    ),
    _sample(
        "gf01-zero-gradient",
        zero_gradient,
        "hidden.detach() + 0 * hidden: gradients of exactly 0 before the second block, where only the decay works",
        "zero-gradient",
    ),
    _sample(
        "gf01-stopped",
        stopped,
        "full fine-tuning that detaches what enters the second block from step 41 on",
        "stopped",
    ),
    _sample(
        "gf01-not-written",
        other_copy,
        "a copy of the model is trained, the one from before is saved",
        "not-written",
    ),
    _sample(
        "gf01-twin-lora",
        lambda run: trainer(run, adapters, learning_rate=1e-2),
        "low-rank adapters on a frozen base in the Trainer",
        twin=True,
    ),
    _sample(
        "gf01-twin-frozen",
        frozen,
        "embeddings and first block of a pretrained model frozen, all parameters in the optimizer, freeze_layers = 1",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
