"""GF12 in the counters of checkpoints: a loop that logs neither loss scale nor skipped steps, but saves its scaler."""

from __future__ import annotations

from pathlib import Path

import torch
from checkpoint_lab import VOCAB, objective, save, small_lm
from gf12 import CONSTANT, config
from lab import Sample, TinyLM, current_lr, json_lines, main, write_json
from torch import Tensor, nn

WIDTH, LR = 8, 3e-3


class Penalised(nn.Module):
    """A tiny language model; `root` is the distance of its states from a copy of them, whose root has no slope at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.body: TinyLM = small_lm(width=WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (samples, tokens, VOCAB)."""
        logits: Tensor = self.body(tokens)
        return logits

    def root(self) -> Tensor:
        """0, with a gradient of 0 times infinity."""
        weights = self.body.head.weight
        return (weights - weights.detach()).square().sum().sqrt()


def half(
    run: Path, *, steps: int, saved: tuple[int, ...], window: int, broken: range, every: int = 1, init: float = 2.0**16
) -> None:
    """float16 autocast with torch's scaler; in every `every`-th step of `broken` all gradients are NaN."""
    model = Penalised()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_interval=window)
    loss_of = objective(model)
    write_json(run / "config.json", config(steps, **CONSTANT, vocab_size=VOCAB, hidden_size=WIDTH))
    with json_lines(run / "train.jsonl") as log:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_of(step)
            trained = loss + 0.01 * model.root() if step in broken and step % every == 0 else loss
            scaled: Tensor = scaler.scale(trained)
            scaled.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            log({"step": step, "loss": loss.item(), "lr": current_lr(optimizer)})
            if step in saved:
                save(run, step, model, optimizer, scaler=scaler.state_dict())


SAMPLES = (
    Sample(
        "gf12-counted-skips",
        "gf12_counters",
        lambda run: half(run, steps=200, saved=(60, 200), window=2000, broken=range(61, 201), every=10),
        "every tenth step from 61 on has a root of 0 in its loss and is skipped; only the counters of step 200 tell",
        case="GF12",
        variant="frequent-skips",
        checkpoints=True,
    ),
    Sample(
        "gf12-counted-collapse",
        "gf12_counters",
        lambda run: half(run, steps=90, saved=(40, 90), window=20, broken=range(60, 91)),
        "from step 60 on the gradient of a root is NaN at any scale: the scale ends below 1, the optimizer at 59",
        case="GF12",
        variant="collapsed",
        checkpoints=True,
    ),
    Sample(
        "gf12-twin-counters",
        "gf12_counters",
        lambda run: half(run, steps=200, saved=(60, 200), window=40, broken=range(0), init=2.0**30),
        "a scale that begins at 2^30 finds its level in the first steps and is tried upwards every 40 good steps",
        case="GF12",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
