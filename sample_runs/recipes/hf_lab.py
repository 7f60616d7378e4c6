"""Runs written by the Hugging Face Trainer: a tiny GPT-2 (pre-LN, two layers) on tokens of a Markov chain."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from lab import BATCH, LENGTH, VOCAB, WIDTH, Chain
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

logging.getLogger("transformers").setLevel(logging.ERROR)

BINARIES = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""Weights, optimizer, scheduler and RNG states and the pickled arguments: not part of a sample."""


class Tokens(Dataset[dict[str, Tensor]]):
    """Sequences with their labels; the labels are the sequences unless others are given.

    The first label is -100: nothing predicts it, and the Trainer divides by the number of labels it counts.
    """

    def __init__(self, ids: Tensor, labels: Tensor | None = None) -> None:
        self.ids = ids
        self.labels = (ids if labels is None else labels).clone()
        self.labels[:, 0] = -100

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def tiny_gpt2(
    vocab: int = VOCAB, seed: int = 0, width: int = WIDTH, *, layers: int = 2, tied: bool = False
) -> GPT2LMHeadModel:
    """Two layers of width 64 where nothing else is said, no dropout."""
    set_seed(seed)
    config = GPT2Config(
        vocab_size=vocab,
        n_positions=2 * LENGTH,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=tied,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def fresh(chain: Chain, steps: int, seed: int = 1) -> Tokens:
    """Enough sequences for `steps` batches, each seen once."""
    return Tokens(chain.sample(np.random.default_rng(seed), count=steps * BATCH))


def pretrain(model: GPT2LMHeadModel, chain: Chain, steps: int = 300, lr: float = 3e-3) -> None:
    """Train on the chain with AdamW and a linear decay, unlogged."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    generator = np.random.default_rng(1000)
    for _ in range(steps):
        tokens = chain.sample(generator)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


class _Stop(TrainerCallback):  # type: ignore[misc]  # mypy is told not to follow transformers
    """Ends a training after a step, as an interruption right after a checkpoint does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(
        self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_facts: object
    ) -> None:
        """Save and stop."""
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def fit(
    run: Path,
    model: GPT2LMHeadModel,
    data: Dataset[dict[str, Tensor]],
    *,
    steps: int,
    evaluate: Dataset[dict[str, Tensor]] | Mapping[str, Dataset[dict[str, Tensor]]] | None = None,
    console: bool = False,
    trainer_class: type[Trainer] = Trainer,
    stop_at: int = 0,
    resume_from: str = "",
    keep: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    **arguments: object,
) -> None:
    """Train and leave what the usual script leaves: a checkpoint's trainer_state.json, metrics, training_args.json.

    `console` also keeps the stdout, where PrinterCallback prints one dict per log call. Paths stay relative: the
    Trainer runs inside the parent of `run`. stop_at: end after this step, its checkpoint kept with all states, as a
    launch that was interrupted; resume_from: name of the checkpoint to go on from. keep: the checkpoints stay
    whole, weights and states.
    """
    common: Mapping[str, object] = {
        "output_dir": run.name,
        "max_steps": steps,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 64,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 20,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "logging_steps": 5,
        "save_strategy": "steps",
        "save_steps": steps,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(run.parent))
        if console:
            stream = stack.enter_context((Path(run.name) / "train.log").open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(stream))
        # the arguments are checked by TrainingArguments itself; a mapping of objects cannot be
        parameters = TrainingArguments(**(dict(common) | arguments))
        trainer = trainer_class(model=model, args=parameters, train_dataset=data, eval_dataset=evaluate)
        if not console:
            trainer.remove_callback(PrinterCallback)
        if stop_at:
            trainer.add_callback(_Stop(stop_at))
        for callback in callbacks:
            trainer.add_callback(callback)
        result = trainer.train(resume_from_checkpoint=f"{run.name}/{resume_from}" if resume_from else None)
        trainer.save_metrics("train", result.metrics)
        arguments_json: str = parameters.to_json_string()
        (Path(run.name) / "training_args.json").write_text(arguments_json, encoding="utf-8")
    if stop_at or keep:
        return
    for pattern in BINARIES:
        for path in run.rglob(pattern):
            path.unlink()
