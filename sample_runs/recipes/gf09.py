"""GF09: gradients that fade with depth, and a deep network that only begins so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from lab import VOCAB, WIDTH, Chain, Sample, constant, main, next_token_loss, plain_config, scheduler, write_json
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

DEPTH = 16
STEPS = 150
WARMUP = 10
LR = 1e-3


class DeepMLP(nn.Module):
    """Square layers between an embedding and a head, without residual paths or norms."""

    def __init__(
        self, activation: Callable[[Tensor], Tensor], depth: int = DEPTH, vocab: int = VOCAB, width: int = WIDTH
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)
        self.activation: Callable[[Tensor], Tensor] = activation

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of every next token from the present one."""
        hidden: Tensor = self.embedding(tokens)
        for layer in self.layers:
            hidden = self.activation(layer(hidden))
        logits: Tensor = self.head(hidden)
        return logits


def logged(run: Path, activation: Callable[[Tensor], Tensor], name: str) -> None:
    """Train with AdamW; TensorBoard gets loss, rate, the total gradient norm and that of every layer's weight."""
    chain = Chain.make()
    torch.manual_seed(0)
    model = DeepMLP(activation)
    generator = np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = scheduler(optimizer, constant(WARMUP))
    described = {"learning_rate": LR, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": WARMUP}
    write_json(run / "config.json", plain_config(**described, max_steps=STEPS, num_layers=DEPTH, activation=name))
    with SummaryWriter(str(run)) as writer:
        for step in range(1, STEPS + 1):
            tokens = chain.sample(generator)
            optimizer.zero_grad()
            loss = next_token_loss(model(tokens[:, :-1]), tokens)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            rate = float(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            if step > 1 and step % 2:
                continue
            for tag, value in (("loss", loss.item()), ("lr", rate), ("grad_norm", norm)):
                writer.add_scalar(f"train/{tag}", value, step)
            for layer, parameter in model.layers.named_parameters(prefix="layers"):
                if layer.endswith("weight") and parameter.grad is not None:
                    writer.add_scalar(f"grad_norm/{layer}", float(parameter.grad.norm()), step)
    for path in run.glob("events.out.tfevents.*"):  # the name holds the host and the process
        path.rename(run / "events.out.tfevents.1700000000.host.1.0")


def sigmoid(run: Path) -> None:
    """Sigmoid: its derivative is at most 1/4, so that every layer passes on a fraction of the gradient."""
    logged(run, torch.sigmoid, "sigmoid")


def relu(run: Path) -> None:
    """ReLU with PyTorch's default initialisation: small gradients at first, healthy after some dozens of steps."""
    logged(run, torch.relu, "relu")


SAMPLES = (
    Sample(
        "gf09-sigmoid",
        "gf09",
        sigmoid,
        "16 sigmoid layers without residual paths: the first layer gets a gradient 1e12 times smaller than the last",
        case="GF09",
    ),
    Sample(
        "gf09-twin",
        "gf09",
        relu,
        "16 ReLU layers at default initialisation: 5 decades from last to first layer at step 1, one after 80 steps",
        case="GF09",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
