"""Healthy runs: nothing is wrong, nothing may be said."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import lightning_lab
import numpy as np
from lab import Chain, Sample, cosine, main

STEPS = 300


def hugging_face(run: Path) -> None:
    """HF Trainer with evaluations, its stdout kept."""
    chain = Chain.make()
    held_out = hf_lab.Tokens(chain.sample(np.random.default_rng(2), count=256))
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        hf_lab.fresh(chain, STEPS),
        steps=STEPS,
        evaluate=held_out,
        console=True,
        eval_strategy="steps",
        eval_steps=30,
    )


def csv_logger(run: Path) -> None:
    """Lightning with a cosine stepped per step."""
    lightning_lab.fit(
        run,
        Chain.make(),
        steps=STEPS,
        steps_per_epoch=100,
        schedule=cosine(20, STEPS),
        validate_every=30,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        max_steps=STEPS,
        vocab_size=64,
        batch_size=16,
        gradient_accumulation_steps=1,
        optim="adamw_torch",
    )


SAMPLES = (
    Sample("healthy-hf", "healthy", hugging_face, "HF Trainer, AdamW 3e-3, warm-up and cosine, fresh data", twin=True),
    Sample(
        "healthy-lightning", "healthy", csv_logger, "Lightning, AdamW 3e-3, warm-up and cosine, fresh data", twin=True
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
