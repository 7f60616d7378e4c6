"""A small PyTorch training to check: a character model learns the next letter of sentences made of a few words.

python train.py RUN --steps 50                  trains; RUN gets metrics.jsonl and config.json
python train.py RUN --steps 50 --fault root     with a fault: the gradient of a square root at 0, from step 20 on
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = ["the", "loss", "of", "a", "model", "falls", "while", "it", "learns", "to", "tell", "one", "word", "next"]
LETTERS = " abcdefghijklmnopqrstuvwxyz"
BATCH, CONTEXT, WIDTH = 32, 24, 64
RATE, CLIP = 3e-3, 1.0
FIRST_ROOT = 20  # the first step with the square root


class Model(nn.Module):
    """Letters (samples, CONTEXT) to logits of the letter after each of them (samples, CONTEXT, letters)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), WIDTH)
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters: Tensor) -> Tensor:
        """One step of the network for each letter."""
        states, _ = self.memory(self.embedding(letters))
        logits: Tensor = self.head(states)
        return logits


def batch_of(step: int, seed: int) -> Tensor:
    """Letters (BATCH, CONTEXT + 1), drawn from seed and step."""
    chance = random.Random(f"{seed} {step}")  # noqa: S311  words for a toy training
    texts = (" ".join(chance.choices(WORDS, k=CONTEXT))[: CONTEXT + 1] for _ in range(BATCH))
    return torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])


def loss_of(model: Model, letters: Tensor, step: int, fault: str) -> Tensor:
    """Cross-entropy of the next letter in nats."""
    logits = model(letters[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), letters[:, 1:].flatten())
    if fault == "root" and step >= FIRST_ROOT:
        apart = logits[:, 0] - logits[:, 0].detach()  # a penalty on a distance that is 0: the slope of its root is not
        loss = loss + apart.square().sum().sqrt()
    return loss


def train(run: Path, steps: int, fault: str, seed: int) -> None:
    """Train and log every step."""
    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    run.mkdir(parents=True, exist_ok=True)
    settings = {
        "learning_rate": RATE, "optimizer": "adamw", "max_steps": steps, "max_grad_norm": CLIP, "batch_size": BATCH,
        "lr_scheduler_type": "constant", "vocab_size": len(LETTERS), "seed": seed,
    }  # fmt: skip
    (run / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    with (run / "metrics.jsonl").open("w", encoding="utf-8") as log:
        for step in range(1, steps + 1):
            loss = loss_of(model, batch_of(step, seed), step, fault)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            row = {"step": step, "loss": loss.item(), "grad_norm": norm.item(), "lr": RATE}
            log.write(json.dumps(row) + "\n")


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder for the run")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--fault", choices=("none", "root"), default="none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.run, options.steps, options.fault, options.seed)


if __name__ == "__main__":
    main()
