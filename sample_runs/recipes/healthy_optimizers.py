"""Healthy runs with checkpoints of many optimizers and precisions: nothing may be said of any of them.

The hand-written optimizers keep their states under the keys and with the types that the public ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoint_lab import configure, objective, save, small_lm, train_and_save
from lab import Sample, constant, cosine, current_lr, json_lines, main, scheduler, train
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

torch.set_num_threads(1)

STEPS, SAVED = 80, (60, 61)
LONG, LATE = 240, (120, 121, 240)
Make = Callable[[Iterable[Tensor]], Optimizer]


class _Plain(Optimizer):
    """An optimizer that updates one parameter at a time, without closures."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # noqa: ARG002  torch's signature; no closure is used
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    with torch.no_grad():
                        self.update(parameter, parameter.grad, self.state[parameter], group)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Update one parameter."""
        raise NotImplementedError


class Lion(_Plain):
    """Chen et al. (2023): the sign of an interpolated gradient, one moment."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Decay, move by the sign, then update the moment."""
        moment = state.setdefault("exp_avg", torch.zeros_like(parameter))
        first, second = group["betas"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_((moment * first + gradient * (1 - first)).sign(), alpha=-group["lr"])
        moment.lerp_(gradient, 1 - second)


class _Adam(_Plain):
    """AdamW's arithmetic in float32, whatever the states are kept in."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, **options: object) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
        super().__init__(parameters, defaults | options)

    def change(self, first: Tensor, second: Tensor, step: int, group: dict[str, Any]) -> Tensor:
        """The change of a parameter for moments in float32, without the decay."""
        betas = group["betas"]
        root = (second / (1 - betas[1] ** step)).sqrt() + group["eps"]
        change: Tensor = -group["lr"] / (1 - betas[0] ** step) * first / root
        return change


class AdamW8bit(_Adam):
    """As bitsandbytes lays it out: states of many elements as codes of a table, scaled block by block."""

    BLOCK, LEAST = 64, 64

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Decode both states, update, encode."""
        state["step"] = state.get("step", 0) + 1
        small = parameter.numel() < self.LEAST
        if state["step"] == 1 and not small:
            positive = torch.cat([torch.zeros(1), torch.logspace(-7, 0, 255)])
            half = torch.logspace(-7, 0, 127)
            state["qmap1"], state["qmap2"] = torch.cat([-half.flip(0), torch.zeros(2), half]), positive
        moments = []
        for number, (beta, value) in enumerate(zip(group["betas"], (gradient, gradient.square()), strict=True), 1):
            old = torch.zeros_like(parameter) if state["step"] == 1 else self._decoded(state, number, parameter, small)
            moments.append(old.lerp(value, 1 - beta))
            self._encode(state, number, moments[-1], small)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(self.change(moments[0], moments[1], state["step"], group))

    def _decoded(self, state: dict[str, Any], number: int, parameter: Tensor, small: bool) -> Tensor:
        codes: Tensor = state[f"state{number}"]
        if small:
            return codes
        values = state[f"qmap{number}"][codes.long()].flatten()
        scale = state[f"absmax{number}"].repeat_interleave(self.BLOCK)[: values.numel()]
        decoded: Tensor = (values * scale).view_as(parameter)
        return decoded

    def _encode(self, state: dict[str, Any], number: int, value: Tensor, small: bool) -> None:
        if small:
            state[f"state{number}"] = value
            return
        blocks = nn.functional.pad(value.flatten(), (0, -value.numel() % self.BLOCK)).view(-1, self.BLOCK)
        scale = blocks.abs().amax(1).clamp(min=1e-30)
        table: Tensor = state[f"qmap{number}"]
        place = torch.bucketize(blocks / scale[:, None], (table[1:] + table[:-1]) / 2)
        state[f"absmax{number}"] = scale
        state[f"state{number}"] = place.flatten()[: value.numel()].view_as(value).to(torch.uint8)


class KahanAdamW(_Adam):
    """Weights and moments in bfloat16; what rounding loses of a weight is kept in a compensation."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr, use_kahan_summation=True)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Add the change and what was lost before; keep what is lost now."""
        first, second = _moments(parameter, gradient, state, group)
        lost = state.setdefault("compensation", torch.zeros_like(parameter))
        wanted = self.change(first, second, int(state["step"]), group)
        wanted = wanted - group["lr"] * group["weight_decay"] * parameter.float() + lost.float()
        before = parameter.float()
        parameter.copy_(before + wanted)
        lost.copy_(wanted - (parameter.float() - before))


class StochasticAdamW(_Adam):
    """Weights and moments in bfloat16; weights are rounded up or down with the chances that keep their mean."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr, bf16_stochastic_round=True)
        self.generator = torch.Generator().manual_seed(3)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Add 16 random bits below the last one that is kept, then cut."""
        first, second = _moments(parameter, gradient, state, group)
        value = parameter.float() * (1 - group["lr"] * group["weight_decay"])
        value = value + self.change(first, second, int(state["step"]), group)
        bits = value.view(torch.int32)
        noise = torch.randint(1 << 16, bits.shape, generator=self.generator, dtype=torch.int32)
        parameter.copy_(((bits + noise) & -65536).view(torch.float32))


def _moments(
    parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Both moments in float32 after they were updated and stored in the type of the parameter."""
    state["step"] = state.get("step", torch.zeros(())) + 1
    found = []
    for key, beta, value in zip(
        ("exp_avg", "exp_avg_sq"), group["betas"], (gradient.float(), gradient.float().square()), strict=True
    ):
        kept = state.setdefault(key, torch.zeros_like(parameter))
        kept.copy_(kept.float().lerp(value, 1 - beta))
        found.append(kept.float())
    return found[0], found[1]


# ----------------------------------------------------------------------------------------------------------------- runs


def language(
    run: Path,
    make: Make,
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    steps: int = STEPS,
    saved: tuple[int, ...] = SAVED,
    warmup: int = 10,
    **facts: object,
) -> None:
    """The small language model in a plain loop with the optimizer that `make` gives."""
    model = small_lm(layers=1, width=8).to(dtype)
    optimizer = make(model.parameters())
    configure(run, learning_rate=current_lr(optimizer), warmup_steps=warmup, max_steps=steps, optim=name, **facts)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(
            run, model, optimizer, objective(model), log,
            steps=steps, saved=saved, schedule=scheduler(optimizer, constant(warmup)),
        )  # fmt: skip


def muon(run: Path) -> None:
    """torch's Muon for the matrices of the block, AdamW for all else: two optimizers in one file."""
    model = small_lm(layers=1, width=8)
    hidden = [p for name, p in model.named_parameters() if p.dim() == 2 and name.startswith("blocks.")]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or not name.startswith("blocks.")]
    optimizers = (torch.optim.Muon(hidden, lr=0.02, weight_decay=0.01), torch.optim.AdamW(others, lr=3e-3))
    configure(run, learning_rate=0.02, adam_learning_rate=3e-3, max_steps=STEPS, optim="muon")
    loss = objective(model)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            model.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            for optimizer in optimizers:
                optimizer.step()  # type: ignore[no-untyped-call]  # torch leaves Muon's untyped
            log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": 0.02})
            if step in SAVED:
                save(run, step, model, optimizers[1], optimizer_muon=optimizers[0].state_dict())


def autocast(run: Path) -> None:
    """Weights in float32, the forward pass in bfloat16: gains next to 1 move by less than bfloat16 could hold."""
    model = small_lm(layers=1, width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    plain = objective(model)

    def loss(step: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(step)

    configure(run, learning_rate=1e-3, warmup_steps=10, max_steps=LONG, bf16=True)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(
            run, model, optimizer, loss, log, steps=LONG, saved=LATE[:2], schedule=scheduler(optimizer, constant(10))
        )


def exported(run: Path) -> None:
    """Trained in float32, exported as bfloat16 at three steps, without the optimizer: many gains read exactly 1."""
    model = small_lm(layers=1, width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    schedule, loss = scheduler(optimizer, cosine(10, LONG)), objective(model)
    configure(
        run, learning_rate=1e-3, warmup_steps=10, lr_scheduler_type="cosine", max_steps=LONG, torch_dtype="bfloat16"
    )
    with json_lines(run / "metrics.jsonl") as log:
        for begin, end in zip((1, *[step + 1 for step in LATE]), LATE, strict=False):
            train(model, optimizer, loss, log, steps=end, first=begin, schedule=schedule)
            folder = run / f"checkpoint-{end}"
            folder.mkdir()
            save_file(
                {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()},
                folder / "model.safetensors",
                metadata={"format": "pt"},
            )


def one_cycle(run: Path) -> None:
    """OneCycleLR, which moves the first beta of AdamW against the rate: saved on its way down."""
    model = small_lm(layers=1, width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS, pct_start=0.3)
    _scheduled(run, model, optimizer, schedule, saved=(71, 72), learning_rate=6e-3, lr_scheduler_type="onecycle")


def in_sequence(run: Path) -> None:
    """Linear warm-up, then cosine, joined by SequentialLR: saved where one takes over from the other."""
    model = small_lm(layers=1, width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS - 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], milestones=[20])
    facts = {"learning_rate": 4e-3, "warmup_steps": 20, "lr_scheduler_type": "cosine"}
    _scheduled(run, model, optimizer, schedule, saved=(20, 21), **facts)


def _scheduled(
    run: Path, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler, *, saved: tuple[int, ...], **facts: object
) -> None:
    configure(run, max_steps=STEPS, **facts)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=STEPS, saved=saved, schedule=schedule)


def plateau(run: Path) -> None:
    """ReduceLROnPlateau on the loss of held-out tokens, every 20 steps: it has lowered the rate when 240 is saved."""
    model = small_lm(layers=1, width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.03)
    loss, held_out = objective(model), objective(model, seed=2)
    configure(run, learning_rate=1e-2, max_steps=LONG, lr_scheduler_type="reduce_lr_on_plateau")
    with json_lines(run / "metrics.jsonl") as log:
        for end in range(20, LONG + 1, 20):
            train(model, optimizer, loss, log, first=end - 19, steps=end)
            with torch.no_grad():
                value = sum(held_out(step).item() for step in range(8)) / 8
            log({"step": end, "val_loss": value})
            schedule.step(value)
            if end in (120, LONG):
                save(run, end, model, optimizer, scheduler=schedule.state_dict())


def layer_decay(run: Path) -> None:
    """One group per depth, each with 0.7 of the rate of the one above it; no decay of vectors."""
    model = small_lm(layers=2, width=8)
    depth = {"embedding": 3, "position": 3, "blocks.0": 2, "blocks.1": 1, "norm": 0, "head": 0}
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        level = next(value for begin, value in depth.items() if name.startswith(f"{begin}."))
        matrix = parameter.dim() > 1
        facts = {"params": [], "lr": 4e-3 * 0.7**level, "weight_decay": 0.05 if matrix else 0.0}
        groups.setdefault((level, matrix), facts)["params"].append(parameter)
    optimizer = torch.optim.AdamW(groups[key] for key in sorted(groups))
    configure(run, learning_rate=4e-3, layerwise_lr_decay=0.7, warmup_steps=10, max_steps=STEPS)
    with json_lines(run / "metrics.jsonl") as log:
        schedule = scheduler(optimizer, constant(10))
        train_and_save(run, model, optimizer, objective(model), log, steps=STEPS, saved=SAVED, schedule=schedule)


def _run(name: str, make: Callable[[Path], None], note: str, case: str) -> Sample:
    return Sample(f"healthy-{name}", "healthy_optimizers", make, note, case=case, twin=True, checkpoints=True)


def _with(name: str, note: str, make: Make, optim: str, case: str = "GF18", **facts: Any) -> Sample:
    return _run(name, lambda run: language(run, make, optim, **facts), note, case)


AdamW = torch.optim.AdamW
SAMPLES = (
    _with("lion", "Lion: one moment, updates of one size", lambda p: Lion(p, 1e-3), "lion"),
    _run("muon", muon, "Muon for the block's matrices and AdamW for the rest, two optimizers in one file", "GF18"),
    _with(
        "8bit", "AdamW with 8-bit states in blocks, as bitsandbytes", lambda p: AdamW8bit(p, 3e-3), "adamw_bnb_8bit",
        "GF30",
    ),
    _with(
        "adafactor",
        "transformers' Adafactor with its relative step: factored second moments, no first",
        lambda p: transformers.Adafactor(p, lr=1e-2, relative_step=False, scale_parameter=False),
        "adafactor",
    ),
    _with(
        "adafactor-torch", "torch's Adafactor", lambda p: torch.optim.Adafactor(p, lr=1e-2), "adafactor",
    ),
    _with(
        "sgd", "SGD with Nesterov momentum",
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True), "sgd",
    ),
    _with("amsgrad", "AdamW with amsgrad", lambda p: AdamW(p, lr=3e-3, amsgrad=True), "adamw_torch", "GF30"),
    _with("fused", "the fused AdamW", lambda p: AdamW(p, lr=3e-3, fused=True), "adamw_torch_fused", "GF30"),
    _with("rmsprop", "RMSprop, centered", lambda p: torch.optim.RMSprop(p, lr=2e-3, centered=True), "rmsprop"),
    _with(
        "kahan", "weights and moments in bfloat16, with Kahan summation", lambda p: KahanAdamW(p, 1e-3),
        "adamw_kahan", "GF13", dtype=torch.bfloat16, steps=LONG, saved=LATE[:2], bf16=True,
    ),
    _with(
        "stochastic-rounding", "weights and moments in bfloat16, rounded stochastically",
        lambda p: StochasticAdamW(p, 1e-3),
        "adamw", "GF13", dtype=torch.bfloat16, steps=LONG, saved=LATE[:2], bf16=True,
    ),
    _run("autocast", autocast, "weights in float32, forward pass under autocast to bfloat16", "GF13"),
    _run("bf16-export", exported, "trained in float32, exported as bfloat16 without the optimizer", "GF13"),
    _run("onecycle", one_cycle, "OneCycleLR with cycle_momentum: the betas change from step to step", "GF30"),
    _run("sequential-lr", in_sequence, "SequentialLR of a warm-up and a cosine", "GF07"),
    _run("plateau", plateau, "ReduceLROnPlateau has halved the rate between two checkpoints", "GF18"),
    _run("layer-decay", layer_decay, "a rate per layer that falls towards the embedding", "GF18"),
)  # fmt: skip

if __name__ == "__main__":
    main(SAMPLES)
