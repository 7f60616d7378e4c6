"""GF10 in checkpoints: zero weights, dead units and adapters that never learn, and zeros that are no fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint_lab import configure, objective, save, small_lm, train_and_save
from lab import Block, Log, Sample, TinyLM, adamw, console, current_lr, gradient_norm, main, train, write_json
from lab import silent as unlogged
from torch import Tensor, nn
from torch.nn import functional

STEPS, SAVED = 90, (30, 90)
LR = 3e-3
SMALL = 8


def plain(run: Path, model: nn.Module, saved: tuple[int, ...] = SAVED, **facts: object) -> None:
    """Train what requires a gradient in a plain loop, the whole console in train.log."""
    configure(run, learning_rate=LR, lr_scheduler_type="constant", max_steps=STEPS, **facts)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    with console(run / "train.log") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=STEPS, saved=saved, every=3)
        print("Training completed")


def block(model: TinyLM, number: int) -> Block:
    """One block of the model."""
    found = model.blocks[number]
    assert isinstance(found, Block)
    return found


def with_zero_mlp() -> TinyLM:
    """A model whose second block has an MLP of zeros: both projections and their biases."""
    model = small_lm(width=SMALL)
    for linear in (block(model, 1).up, block(model, 1).down):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    return model


def double_zero(run: Path) -> None:
    """Both projections of the second block's MLP start at zero, with their biases."""
    plain(run, with_zero_mlp())


def single_zeros(run: Path) -> None:
    """The attention's output projections and the head start at zero: they leave it with the first steps."""
    model = small_lm(width=SMALL)
    for linear in (block(model, 0).mix, block(model, 1).mix, model.head):
        nn.init.zeros_(linear.weight)
    plain(run, model)


def wiped(run: Path) -> None:
    """The same, where only weights are saved."""
    model = with_zero_mlp()
    configure(run, learning_rate=LR, lr_scheduler_type="constant", max_steps=STEPS)
    optimizer, loss = adamw(model, LR), objective(model)
    with console(run / "train.log") as log:
        for first, last in ((1, 30), (31, STEPS)):
            train(model, optimizer, loss, log, steps=last, first=first, every=3)
            save(run, last, model)
        print("Training completed")


class LowRank(nn.Module):
    """A frozen projection with a trainable low-rank one beside it."""

    def __init__(self, base: nn.Linear, *, zero: bool, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        if zero:
            nn.init.zeros_(self.lora_A.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """The projection of both."""
        out: Tensor = self.base_layer(hidden) + 4.0 * self.lora_B(self.lora_A(hidden))
        return out


def adapted(run: Path, *, zero: bool) -> None:
    """Adapters beside the projections of a pretrained model, whose head trains too; zero: A starts at 0 as B does."""
    model = small_lm(width=SMALL)
    train(model, adamw(model, LR), objective(model, seed=7), unlogged, steps=60)
    model.requires_grad_(requires_grad=False)
    model.head.requires_grad_(requires_grad=True)
    for number in (0, 1):
        block(model, number).qkv = LowRank(block(model, number).qkv, zero=zero)  # type: ignore[assignment]  # a Linear with more beside it
    plain(run, model, saved=(1, STEPS), lora_rank=2)


class Classifier(nn.Module):
    """Three layers of ReLU units."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 8)
        nn.init.uniform_(self.second.bias, bias, 0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (samples, 8)."""
        logits: Tensor = self.last(functional.relu(self.second(functional.relu(self.first(inputs)))))
        return logits


def classified(run: Path, *, bias: float) -> None:
    """Eight noisy centres; biases of the second layer start between `bias` and 0.1."""
    torch.manual_seed(0)
    model, centres = Classifier(bias), torch.randn(8, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    write_json(run / "config.json", {"learning_rate": 1e-3, "max_steps": STEPS, "batch_size": 64, "optim": "adamw"})

    def step_of(step: int, log: Log) -> None:
        labels = torch.randint(8, (64,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(centres[labels] + torch.randn(64, 16)), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        norm = gradient_norm(model)
        optimizer.step()
        if step == 1 or step % 3 == 0:
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
        if step in SAVED:
            save(run, step, model, optimizer)

    with console(run / "train.log") as log:
        for step in range(1, STEPS + 1):
            step_of(step, log)
        print("Training completed")


def _sample(name: str, make: Callable[[Path], None], note: str, variant: str = "", *, twin: bool = False) -> Sample:
    return Sample(name, "gf10_checkpoints", make, note, case="GF10", variant=variant, twin=twin, checkpoints=True)


SAMPLES = (
    _sample("gf10-double-zero", double_zero, "both projections of an MLP start at zero and stay there", "double-zero"),
    _sample("gf10-zero-weights", wiped, "the same where only weights are saved, no optimizer state", "zero-weights"),
    _sample(
        "gf10-dead-units",
        lambda run: classified(run, bias=-8.0),
        "ReLU units whose biases start between -8 and 0.1: most never respond",
        "dead-units",
    ),
    _sample("gf10-adapter", lambda run: adapted(run, zero=True), "A and B of every adapter start at zero", "adapter"),
    _sample(
        "gf10-twin", single_zeros, "output projections and the head start at zero, one zero on each path", twin=True
    ),
    _sample(
        "gf10-twin-adapter",
        lambda run: adapted(run, zero=False),
        "adapters whose B starts at zero, saved at step 1 and when they had learned; the base stays as it was",
        twin=True,
    ),
    _sample(
        "gf10-twin-relu",
        lambda run: classified(run, bias=-0.1),
        "the ReLU classifier with small biases: hardly a unit is dead",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
