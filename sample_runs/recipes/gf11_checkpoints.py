"""GF11 in checkpoints: NaN in weights and moments of runs that were killed before their logs had a line with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from checkpoint_lab import save
from lab import Chain, Sample, console, current_lr, main, next_token_loss, write_json
from torch import Tensor, nn
from torch.nn import functional

STEPS, EVERY, SAVED = 149, 30, 48
CLASSES, WIDTH = 8, 24
FATAL = 61


class Classifier(nn.Module):
    """Two layers and a gate; the gate's mask of -inf is a buffer that is saved with the weights."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, WIDTH)
        self.outer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (samples, classes)."""
        logits: Tensor = self.outer(functional.gelu(self.inner(inputs)))
        return logits


def classified(run: Path, *, guarded: bool, blown: bool = False) -> None:
    """Cross entropy minus a bonus on the entropy of a label distribution that is exactly 0 somewhere from 121 on.

    guarded: eps inside its logarithm; blown: one loss in place of it that is 1e25 times too large.
    """
    torch.manual_seed(0)
    model, centres = Classifier(), torch.randn(CLASSES, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    write_json(run / "config.json", {"learning_rate": 3e-3, "max_steps": 2000, "batch_size": 32, "optim": "adamw"})
    with console(run / "train.log") as log:
        for step in range(1, STEPS + 1):
            labels = torch.randint(CLASSES, (32,))
            inputs = centres[labels] + 0.5 * torch.randn(32, 16)
            optimizer.zero_grad()
            logits = model(inputs)
            kept = torch.ones(CLASSES) if step < 121 else torch.arange(CLASSES).ne(0).float()
            share = (logits.softmax(-1) * kept).mean(0)
            entropy = -(share * (share + (1e-9 if guarded else 0.0)).log()).sum()
            loss = functional.cross_entropy(logits, labels) - 0.01 * entropy
            if blown and step == 121:
                loss = loss * 1e25
            loss.backward()
            optimizer.step()
            if step % EVERY == 0:
                log({"step": step, "loss": loss.item(), "lr": current_lr(optimizer)})
            if step % SAVED == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, run / f"checkpoint-{step:06d}.pt")


class Inner(nn.Module):
    """Two layers beside the residual stream; gated: it adds the length of hidden units that are masked whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor, *, gated: bool) -> Tensor:
        """Hidden states plus those of the layers."""
        inner = functional.gelu(self.up(hidden))
        if gated:
            inner = inner + (inner * 0.0).square().sum(-1, keepdim=True).sqrt()  # sqrt at exactly 0
        added: Tensor = self.down(inner)
        return hidden + added


class Residual(nn.Module):
    """An embedding whose pad row stays zero, three residual blocks, a head."""

    def __init__(self, vocab: int = 16, width: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width, padding_idx=0)
        self.blocks = nn.ModuleList(Inner(width) for _ in range(3))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor, *, gated: bool) -> Tensor:
        """Logits of the next token; gated: in the second block."""
        hidden: Tensor = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            hidden = block(hidden, gated=gated and number == 1)
        logits: Tensor = self.head(hidden)
        return logits


def one_update_apart(run: Path, *, gated: bool = False, pulled: bool = False) -> None:
    """Train without clipping, and save before and after the update in which the fault comes up; then it is killed.

    gated: the square root of an exact 0 within the second block. pulled: a penalty on the lengths of the embedding's
    rows, of which the pad token's is exactly 0.
    """
    torch.manual_seed(0)
    model = Residual()
    chain, generator = Chain.make(vocab=16), np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    settings = {"learning_rate": 3e-3, "max_steps": 2000, "batch_size": 16, "optim": "adamw"}
    write_json(run / "config.json", settings)
    with console(run / "train.log") as log:
        for step in range(1, FATAL + 1):
            tokens = chain.sample(generator, count=16, length=16)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1], gated=gated and step == FATAL), tokens)
            if pulled and step == FATAL:
                loss = loss + 1e-3 * (model.embedding.weight.square().sum(-1).sqrt() - 1.0).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            optimizer.step()
            if step % EVERY == 0:
                log({"step": step, "loss": loss.item(), "lr": current_lr(optimizer)})
            if step >= FATAL - 1:
                save(run, step, model, optimizer)


SAMPLES = (
    Sample(
        "gf11-located",
        "gf11_checkpoints",
        lambda run: one_update_apart(run, gated=True),
        "sqrt at exactly 0 in the second of three blocks at step 61, killed there: NaN in all that lies before it",
        case="GF11",
        variant="located",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf11-one-place",
        "gf11_checkpoints",
        lambda run: one_update_apart(run, pulled=True),
        "a penalty on the lengths of the embedding's rows at step 61: the row of the pad token is exactly 0",
        case="GF11",
        variant="one-place",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf11-weights",
        "gf11_checkpoints",
        lambda run: classified(run, guarded=False),
        "p log p of an exact 0 from step 121 on, killed at 149: the log (every 30 steps) is finite, checkpoint 144 not",
        case="GF11",
        variant="weights",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf11-moments",
        "gf11_checkpoints",
        lambda run: classified(run, guarded=True, blown=True),
        "the loss of step 121 is 1e25 times too large: squares of its gradient overflow in the second moments",
        case="GF11",
        variant="moments",
        ending="truncated",
        checkpoints=True,
    ),
    Sample(
        "gf11-twin-checkpoints",
        "gf11_checkpoints",
        lambda run: classified(run, guarded=True),
        "the same with eps inside the log; a mask full of -inf is saved beside the finite weights",
        case="GF11",
        twin=True,
        ending="truncated",
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
