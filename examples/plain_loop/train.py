"""A plain PyTorch loop with the recorder: a small policy learns to imitate a teacher that must avoid forbidden actions.

python train.py RUN                     trains; RUN gets metrics.jsonl, config.json, checkpoints and capsules
python train.py RUN --fault entropy     with a fault: p * log(p), which meets the first p = 0 at step 60
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradforensics import Recorder
from gradforensics.replay.program import Program, Request

BATCH, STATE, ACTIONS = 16, 24, 10
FIRST_FORBIDDEN = 60  # the first step whose batch has an action that is not allowed
CLIP = 1.0


class Entropy(nn.Module):
    """Entropy of distributions (samples, actions) in nats, shape (samples,)."""

    def __init__(self, *, faulty: bool) -> None:
        super().__init__()
        self.faulty = faulty

    def forward(self, p: Tensor) -> Tensor:
        """Without the fault, p = 0 counts as 0, in the gradient too."""
        if self.faulty:
            return -(p * p.log()).sum(-1)
        return -(p * p.clamp_min(torch.finfo(p.dtype).tiny).log()).sum(-1)


class Policy(nn.Module):
    """States (samples, STATE) to probabilities of allowed actions (samples, ACTIONS)."""

    def __init__(self, *, faulty: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, ACTIONS))
        self.entropy = Entropy(faulty=faulty)

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        """Forbidden actions get exactly 0."""
        p = self.body(states).softmax(-1) * allowed
        probabilities: Tensor = p / p.sum(-1, keepdim=True)
        return probabilities


def batch_of(step: int, seed: int = 0) -> dict[str, Tensor]:
    """The batch of a step, drawn from the seed and the step alone, so that a replay can draw it again."""
    teacher = torch.randn(STATE, ACTIONS, generator=torch.Generator().manual_seed(seed))
    states = torch.randn(BATCH, STATE, generator=torch.Generator().manual_seed(1000 * seed + step))
    labels = (states @ teacher).argmax(-1)
    allowed = torch.ones(BATCH, ACTIONS)
    if step >= FIRST_FORBIDDEN:
        allowed[5, (labels[5] + 1) % ACTIONS] = 0.0
    return {"states": states, "allowed": allowed, "labels": labels}


def loss_of(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy with the teacher's action, less a bonus for entropy."""
    p = model(batch["states"], batch["allowed"])
    chosen = p.gather(-1, batch["labels"][:, None]).squeeze(-1)
    loss: Tensor = -chosen.log().mean() - 0.01 * model.entropy(p).mean()
    return loss


def make(fault: str) -> tuple[Policy, torch.optim.Optimizer]:
    """Model and optimizer; training and replay call this."""
    model = Policy(faulty=fault == "entropy")
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def build(request: Request) -> Program:
    """What `gradforensics replay` calls, from a capsule as from a checkpoint."""
    settings = request.settings or json.loads(((request.run or Path()) / "config.json").read_text(encoding="utf-8"))
    model, optimizer = make(str(settings["fault"]))
    seed = int(settings["seed"])
    return Program(model, loss_of, batches=lambda step: [batch_of(step, seed)], optimizer=optimizer, max_grad_norm=CLIP)


def repaired(request: Request) -> Program:
    """The same program without the fault, for `gradforensics replay --fix`."""
    program = build(request)
    program.model.entropy = Entropy(faulty=False)
    return program


def train(run: Path, settings: dict[str, Any], steps: int) -> None:
    """Train, log, save a checkpoint every 20 steps."""
    torch.manual_seed(settings["seed"])
    model, optimizer = make(settings["fault"])
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text(json.dumps({**settings, "max_steps": steps}), encoding="utf-8")
    with (
        (run / "metrics.jsonl").open("w", encoding="utf-8") as log,
        Recorder(model, optimizer, run, program=build, max_grad_norm=CLIP, settings=settings) as recorder,
    ):
        for step in range(1, steps + 1):
            batch = recorder.batch(batch_of(step, settings["seed"]))
            loss = recorder.loss(loss_of(model, batch))
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            row = {"step": step, "loss": loss.item(), "grad_norm": norm.item(), "lr": optimizer.param_groups[0]["lr"]}
            log.write(json.dumps(row) + "\n")
            if step % 20 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, run / f"checkpoint-{step}.pt")


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder for the run")
    parser.add_argument("--fault", choices=("none", "entropy"), default="none")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.run, {"fault": options.fault, "seed": options.seed}, options.steps)


if __name__ == "__main__":
    main()
