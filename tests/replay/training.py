"""Small models that really train, and a plain loop that is recorded by hand, as a recorder would do it."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn

from gradforensics.replay.experiment import Context
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step
from gradforensics.replay.step import StepRunner
from gradforensics.torch_state import RandomState, autocast_state, total_norm

torch.set_num_threads(1)  # for tensors as small as these, more threads only wait

VOCABULARY, WIDTH, LENGTH, PAD = 31, 16, 24, 0


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, allowed=None):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None)
        x = x + self.dropout(self.out(heads.transpose(1, 2).reshape(rows, length, WIDTH)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class LM(nn.Module):
    """A causal language model with learned positions; `wrap` may run a block otherwise (checkpointed)."""

    def __init__(self, dropout=0.0, layers=2, wrap=None):
        super().__init__()
        torch.manual_seed(7)
        self.wrap = wrap
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        places = torch.arange(input_ids.shape[1]) if position_ids is None else position_ids
        x = self.embed(input_ids) + self.places(places)
        allowed = None
        if attention_mask is not None:
            length = input_ids.shape[1]
            causal = torch.ones(length, length, dtype=torch.bool).tril()
            allowed = causal & attention_mask.bool()[:, None, None, :] | torch.eye(length, dtype=torch.bool)
        for block in self.blocks:
            x = block(x, allowed) if self.wrap is None else self.wrap(block, x, allowed)
        return self.head(x)


def lm_loss(model, batch):
    """Mean over the valid labels; the model gets the rest of the batch."""
    logits = model(**{key: value for key, value in batch.items() if key != "labels"})
    return F.cross_entropy(logits.float().reshape(-1, VOCABULARY), batch["labels"].reshape(-1))


def tokens(rows, length, seed=0):
    """A batch with labels for the next token."""
    ids = torch.randint(1, VOCABULARY, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def record(
    model,
    loss,
    steps,
    *,
    keep=1,
    divide=True,
    clear_each=False,
    clip=None,
    autocast=None,
    scaler=None,
    optimizer=None,
    after_backward=None,
    settings=None,
    learning_rates=None,
):
    """Train over `steps` (lists of micro-batches) and record the last `keep`, with the state before them."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    names = {p: n for n, p in model.named_parameters()}
    weights, states = {}, {}
    recorded = []
    for index, batches in enumerate(steps):
        if index == len(steps) - keep:
            tensors = [*model.named_parameters(), *model.named_buffers()]
            weights = {n: t.detach().clone() for n, t in tensors}
            states = {
                names[p]: {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in s.items()}
                for p, s in optimizer.state.items()
            }
        if learning_rates is not None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rates[index]
        recorded.append(
            _step(model, loss, batches, index, optimizer, divide, clear_each, clip, autocast, scaler, after_backward)
        )
    kind = type(optimizer)
    return Recording(
        source="capsule by hand",
        steps=tuple(recorded[-keep:]),
        model=weights,
        frozen=frozenset(n for n, p in model.named_parameters() if not p.requires_grad),
        evaluating=frozenset(n for n, m in model.named_modules() if not m.training),
        optimizer_class=f"torch.optim.{kind.__name__}",
        optimizer=states,
        groups=tuple(tuple(names[p] for p in group["params"]) for group in optimizer.param_groups),
        settings=settings or {},
        device="cpu",
    )


def _step(model, loss, batches, index, optimizer, divide, clear_each, clip, autocast, scaler, after_backward):
    optimizer.zero_grad()
    micros = []
    for number, batch in enumerate(batches):
        if clear_each and number:
            optimizer.zero_grad()
        random = RandomState.capture()
        with torch.autocast("cpu", dtype=autocast) if autocast else nullcontext():
            state = autocast_state("cpu")
            value = loss(model, batch)
        seeds: list[torch.Tensor] = []
        value.register_hook(seeds.append)
        scaled = value / len(batches) if divide else value
        (scaled if scaler is None else scaler.scale(scaled)).backward()
        micros.append(Micro(batch, random, state, seeds[0].clone(), value.item(), cleared=clear_each and number > 0))
    scale = None if scaler is None else scaler.get_scale()
    if scaler is not None:
        scaler.unscale_(optimizer)
    if after_backward is not None:
        after_backward(model)
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    before = float(next(iter(model.parameters())).detach().double().sum())
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    options = tuple({k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups)
    after = float(next(iter(model.parameters())).detach().double().sum())
    losses = [m.loss for m in micros if m.loss is not None]
    return Step(
        index + 1, tuple(micros), options, scale, clip, sum(losses) / len(losses),
        float(total_norm(gradients.values())), scaler is not None and before == after, gradients,
    )  # fmt: skip


def runner(recording, model, loss, **fields):
    """A runner of the recording with a program of this model and loss."""
    return StepRunner(recording, Program(model, loss, **fields), "cpu")


def answers(experiment, recording, model, loss, *, logged=None, **fields):
    """The results of an experiment on the recording."""
    return list(experiment.run(Context(runner(recording, model, loss, **fields), logged or {})))
