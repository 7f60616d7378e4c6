"""GF13 in checkpoints: 16-bit weights whose updates are rounded away, 16-bit moments, and what makes up for both."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import hf_lab
import torch
from checkpoint_lab import CHAIN, VOCAB, configure, objective, small_lm, train_and_save
from checkpoint_writers import deepspeed, trainer
from lab import Chain, Sample, json_lines, main
from torch import Tensor
from torch.optim import Optimizer

TUNED, KEPT = 60, (20, 60)
WIDTH = 16


def fine_tune(run: Path, *, pure: bool) -> None:
    """HF Trainer: a trained model, loaded with torch_dtype=bfloat16 (`pure`) or in float32 under bf16=True."""
    model = hf_lab.tiny_gpt2(VOCAB, width=8)
    hf_lab.pretrain(model, CHAIN)
    if pure:
        model = model.to(torch.bfloat16)
    data = hf_lab.fresh(Chain.make(seed=1, vocab=VOCAB), TUNED)
    trainer(
        run,
        model,
        steps=TUNED,
        saved=KEPT,
        data=data,
        learning_rate=1e-5,
        warmup_steps=5,
        bf16=not pure,
    )


def plain(run: Path, dtype: torch.dtype, lr: float, *, eps: float = 1e-8, init: float = 0.02) -> None:
    """The usual loop with the whole model cast to `dtype` before its optimizer was made; one checkpoint at its end.

    init: standard deviation of the matrices at the start.
    """
    steps, model = 240, small_lm(width=WIDTH)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(init / 0.02)
    model = model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1, eps=eps)
    configure(run, hidden_size=WIDTH, learning_rate=lr, lr_scheduler_type="constant", max_steps=steps, adam_epsilon=eps)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=steps, saved=(steps,))


class CarefulAdam(Optimizer):
    """Adam on bfloat16 weights that loses no update: by Kahan summation or by stochastic rounding."""

    def __init__(self, params: Any, lr: float, how: Literal["kahan", "stochastic"]) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
        super().__init__(params, defaults)
        self.how = how

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # torch's overloads
        """Update every parameter; the moments are bfloat16 too."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            names = ("exp_avg", "exp_avg_sq", *(["compensation"] if self.how == "kahan" else []))
            state.update({name: torch.zeros_like(parameter) for name in names})
        state["step"] += 1
        (beta1, beta2), gradient = group["betas"], parameter.grad
        assert gradient is not None
        mean = state["exp_avg"].float().lerp(gradient.float(), 1 - beta1)
        square = state["exp_avg_sq"].float().mul(beta2).add(gradient.float().square(), alpha=1 - beta2)
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        root = square.sqrt() / math.sqrt(1 - beta2 ** state["step"]) + group["eps"]
        change = -group["lr"] / (1 - beta1 ** state["step"]) * mean / root
        if self.how == "kahan":
            wanted = change + state["compensation"].float()
            before = parameter.float()
            parameter.copy_(before + wanted)
            state["compensation"].copy_(wanted - (parameter.float() - before))
        else:
            parameter.copy_(stochastically_rounded(parameter.float() + change))


def stochastically_rounded(exact: Tensor) -> Tensor:
    """float32 as bfloat16: up or down with the probability that keeps the mean (random bits are added, then cut)."""
    noise = torch.randint(0, 1 << 16, exact.shape, dtype=torch.int32)
    return (exact.view(torch.int32) + noise).bitwise_and(-(1 << 16)).view(torch.float32).to(torch.bfloat16)


def careful(run: Path, how: Literal["kahan", "stochastic"]) -> None:
    """bfloat16 weights at a small learning rate under an optimizer that loses nothing."""
    model = small_lm(width=WIDTH).to(torch.bfloat16)
    optimizer = CarefulAdam(model.parameters(), 1e-4, how)
    configure(run, hidden_size=WIDTH, learning_rate=1e-4, lr_scheduler_type="constant", max_steps=240)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=240, saved=(200, 240))


SAMPLES = (
    Sample(
        "gf13-rounded-away",
        "gf13_checkpoints",
        lambda run: fine_tune(run, pure=True),
        "HF Trainer on a model loaded in bfloat16, at a rate of 1e-5: most weights keep every bit in 40 updates",
        case="GF13",
        variant="rounded-away",
        checkpoints=True,
    ),
    Sample(
        "gf13-gains-stuck",
        "gf13_checkpoints",
        lambda run: plain(run, torch.bfloat16, 3e-4, init=0.2),
        "pure bfloat16 from scratch at 3e-4, one checkpoint: norm gains are 1.0 still, the matrices are as coarse",
        case="GF13",
        variant="gains-stuck",
        checkpoints=True,
    ),
    Sample(
        "gf13-gains-alone",
        "gf13_checkpoints",
        lambda run: plain(run, torch.bfloat16, 1e-3),
        "pure bfloat16 at 1e-3: the matrices move, the norm gains do not",
        case="GF13",
        variant="gains-alone",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf13-fp16-moments",
        "gf13_checkpoints",
        lambda run: plain(run, torch.float16, 1e-3, eps=1e-5),
        "pure float16 with an eps of 1e-5: it lives, and squares of small gradients are 0 in the second moments",
        case="GF13",
        variant="fp16-moments",
        checkpoints=True,
    ),
    Sample(
        "gf13-twin-trainer",
        "gf13_checkpoints",
        lambda run: fine_tune(run, pure=False),
        "the same fine-tuning with the model in float32 and bf16=True",
        case="GF13",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf13-twin-deepspeed",
        "gf13_checkpoints",
        lambda run: deepspeed(run, small_lm(width=WIDTH), steps=60, saved=(60,), lr=1e-4),
        "a bfloat16 model under DeepSpeed at 1e-4: float32 masters lie in the optimizer's files",
        case="GF13",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf13-twin-kahan",
        "gf13_checkpoints",
        lambda run: careful(run, "kahan"),
        "bfloat16 weights at 1e-4 with Kahan summation",
        case="GF13",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf13-twin-stochastic",
        "gf13_checkpoints",
        lambda run: careful(run, "stochastic"),
        "bfloat16 weights at 1e-4 with stochastic rounding, which leaves no trace but in the weights",
        case="GF13",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
