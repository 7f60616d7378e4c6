"""GF38: rows of embeddings that nothing trains, that only decay, that stay zero or outgrow all others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from checkpoint_lab import CHAIN, VOCAB, configure, save, small_lm
from lab import LENGTH, Chain, Sample, TinyLM, console, current_lr, main, next_token_loss
from torch import Tensor, nn
from torch.optim import Optimizer

STEPS, SAVED, WIDTH = 120, (40, 120), 8
KNOWN = 24
"""Tokens that occur in the texts of the runs in which some do not."""


def train(
    run: Path,
    model: TinyLM,
    optimizer: Optimizer,
    *,
    chain: Chain = CHAIN,
    read: Callable[[Tensor], Tensor] = lambda tokens: tokens,
    before_step: Callable[[int], object] = lambda _step: None,
    steps: int = STEPS,
    saved: tuple[int, ...] = SAVED,
    vocabulary: int = VOCAB,
) -> None:
    """Train on sequences of `chain`; read: what becomes of the ids before the model sees them (labels stay)."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(1)
    configure(run, hidden_size=WIDTH, vocab_size=vocabulary, learning_rate=current_lr(optimizer), max_steps=steps)
    with console(run / "train.log") as log:
        for step in range(1, steps + 1):
            tokens = chain.sample(generator, length=LENGTH // 2 + 1)
            optimizer.zero_grad()
            value = next_token_loss(model(read(tokens[:, :-1])), tokens)
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            before_step(step)
            optimizer.step()
            if step % 4 == 0:
                log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in saved:
                save(run, step, model, optimizer)


def adamw(model: nn.Module, decay: float = 0.1) -> Optimizer:
    """AdamW at 3e-3."""
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=decay)


def few_rows(run: Path) -> None:
    """A tokenizer whose vocabulary is not the model's: every id but one becomes that of the unknown token."""
    model = small_lm(width=WIDTH)
    train(run, model, adamw(model), read=lambda tokens: tokens.clamp(max=1), saved=(STEPS,))


def decaying(run: Path) -> None:
    """A strong weight decay on the whole embedding, a quarter of whose tokens do not occur."""
    model = small_lm(width=WIDTH)
    train(run, model, adamw(model, 0.3), chain=Chain.make(vocab=KNOWN), steps=240, saved=(40, 240))


def zero_rows(run: Path) -> None:
    """A table that was enlarged by five rows of zeros, for tokens that the texts do not hold."""
    model = small_lm(width=WIDTH)
    with torch.no_grad():
        rows = torch.cat([model.embedding.weight[:KNOWN], torch.zeros(5, WIDTH)])
    model.embedding = nn.Embedding(KNOWN + 5, WIDTH)
    model.embedding.weight = nn.Parameter(rows)
    train(run, model, adamw(model), chain=Chain.make(vocab=KNOWN), vocabulary=KNOWN + 5)


def dominating(run: Path) -> None:
    """SGD with embedding gradients that are divided by the token's frequency; from step 41 one of these is wrong."""
    model = small_lm(width=WIDTH)
    frequency = torch.from_numpy(CHAIN.stationary).float() * VOCAB
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def weigh(step: int) -> None:
        gradient = model.embedding.weight.grad
        assert gradient is not None
        if step == SAVED[0] + 1:
            frequency[-1] *= 1e-3
        gradient /= frequency.unsqueeze(-1)

    train(run, model, optimizer, before_step=weigh)


def healthy(run: Path) -> None:
    """A padding row of zeros, a quarter of the tokens never seen, the usual decay."""
    model = small_lm(width=WIDTH)
    with torch.no_grad():
        model.embedding.weight[-1] = 0
    model.embedding.padding_idx = VOCAB - 1
    train(run, model, adamw(model), chain=Chain.make(vocab=KNOWN))


SAMPLES = (
    Sample(
        "gf38-few-rows",
        "gf38",
        few_rows,
        "all ids but 0 become 1 before the model sees them (a tokenizer of another model); the labels are right",
        case="GF38",
        variant="few-rows",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf38-unseen-decay",
        "gf38",
        decaying,
        "8 of 32 tokens never occur; AdamW with a decay of 0.3 shrinks their rows by a sixth in 200 steps",
        case="GF38",
        variant="unseen-decay",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf38-zero-rows",
        "gf38",
        zero_rows,
        "an embedding that was enlarged by five rows of zeros, whose tokens never occur",
        case="GF38",
        variant="zero-rows",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf38-row-dominates",
        "gf38",
        dominating,
        "embedding gradients are divided by a token's frequency, which becomes a thousand times too small for one",
        case="GF38",
        variant="row-dominates",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf38-twin",
        "gf38",
        healthy,
        "a padding row of zeros and unseen tokens under the usual decay of 0.1",
        case="GF38",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
