"""Hugging Face Trainer with the recorder: a tiny GPT-2 on short documents, padded on the left.

python train.py RUN                  trains; RUN gets checkpoints, trainer_state.json, config files and capsules
python train.py RUN --fault mask     with a fault: the collator masks with -inf, and a padded row sees nothing at all
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import (  # type: ignore[import-untyped]  # accelerate brings no types
    BatchSamplerShard,
    SeedableRandomSampler,
)
from torch import Tensor, nn
from torch.utils.data import BatchSampler, Dataset
from transformers import AutoModelForCausalLM, GPT2Config, Trainer, TrainingArguments, set_seed

from gradforensics.recorder.huggingface import RecorderCallback
from gradforensics.replay.program import Program, Request

VOCAB, LENGTH, SAMPLES = 48, 16, 100
PAD = 0
BATCH, ACCUMULATION, EPOCHS, CLIP, PEAK, WARMUP = 8, 2, 3, 1.0, 3e-3, 2
SHORT = (27,)  # documents that are shorter than the others; with seed 0 this one comes first in step 6
torch.set_num_threads(1)  # the number of threads decides the last bits of a step


class Documents(Dataset[dict[str, Tensor]]):
    """Documents in which token t is followed by t + 1, t + 2 or t + 3."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        jumps = torch.randint(1, 4, (SAMPLES, LENGTH), generator=generator)
        starts = torch.randint(0, VOCAB, (SAMPLES, 1), generator=generator)
        self.ids = 1 + (starts + jumps.cumsum(-1)) % (VOCAB - 1)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index, : LENGTH // 2 if index in SHORT else LENGTH]}


class Collator:
    """Pads on the left and gives each token a row of the mask: 0 where it may look, `blocked` where it may not."""

    def __init__(self, *, blocked: float) -> None:
        self.blocked = blocked

    def __call__(self, samples: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """A batch of GPT-2: ids and labels (samples, tokens), mask (samples, 1, tokens, tokens)."""
        count, longest = len(samples), max(len(sample["input_ids"]) for sample in samples)
        ids = torch.full((count, longest), PAD)
        for row, sample in zip(ids, samples, strict=True):
            row[longest - len(sample["input_ids"]) :] = sample["input_ids"]
        real = ids != PAD
        visible = torch.ones(longest, longest, dtype=torch.bool).tril() & real[:, None, None, :]
        mask = torch.zeros(visible.shape).masked_fill(~visible, self.blocked)
        labels = ids.masked_fill(~real, -100)
        labels[:, 0] = -100  # nothing predicts the first token, and the Trainer divides by the labels that it counts
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def make_model() -> nn.Module:
    """Two layers of width 32, no dropout: without it a step needs no random state."""
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=PAD,
        eos_token_id=PAD,
        pad_token_id=PAD,
        use_cache=False,
    )
    model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model


def make_collator(fault: str) -> Collator:
    """The fault: -inf. A row of the mask that is -inf everywhere makes softmax 0 / 0."""
    return Collator(blocked=-math.inf if fault == "mask" else torch.finfo(torch.float32).min)


def learning_rate(step: int) -> float:
    """The rate of an optimizer step (from 1): the Trainer's linear schedule."""
    total = EPOCHS * math.ceil(math.ceil(SAMPLES / BATCH) / ACCUMULATION)
    return PEAK * min((step - 1) / WARMUP, (total - step + 1) / (total - WARMUP))


def data_order(
    step: int, seed: int, *, samples: int = SAMPLES, batch: int = BATCH, accumulation: int = ACCUMULATION,
    world_size: int = 1, rank: int = 0,
) -> list[list[int]]:  # fmt: skip
    """Ids of the samples in every micro-batch of an optimizer step (from 1), as the Trainer draws them.

    The Trainer's sampler is seeded with seed + epoch at the start of each epoch, seed being `data_seed` where it is
    given, else `seed`. An epoch's last step takes the micro-batches that are left, its last micro-batch the samples
    that are left. The order does not depend on num_workers, on what else draws random numbers, or on a resume.
    """
    sampler = SeedableRandomSampler(range(samples), data_seed=seed)
    micro_batches: Any = BatchSampler(sampler, batch, drop_last=False)
    if world_size > 1:
        micro_batches = BatchSamplerShard(micro_batches, world_size, rank)
    per_epoch = math.ceil(len(micro_batches) / accumulation)
    epoch, place = divmod(step - 1, per_epoch)
    sampler.set_epoch(epoch)
    return list(micro_batches)[place * accumulation : (place + 1) * accumulation]


def batches_of(step: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The micro-batches of a step, each with the number of labels in all of them, by which the Trainer divides."""
    documents, collate = Documents(settings["seed"]), make_collator(settings["fault"])
    batches = [collate([documents[i] for i in ids]) for ids in data_order(step, settings["seed"])]
    items = torch.stack([batch["labels"].ne(-100).sum() for batch in batches]).sum()
    return [{**batch, "num_items_in_batch": items, "micro_batches": len(batches)} for batch in batches]


def loss_of(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """The loss whose mean over the micro-batches is what the Trainer logs: it adds up what others average."""
    inputs = dict(batch)
    micro_batches = inputs.pop("micro_batches", 1)
    loss: Tensor = micro_batches * model(**inputs).loss
    return loss


def build(request: Request) -> Program:
    """What `gradforensics replay --from CHECKPOINT --program train.py:build` calls."""
    file = (request.run or Path()) / "settings.json"
    settings = request.settings or json.loads(file.read_text(encoding="utf-8"))
    return Program(
        make_model(),
        loss_of,
        batches=lambda step: batches_of(step, settings),
        learning_rate=learning_rate,
        max_grad_norm=CLIP,
    )


def repaired(request: Request) -> Program:
    """The same program with a finite mask, for `gradforensics replay --fix`."""
    program = build(request)

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        mask = batch["attention_mask"].clamp_min(torch.finfo(torch.float32).min)
        return loss_of(model, {**batch, "attention_mask": mask})

    program.loss = loss
    return program


def train(run: Path, settings: dict[str, Any]) -> None:
    """Train, log every step, save a checkpoint every 3 steps."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    arguments = TrainingArguments(
        output_dir=str(run),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        learning_rate=PEAK,
        lr_scheduler_type="linear",
        warmup_steps=WARMUP,
        weight_decay=0.01,
        max_grad_norm=CLIP,
        seed=settings["seed"],
        logging_steps=1,
        logging_nan_inf_filter=False,  # the filter would log a finite loss where there was NaN
        save_strategy="steps",
        save_steps=3,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(settings["seed"])
    trainer = Trainer(
        model=make_model(),
        args=arguments,
        train_dataset=Documents(settings["seed"]),
        data_collator=make_collator(settings["fault"]),
        callbacks=[RecorderCallback()],
    )
    trainer.train()


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder for the run")
    parser.add_argument("--fault", choices=("none", "mask"), default="none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.run, {"fault": options.fault, "seed": options.seed})


if __name__ == "__main__":
    main()
