"""GF36: mixtures of experts whose router leaves some of them without tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoint_lab import configure, objective, save, small_lm
from lab import Sample, TinyLM, console, current_lr, main
from torch import Tensor, nn
from torch.nn import functional

STEPS, SAVED, WIDTH, EXPERTS = 400, (200, 400), 8, 4


class Mixture(nn.Module):
    """Four experts, one for each token, weighted by the router's probability (Switch). Every expert sees all tokens.

    What an expert makes of tokens that are not its own is multiplied by 0: its gradient is then 0, as it is where
    experts lie on different processes and each has to take part in the backward pass.
    """

    balance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(EXPERTS)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Mix, and keep the loss that balances the load (Fedus et al. 2021): EXPERTS sum of share times probability."""
        probability = self.router(hidden).softmax(-1)
        chosen = functional.one_hot(probability.argmax(-1), EXPERTS).to(hidden)
        self.balance = EXPERTS * (chosen.mean((0, 1)) * probability.mean((0, 1))).sum()
        made = torch.stack([expert(hidden) for expert in self.experts], dim=-1)
        return (made * (chosen * probability).unsqueeze(-2)).sum(-1)


class Sparse(nn.Module):
    """The lab's language model with a mixture in place of its second block's MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.dense: TinyLM = small_lm(width=WIDTH)
        self.mixture = Mixture(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of every next token."""
        hidden = self.dense.states(tokens)
        logits: Tensor = self.dense.head(hidden + self.mixture(hidden))
        return logits


def train(run: Path, *, balance: float, router: float = 1.0, bias: float = 0.0) -> None:
    """Train with `balance` times the balancing loss; router: the size of its first weights, relative to the usual."""
    torch.set_num_threads(1)
    model = Sparse()
    with torch.no_grad():
        model.mixture.router.weight.mul_(router)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = objective(model)
    configure(run, hidden_size=WIDTH, learning_rate=3e-3, max_steps=STEPS, num_experts=EXPERTS, num_experts_per_tok=1)
    with console(run / "train.log") as log:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            value = loss(step)
            (value + balance * model.mixture.balance).backward()  # type: ignore[no-untyped-call]  # torch's own
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            if step % 10 == 0:
                log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in SAVED:
                save(run, step, model, optimizer)
