"""GF04: errors about a graph that was freed, changed in place or recomputed otherwise, and near misses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from crashes import whole_console
from lab import (
    BATCH,
    LENGTH,
    VOCAB,
    Sample,
    adamw,
    beginning,
    gradient_norm,
    main,
    next_token_loss,
    plain_config,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS = 120
CHANGE = 60
"""The step behind which the fault comes into play."""
LR = 3e-3


class Recurrent(nn.Module):
    """A GRU over tokens that gives its state back."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 64)
        self.cell = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, VOCAB)

    def forward(self, tokens: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits of the next tokens and the last state."""
        hidden, last = self.cell(self.embedding(tokens), state)
        return self.head(hidden), last


def fit(run: Path, model: nn.Module, objective: Callable[[int], Tensor], **facts: object) -> None:
    """Train, the whole console in train.log."""
    write_json(run / "config.json", plain_config(learning_rate=LR, lr_scheduler_type="constant", **facts))
    with whole_console(run / "train.log") as log:
        train(model, adamw(model, LR), objective, log, steps=STEPS)
        print("Training completed")


def freed(run: Path) -> None:
    """Truncated backpropagation through time; documents go beyond one chunk later, and detach() is not stored."""
    chain, _, generator = beginning()
    model = Recurrent()
    carried: list[Tensor] = []

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        logits, last = model(tokens[:, :-1], carried.pop() if carried and step > CHANGE else None)
        last.detach()
        carried[:] = [last]
        return next_token_loss(logits, tokens)

    fit(run, model, objective)


def in_place(run: Path) -> None:
    """A mask of the hidden states, switched on later, is multiplied in place into what sigmoid needs for backward."""
    chain, model, generator = beginning()
    gate = nn.Linear(64, 64)
    model.add_module("gate", gate)

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        hidden = model.states(tokens[:, :-1])
        opened = torch.sigmoid(gate(hidden))
        if step > CHANGE:
            opened *= torch.rand_like(opened) > 0.1
        return next_token_loss(model.head(hidden * opened), tokens)

    fit(run, model, objective)


def recomputed(run: Path) -> None:
    """A block under activation checkpointing keeps a cache, which the recomputation finds filled."""
    chain, model, generator = beginning()
    scale = nn.Linear(64, 64)
    model.add_module("scale", scale)
    cache: dict[int, Tensor] = {}

    def block(hidden: Tensor, step: int) -> Tensor:
        if step not in cache:
            cache[step] = torch.tanh(scale(hidden)).mean(dim=1, keepdim=True)
        return hidden + cache[step] * hidden

    def objective(step: int) -> Tensor:
        tokens = chain.sample(generator)
        hidden = model.states(tokens[:, :-1])
        if step > CHANGE:
            hidden = checkpoint(block, hidden, step, use_reentrant=False)
        return next_token_loss(model.head(hidden), tokens)

    fit(run, model, objective)


def survived(run: Path) -> None:
    """The same mask in every tenth step from step CHANGE on; the program catches the error and skips the step."""
    chain, model, generator = beginning()
    gate = nn.Linear(64, 64)
    model.add_module("gate", gate)
    optimizer = adamw(model, LR)
    write_json(run / "config.json", plain_config(learning_rate=LR, lr_scheduler_type="constant"))
    with whole_console(run / "train.log") as log:
        for step in range(1, STEPS + 1):
            tokens = chain.sample(generator)
            hidden = model.states(tokens[:, :-1])
            opened = torch.sigmoid(gate(hidden))
            if step > CHANGE and step % 10 == 5:
                opened *= torch.rand_like(opened) > 0.1
            loss = next_token_loss(model.head(hidden * opened), tokens)
            optimizer.zero_grad()
            try:
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            except RuntimeError as error:
                print(f"WARNING skipping batch {step}: {error!r}")
                continue
            optimizer.step()
            log({"step": step, "loss": loss.item(), "grad_norm": gradient_norm(model), "lr": LR})
        print("Training completed")


def item_inside(run: Path) -> None:
    """Activation checkpointing of every block, with .item() inside the checkpointed function."""
    chain, model, generator = beginning()
    largest = 0.0

    def block(layer: nn.Module, hidden: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, hidden.abs().max().item())
        out: Tensor = layer(hidden)
        return out

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        hidden = model.embedding(tokens[:, :-1]) + model.position.weight[:LENGTH]
        for layer in model.blocks:
            hidden = checkpoint(block, layer, hidden, use_reentrant=False)
        return next_token_loss(model.head(model.norm(hidden)), tokens)

    fit(run, model, objective, gradient_checkpointing=True)


def double_backward(run: Path) -> None:
    """A gradient penalty: the first gradient is wanted as a graph (create_graph), and backward runs through it."""
    chain, model, generator = beginning()

    def objective(_step: int) -> Tensor:
        tokens = chain.sample(generator, count=BATCH // 2)
        embedded = model.embedding(tokens[:, :-1]) + model.position.weight[:LENGTH]
        hidden = embedded
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            for layer in model.blocks:
                hidden = layer(hidden)
            loss = functional.cross_entropy(model.head(model.norm(hidden)).flatten(0, 1), tokens[:, 1:].flatten())
            (slope,) = torch.autograd.grad(loss, embedded, create_graph=True)
        total: Tensor = loss + 10.0 * slope.square().sum()
        return total

    fit(run, model, objective)


SAMPLES = (
    Sample(
        "gf04-freed-graph",
        "gf04",
        freed,
        "the state of a GRU is carried into the next chunk with its graph (the result of detach() is not stored)",
        case="GF04",
        variant="freed-graph",
        ending="exception",
    ),
    Sample(
        "gf04-changed-in-place",
        "gf04",
        in_place,
        "a mask is multiplied in place into the output of a sigmoid, which backward needs",
        case="GF04",
        variant="changed-in-place",
        ending="exception",
    ),
    Sample(
        "gf04-recomputed-otherwise",
        "gf04",
        recomputed,
        "a checkpointed block keeps a cache: its recomputation saves fewer tensors than its forward pass",
        case="GF04",
        variant="recomputed-otherwise",
        ending="exception",
    ),
    Sample(
        "gf04-survived",
        "gf04",
        survived,
        "the same in every tenth step of the second half; the program catches the error and skips the step",
        case="GF04",
        variant="survived",
        primary="",
    ),
    Sample(
        "gf04-twin-item",
        "gf04",
        item_inside,
        "activation checkpointing with .item() inside the checkpointed function: that is fine",
        case="GF04",
        twin=True,
    ),
    Sample(
        "gf04-twin-double-backward",
        "gf04",
        double_backward,
        "a gradient penalty with create_graph=True: the second backward is wanted",
        case="GF04",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
