"""GF02: the objective is not the intended one, and a model that was good is told the opposite."""

from __future__ import annotations

from pathlib import Path

import hf_lab
import numpy as np
import torch
from lab import BATCH, Chain, Sample, main

VOCAB = 384
STEPS = 240


def fine_tune(run: Path, *, shuffled: bool) -> None:
    """HF Trainer on a model that predicts its chain confidently; labels shuffled inside each sequence or not."""
    chain = Chain.make(vocab=VOCAB, concentration=0.004)
    model = hf_lab.tiny_gpt2(vocab=VOCAB)
    hf_lab.pretrain(model, chain, steps=500)
    generator = np.random.default_rng(1)
    ids = chain.sample(generator, count=STEPS * BATCH)
    labels = torch.from_numpy(generator.permuted(ids.numpy(), axis=1)) if shuffled else ids
    data = hf_lab.Tokens(ids, labels)
    hf_lab.fit(
        run,
        model,
        data,
        steps=STEPS,
        console=not shuffled,
        learning_rate=1e-3,
        warmup_steps=30,
        logging_steps=2,
    )


SAMPLES = (
    Sample(
        "gf02-worse-than-chance",
        "gf02",
        lambda run: fine_tune(run, shuffled=True),
        "a confident model fine-tuned on labels shuffled inside each sequence: starts far above ln V, parks flat",
        case="GF02",
        variant="worse-than-chance",
    ),
    Sample(
        "gf02-twin",
        "gf02",
        lambda run: fine_tune(run, shuffled=False),
        "the same fine-tuning with the right labels: starts low and stays low",
        case="GF02",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
