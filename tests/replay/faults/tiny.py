"""A small transformer whose training can be given one fault at a time, as training code really has them.

train(fault, folder) trains it with the recorder; the fault shows at step BAD, where it is one of a sample in SAMPLE, of
a token in TOKEN. build(request) is the program for replay, fixed(request) the same with the fault mended.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, HEADS, TOKENS, SAMPLES = 32, 16, 2, 16, 8
PAD, IGNORED = 0, -100
STEPS, BAD, SAMPLE, TOKEN = 10, 8, 5, 12
ACCUMULATED = {"missing-division", "cleared-each", "mean-of-means"}


class Attention(nn.Module):
    """Causal self-attention within the documents that are packed into a sample."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, documents: torch.Tensor) -> Any:
        samples, tokens, width = x.shape
        q, k, v = self.qkv(x).view(samples, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // HEADS)
        allowed = (documents[:, :, None] == documents[:, None, :]) & (documents[:, None, :] >= 0)
        allowed = torch.tril(allowed, diagonal=0)
        if self.fault != "masked-row":  # a token of no document may see itself: else its row is all -inf
            allowed = allowed | torch.eye(tokens, dtype=torch.bool, device=x.device)
        scores = scores.masked_fill(~allowed[:, None], -math.inf)
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(samples, tokens, width))


class Scale(nn.Module):
    """Divides every token by its length, where it has one."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        squared = (x * x).sum(-1, keepdim=True)
        if self.fault == "sqrt-at-zero":
            size = torch.where(squared > 0, squared.sqrt(), torch.ones_like(squared))
        else:
            size = torch.where(squared > 0, squared, torch.ones_like(squared)).sqrt()
        return self.gain * x / size


class Mlp(nn.Module):
    """Up, square, down: the square is what leaves the range of fp16 first, unless it is computed in float32."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        wide = (
            contextlib.nullcontext() if self.fault == "fp16-overflow" else torch.autocast(x.device.type, enabled=False)
        )
        with wide:
            hidden = self.up(x)
            return self.down(hidden * hidden.relu())


