"""Weights and moments in 16 bits, in checkpoints of real trainings: what rounding takes, and what gives it back."""

import math
from typing import NamedTuple

import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from gradforensics import checkpoint_signals
from gradforensics.diagnosis.checks.stored_precision import (
    gains_exactly_one,
    second_moments_vanish_in_fp16,
    stored_eps_rounds_to_zero,
    updates_rounded_away,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather
from gradforensics.tables import TABLES, Evidence

STEPS, SAVED, TOKENS, WIDTH = 120, (100, 120), 32, 24
AWAY = {"unchanged": 0.5, "most": 0.5, "certain": 2.0}
GAINS = {"share": 0.9, "fewest": 32, "updates": 50, "most": 0.5, "certain": 10.0}


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of torch only wait for each other on tensors of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    """A normalised layer beside the residual stream, initialised as torch does it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.outer(functional.gelu(self.inner(self.norm(hidden))))


def words():
    """A next-token model of two blocks."""
    return nn.Sequential(
        nn.Embedding(TOKENS, WIDTH), Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
    )


class Careful(torch.optim.Optimizer):
    """Adam on bfloat16 weights, written by hand: with Kahan summation, or with stochastic rounding."""

    def __init__(self, params, lr, *, kahan):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False})
        self.kahan = kahan

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                self.update(parameter, group)

    def update(self, parameter, group):
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        names = ["exp_avg", "exp_avg_sq"] + ["compensation"] * self.kahan
        state.setdefault("step", 0)
        for name in names:
            state.setdefault(name, torch.zeros_like(parameter))
        state["step"] += 1
        gradient = parameter.grad.float()
        mean = beta1 * state["exp_avg"].float() + (1 - beta1) * gradient
        square = beta2 * state["exp_avg_sq"].float() + (1 - beta2) * gradient**2
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        root = square.sqrt() / math.sqrt(1 - beta2 ** state["step"]) + group["eps"]
        change = -group["lr"] / (1 - beta1 ** state["step"]) * mean / root
        before = parameter.float()
        if self.kahan:
            change += state["compensation"].float()
            parameter.copy_(before + change)
            state["compensation"].copy_(change - (parameter.float() - before))
        else:
            noise = torch.randint(0, 1 << 16, before.shape, dtype=torch.int32)
            parameter.copy_(((before + change).view(torch.int32) + noise).bitwise_and(-65536).view(torch.float32))


def adamw(lr, **more):
    return lambda model: torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0, **more)


def trained(folder, dtype, optimizer, *, autocast=False, stored=None, saved=SAVED, factor=1.0):
    """Train on a chain of tokens and save as plain loops do.

    stored: the type in which the weights are saved; factor: of the loss.
    """
    torch.manual_seed(0)
    model = words().to(dtype)
    made, follow = optimizer(model), torch.randperm(TOKENS)
    for step in range(1, STEPS + 1):
        tokens = torch.randint(TOKENS, (64,))
        wanted = torch.where(torch.rand(64) < 0.8, follow[tokens], torch.randint(TOKENS, (64,)))
        made.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(tokens)
        (factor * functional.cross_entropy(logits.float(), wanted)).backward()
        made.step()
        if step in saved:
            weights = {name: tensor.to(stored or tensor.dtype) for name, tensor in model.state_dict().items()}
            torch.save({"model": weights, "optimizer": made.state_dict(), "step": step}, folder / f"step_{step}.pt")
    (found,) = gather([folder])
    return found


def matrices(evidence):
    """(share of the elements of matrices that changed between the checkpoints, share of the gains that are 1.0)."""
    (pair,) = checkpoint_signals.pairs(evidence) or []
    last = [w for w in checkpoint_signals.weights(evidence) or [] if w.step == SAVED[1]]
    moved = [w for w in last if w.kind in ("matrix", "head")]
    gains = [w for w in last if w.kind == "norm"]
    changed = sum(pair.rows[w.name]["changed"] * w.count for w in moved) / sum(w.count for w in moved)
    return changed, sum(w.one for w in gains) / sum(w.count for w in gains)


class Case(NamedTuple):
    dtype: torch.dtype
    lr: float
    changed: tuple[float, float]  # share of the elements that change in 20 steps, from, to
    ones: float  # share of the gains that are exactly 1.0
    away: bool  # whether that is a fault


@pytest.mark.parametrize(
    "case",
    [
        Case(torch.bfloat16, 3e-3, (0.8, 1.0), 0.95, away=False),
        Case(torch.bfloat16, 1e-4, (0.05, 0.3), 1.0, away=True),
        Case(torch.bfloat16, 1e-5, (0.0, 0.05), 1.0, away=True),
        Case(torch.float32, 3e-3, (0.99, 1.0), 0.0, away=False),
        Case(torch.float32, 1e-4, (0.99, 1.0), 0.0, away=False),
        Case(torch.float32, 1e-5, (0.99, 1.0), 0.0, away=False),
    ],
    ids=lambda case: f"{case.dtype} at {case.lr}",
)
def test_the_laboratory_rates_of_elements_that_change_come_out_again(tmp_path, case):
    evidence = trained(tmp_path, case.dtype, adamw(case.lr))
    changed, ones = matrices(evidence)
    assert case.changed[0] <= changed <= case.changed[1]
    assert abs(ones - case.ones) < 0.1
    hits = updates_rounded_away(evidence, **AWAY)
    assert isinstance(hits, list)
    assert [hit.step for hit in hits] == ([120] if case.away else [])
    if case.away:
        assert hits[0].facts["updates"] == 20
        assert hits[0].facts["unchanged"] == pytest.approx(1 - changed)
        typical, spacing = hits[0].facts["typical"], hits[0].facts["spacing"]
        assert isinstance(typical, float)
        assert isinstance(spacing, float)
        assert typical < spacing


def test_gains_of_one_are_a_fault_where_the_matrices_are_as_coarse_and_a_remark_where_not(tmp_path):
    for lr, how in ((1e-4, "lost"), (3e-3, "move")):
        folder = tmp_path / how
        folder.mkdir()
        evidence = trained(folder, torch.bfloat16, adamw(lr), saved=(120,))
        found = {way: gains_exactly_one(evidence, **GAINS, matrices=way) for way in ("lost", "move")}
        fired = found.pop(how)
        assert isinstance(fired, list)
        assert [hit.facts["gains"] for hit in fired] == [48]
        assert list(found.values()) == [[]]
        assert isinstance(updates_rounded_away(evidence, **AWAY), Missing)  # one checkpoint


@pytest.mark.parametrize("lr", [1e-4, 1e-5])
@pytest.mark.parametrize("how", ["autocast", "kahan", "stochastic"])
def test_whatever_keeps_the_updates_is_never_blamed(tmp_path, how, lr):
    if how == "autocast":
        evidence = trained(tmp_path, torch.float32, adamw(lr), autocast=True)
    else:
        evidence = trained(tmp_path, torch.bfloat16, lambda m: Careful(m.parameters(), lr, kahan=how == "kahan"))
    answer = updates_rounded_away(evidence, **AWAY)
    # so few updates at 1e-5 change no more elements under stochastic rounding than some schedules do under rounding
    assert isinstance(answer, Missing) if (how, lr) == ("stochastic", 1e-5) else answer == []
    assert gains_exactly_one(evidence, **GAINS, matrices="lost") == []
    assert gains_exactly_one(evidence, **GAINS, matrices="move") == []


def test_a_16_bit_copy_of_float32_weights_is_not_judged_unless_the_settings_say_that_it_is_none(tmp_path):
    evidence = trained(tmp_path, torch.float32, adamw(1e-5), stored=torch.bfloat16)
    assert matrices(evidence)[0] < 0.5
    assert isinstance(updates_rounded_away(evidence, **AWAY), Missing)
    assert isinstance(gains_exactly_one(evidence, **GAINS, matrices="lost"), Missing)
    (declared,) = gather([tmp_path], settings={"precision": "bf16-true"})
    assert not isinstance(gains_exactly_one(declared, **GAINS, matrices="lost"), Missing)


def test_adapters_in_float32_on_a_base_in_16_bits_lose_nothing(tmp_path):
    base, adapter = nn.Linear(16, 16).to(torch.bfloat16), nn.Linear(16, 16, bias=False)
    optimizer = torch.optim.AdamW(adapter.parameters(), 1e-4)
    for step in range(1, 5):
        optimizer.zero_grad()
        inputs = torch.randn(4, 16)
        (base(inputs.bfloat16()).float() + adapter(inputs)).square().mean().backward()
        optimizer.step()
        if step in (2, 4):
            weights = {f"base.{name}": tensor for name, tensor in base.state_dict().items()}
            weights |= {f"lora_B.{name}": tensor for name, tensor in adapter.state_dict().items()}
            state = {"model": weights, "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, tmp_path / f"step_{step}.pt")
    (evidence,) = gather([tmp_path])
    assert updates_rounded_away(evidence, **AWAY) == []


def test_weights_in_16_bits_without_their_optimizer_are_not_judged(tmp_path):
    torch.save({"model": words().to(torch.bfloat16).state_dict(), "step": 100}, tmp_path / "step_100.pt")
    (evidence,) = gather([tmp_path])
    assert updates_rounded_away(evidence, **AWAY) == Missing("the state of the optimizer beside weights in 16 bits")


@pytest.mark.parametrize(
    ("dtype", "factor", "fault"),
    [(torch.float16, 0.1, True), (torch.float16, 1.0, False), (torch.bfloat16, 0.1, False)],
)
def test_squares_of_small_gradients_are_0_in_float16_and_not_in_bfloat16(tmp_path, dtype, factor, fault):
    evidence = trained(tmp_path, dtype, adamw(1e-3, eps=1e-5), saved=(120,), factor=factor)
    hits = second_moments_vanish_in_fp16(evidence, share=0.01)
    assert isinstance(hits, list)
    assert bool(hits) == fault
    if fault:
        share, vanished, elements = (hits[0].facts[key] for key in ("share", "vanished", "elements"))
        assert isinstance(share, float)
        assert isinstance(vanished, int)
        assert isinstance(elements, int)
        assert 0.01 < share < 0.9
        assert 0 < vanished <= elements


def moments_of(dtype, eps, *, fused):
    """A checkpoint's table of states and groups."""
    row = {"checkpoint": "c.pt", "step": 3, "role": "exp_avg_sq", "name": "w", "dtype": dtype, "nan": 0, "zero": 0}
    group = {"checkpoint": "c.pt", "group": 0, "optimizer": "adamw", "betas": [0.9, 0.999], "eps": eps}
    group["values"] = f'{{"fused": {"true" if fused else "null"}}}'
    tables = {
        "tensors": [row],
        "groups": [group],
        "checkpoints": [{"path": "c.pt", "step": 3, "naming_sure": "exact"}],
    }
    return Evidence("run", tables={n: pl.DataFrame(rows, schema=TABLES[n]) for n, rows in tables.items()})


@pytest.mark.parametrize(
    ("dtype", "eps", "fused", "hits"),
    [
        ("float16", 1e-8, False, 1),
        ("float16", 1e-8, True, 0),  # computes in float32 and rounds the weight only
        ("float16", 1e-7, False, 0),
        ("bfloat16", 1e-8, False, 0),
        ("float32", 1e-8, False, 0),
    ],
)
def test_an_eps_below_the_numbers_of_float16_counts_where_the_states_have_that_format(dtype, eps, fused, hits):
    answer = stored_eps_rounds_to_zero(moments_of(dtype, eps, fused=fused), smallest=2.98e-8)
    assert isinstance(answer, list)
    assert len(answer) == hits
