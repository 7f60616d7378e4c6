"""GF36: mixtures of experts whose router leaves some of them without tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoint_lab import configure, objective, save, small_lm
from lab import Sample, TinyLM, console, current_lr, main
from torch import Tensor, nn
from torch.nn import functional

STEPS, WIDTH, EXPERTS = 400, 8, 4


class Mixture(nn.Module):
    """Four experts, one for each token, weighted by the router's probability (Switch).

    every: each expert takes part in every step, and what it makes of tokens that are not its own is multiplied by 0:
    its gradient is then 0, as where experts lie on different processes. Else an expert without tokens is left out, as
    in loops over the experts that are hit, and has no gradient at all.
    """

    balance: Tensor

    def __init__(self, width: int, *, every: bool) -> None:
        super().__init__()
        self.every = every
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(EXPERTS)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Mix, and keep the loss that balances the load (Fedus et al. 2021): EXPERTS sum of share times probability."""
        probability = self.router(hidden).softmax(-1)
        chosen = functional.one_hot(probability.argmax(-1), EXPERTS).to(hidden)
        self.balance = EXPERTS * (chosen.mean((0, 1)) * probability.mean((0, 1))).sum()
        weights = (chosen * probability).unbind(-1)
        mixed = torch.zeros_like(hidden)
        for expert, weight in zip(self.experts, weights, strict=True):
            if self.every or bool(weight.any()):
                mixed = mixed + expert(hidden) * weight.unsqueeze(-1)
        return mixed


class Sparse(nn.Module):
    """The lab's language model with one block and a mixture behind it."""

    def __init__(self, *, every: bool) -> None:
        super().__init__()
        self.dense: TinyLM = small_lm(width=WIDTH, layers=1)
        self.mixture = Mixture(WIDTH, every=every)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of every next token."""
        hidden = self.dense.states(tokens)
        logits: Tensor = self.dense.head(hidden + self.mixture(hidden))
        return logits


def train(run: Path, *, balance: float, steps: int = STEPS, every: bool = True) -> None:
    """Train with `balance` times the balancing loss, and save in the middle and at the end."""
    torch.set_num_threads(1)
    model = Sparse(every=every)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = objective(model)
    configure(run, hidden_size=WIDTH, learning_rate=3e-3, max_steps=steps, num_experts=EXPERTS, num_experts_per_tok=1)
    with console(run / "train.log") as log:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            value = loss(step)
            (value + balance * model.mixture.balance).backward()  # type: ignore[no-untyped-call]  # torch's own
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            if step % 10 == 0:
                log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in (steps // 2, steps):
                save(run, step, model, optimizer)


SAMPLES = (
    Sample(
        "gf36-dead-experts",
        "gf36",
        lambda run: train(run, balance=-0.04),
        "the balancing loss is subtracted in place of added: the router sends all tokens to one of four experts",
        case="GF36",
        variant="dead-experts",
        checkpoints=True,
    ),
    Sample(
        "gf36-no-state",
        "gf36",
        lambda run: train(run, balance=-1.0, every=False),
        "the same, stronger, in a loop over the experts that are hit: the others never get a gradient",
        case="GF36",
        variant="no-state",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf36-uneven-load",
        "gf36",
        lambda run: train(run, balance=-0.025, steps=200),
        "a balancing loss with the wrong sign and a small factor: one expert gets hardly any tokens after 200 steps",
        case="GF36",
        variant="uneven-load",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf36-twin",
        "gf36",
        lambda run: train(run, balance=0.01),
        "the balancing loss of the Switch transformer, 0.01: every expert has gradients in every step",
        case="GF36",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