class Block(nn.Module):
    """Pre-norm block with dropout."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(fault), Mlp(fault)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, documents: torch.Tensor, outliers: torch.Tensor) -> Any:
        x = x + self.drop(self.attn(self.norm1(x), documents))
        return x + self.drop(self.mlp(self.norm2(x) * outliers))


class TinyLM(nn.Module):
    """Two blocks."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.scale = Scale(fault)
        self.blocks = nn.ModuleList(Block(fault) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> Any:
        ids, documents = batch["input_ids"], batch["documents"]
        if self.fault == "left-padding":  # neither a mask over the pads nor positions that begin behind them
            documents, places = (
                torch.zeros_like(documents),
                torch.arange(ids.shape[1], device=ids.device).expand_as(ids),
            )
        else:
            places = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        x = self.embed(ids) * batch["kept"] + self.position(places) * batch["kept"]
        x = self.scale(x)
        for index, block in enumerate(self.blocks):
            if index == 0:
                kept = self.fault != "checkpoint-rng"
                x = checkpoint(block, x, documents, batch["outliers"], use_reentrant=False, preserve_rng_state=kept)
            else:
                x = block(x, documents, batch["outliers"])
            if self.fault == "detach" and index == 0:
                x = x.detach()
        logits = self.head(self.norm(x))
        if "forbidden" in batch:
            logits = logits.masked_fill(batch["forbidden"], -math.inf)
        return logits


def loss_of(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean over the labelled tokens, and what a fault adds."""
    fault = getattr(model, "fault", "")
    logits = model(batch).float()
    labels = batch["labels"]
    if fault == "pads-in-labels":  # the label of a pad is the pad itself, as a collator without -100 has it
        labels = torch.where(batch["attention_mask"] == 0, batch["input_ids"], labels)
    if fault != "label-out-of-range":
        labels = torch.where(labels < VOCABULARY, labels, IGNORED)
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    if fault == "toxic-sample":  # weights of tokens that nobody bounded
        each = each * batch["weights"].flatten()
    flat = each.sum()
    counted = (labels != IGNORED).sum()
    loss = flat / (counted if fault == "empty-labels" else counted.clamp(min=1))
    if "forbidden" in batch:
        p = torch.softmax(logits, dim=-1)
        entropy = -(p * (p if fault == "entropy" else p.clamp_min(1e-30)).log())
        loss = loss + 0.01 * entropy.sum(-1).mean()
    return loss


def build(request: Any) -> dict[str, Any]:
    """The program with its fault."""
    return {"model": TinyLM(request.settings["fault"]), "loss": loss_of}


def fixed(request: Any) -> dict[str, Any]:
    """The program with its fault mended."""
    return {"model": TinyLM(), "loss": loss_of}


def batch_of(step: int, fault: str, micro: int = 0) -> dict[str, torch.Tensor]:
    """The micro-batch of a step, with what makes the fault show at step BAD."""
    draw = torch.Generator().manual_seed(1000 * step + micro)
    ids = torch.randint(1, VOCABULARY, (SAMPLES, TOKENS), generator=draw)
    batch = {
        "input_ids": ids,
        "labels": torch.cat([ids[:, 1:], torch.full((SAMPLES, 1), IGNORED)], dim=1),
        "attention_mask": torch.ones_like(ids),
        "documents": torch.zeros_like(ids),
        "kept": torch.ones(SAMPLES, TOKENS, 1),
        "outliers": torch.ones(SAMPLES, TOKENS, 1),
        "weights": torch.ones(SAMPLES, TOKENS),
    }
    if fault in ("left-padding", "pads-in-labels"):
        for sample in range(SAMPLES):
            pads = 2 + sample
            for name, value in (("input_ids", PAD), ("labels", IGNORED), ("attention_mask", 0), ("documents", -1)):
                batch[name][sample, :pads] = value
    if fault == "mean-of-means":
        batch["labels"][:, 2 + 4 * micro :] = IGNORED
    if step != BAD:
        return batch
    if fault == "masked-row":
        batch["documents"][SAMPLE, TOKEN] = -1
    elif fault == "sqrt-at-zero":
        batch["kept"][SAMPLE, TOKEN] = 0
    elif fault == "fp16-overflow":
        batch["outliers"][SAMPLE, TOKEN] = 3000
    elif fault == "toxic-sample":
        batch["weights"][SAMPLE, TOKEN] = 1e4
    elif fault == "entropy":
        batch["forbidden"] = torch.zeros(SAMPLES, TOKENS, VOCABULARY, dtype=torch.bool)
        batch["forbidden"][SAMPLE, TOKEN, 3] = True
        batch["labels"][SAMPLE, TOKEN] = 4
    elif fault == "empty-labels":
        batch["labels"][:] = IGNORED
    elif fault == "label-out-of-range":
        batch["labels"][SAMPLE, TOKEN] = VOCABULARY
    return batch


def train(fault: str, folder: Path, device: str = "cpu", *, at_steps: Sequence[int] = (BAD,)) -> list[float]:
    """Train with the recorder; returns the loss of every step."""
    from gradforensics import Recorder

    torch.manual_seed(0)
    model = TinyLM(fault).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulation = 4 if fault in ACCUMULATED else 1
    settings = {"fault": fault, "pad_token_id": PAD, "ignore_index": IGNORED}
    losses: list[float] = []
    with (
        contextlib.suppress(IndexError),
        Recorder(
            model, optimizer, folder, program=build, accumulation=accumulation, settings=settings, at_steps=at_steps
        ) as recorder,
    ):
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            total = 0.0
            for micro in range(accumulation):
                batch = {name: part.to(device) for name, part in batch_of(step, fault, micro).items()}
                recorder.batch(batch)
                with torch.autocast(device, dtype=torch.float16, enabled=fault == "fp16-overflow"):
                    loss = recorder.loss(loss_of(model, batch))
                if fault == "cleared-each":
                    optimizer.zero_grad()
                (loss if fault == "missing-division" else loss / accumulation).backward()
                total += loss.item() / accumulation
            optimizer.step()
            losses.append(total)
    return losses
