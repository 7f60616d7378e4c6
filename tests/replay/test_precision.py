"""The experiment "precision": overflow and underflow that are really there, and steps of which neither is the fault."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn

from gradforensics.capsule import Autocast
from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.precision import EXPERIMENT
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step
from gradforensics.replay.step import StepRunner

VOCABULARY, WIDTH, TOKENS = 17, 16, 6
FP16, BF16, OFF = (
    Autocast("cpu", on, dtype) for on, dtype in ((True, "float16"), (True, "bfloat16"), (False, "bfloat16"))
)
NAMES = ("recorded", "float32", "bfloat16", "float16")


class Mlp(nn.Module):
    """Its square leaves the range of fp16 first."""

    def __init__(self, gain):
        super().__init__()
        self.up, self.down, self.gain = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), gain

    def forward(self, x):
        hidden = self.up(x) * self.gain
        return self.down(hidden * hidden.relu())


class Model(nn.Module):
    def __init__(self, gain=1.0, mask=None):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.drop = nn.Embedding(VOCABULARY, WIDTH), nn.Dropout(0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.mlps = nn.ModuleList((Mlp(1.0), Mlp(gain)))
        self.head, self.mask = nn.Linear(WIDTH, VOCABULARY), mask

    def forward(self, ids):
        x = self.embed(ids)
        for norm, mlp in zip(self.norms, self.mlps, strict=False):
            x = x + self.drop(mlp(norm(x)))
        logits = self.head(self.norms[2](x))
        return logits if self.mask is None else logits.masked_fill(self.mask, -math.inf)


def loss_of(model, batch):
    return F.cross_entropy(model(batch["ids"]).float().flatten(0, 1), batch["labels"].flatten())


def tokens():
    ids = torch.randint(0, VOCABULARY, (4, TOKENS), generator=torch.Generator().manual_seed(1))
    return {"ids": ids, "labels": ids.roll(-1, 1)}


def answers(model, autocast=None, loss=loss_of, batch=None, **step):
    micros = (Micro(tokens() if batch is None else batch, autocast=autocast),)
    runner = StepRunner(Recording("by hand", (Step(8, micros, **step),)), Program(model, loss), "cpu")
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    found = list(EXPERIMENT.run(Context(runner)))
    assert runner.spent <= EXPERIMENT.cost(Context(runner)) <= 4
    runner.restore()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, saved[name], rtol=0, atol=0, equal_nan=True)
    return found


def test_an_overflow_in_an_activation_is_there_in_fp16_and_gone_in_wider_precisions():
    fault, verified = answers(Model(gain=1e3), FP16)
    assert (fault.outcome, verified.outcome) == ("fault", "verified")
    assert [fault.number("finite", name) for name in NAMES] == [0, 1, 1, 0]
    assert fault.text("module") == "mlps.1"
    assert fault.number("max_activation", "float32") > 65504
    assert fault.number("headroom") < 0
    assert math.isnan(fault.number("loss", "recorded"))
    assert verified.changed == "autocast float16 -> float32"
    assert verified.conclusion.endswith("gone in float32 and in bfloat16.")
    assert (verified.number("finite", "recorded"), verified.number("finite", "float32")) == (0, 1)


def test_the_same_activation_in_bfloat16_is_clean():
    (result,) = answers(Model(gain=1e3), BF16)
    assert result.outcome == "clean"
    assert result.number("finite", "float16") == 0
    assert result.number("headroom") < 0


@pytest.mark.parametrize("autocast", [None, OFF, FP16, BF16], ids=["none", "off", "float16", "bfloat16"])
def test_a_healthy_step_is_clean_and_agrees_in_all_precisions(autocast):
    (result,) = answers(Model(mask=torch.arange(VOCABULARY) == 99), autocast)
    assert result.outcome == "clean"
    losses = [result.number("loss", name) for name in NAMES]
    assert losses == [pytest.approx(losses[1], rel=1e-2)] * 4
    same = {None: "float32", OFF: "float32", FP16: "float16", BF16: "bfloat16"}[autocast]
    assert result.number("loss", "recorded") == result.number("loss", same)
    others = {result.number("loss", name) for name in NAMES[1:]}
    assert len(others) == 3  # each was really computed in its own precision
    assert 8 < result.number("headroom") < 20


def test_an_intended_infinity_is_no_module_out_of_range():
    mask = torch.zeros(VOCABULARY, dtype=torch.bool)
    mask[3] = True
    batch = tokens()
    batch["labels"][batch["labels"] == 3] = 4
    (healthy,) = answers(Model(mask=mask), FP16, batch=batch)
    assert (healthy.outcome, healthy.text("module")) == ("clean", "")
    fault, _ = answers(Model(gain=1e3, mask=mask), FP16, batch=batch)
    assert fault.text("module") == "mlps.1"


def test_an_activation_close_to_the_limit_is_not_called_clean():
    (result,) = answers(Model(gain=120), FP16)
    assert result.outcome == "inconclusive"
    assert 0 < result.number("headroom") < 3
    assert "the largest result of a module, in drop, is 2.7 bits below" in result.conclusion


def test_weights_of_half_precision_are_cast_and_those_of_float32_kept():
    model = Model(gain=1e3).half()
    seen = []
    for norm in model.norms:
        norm.float()
        norm.register_forward_pre_hook(lambda _, args: (args[0].float(),))
        norm.register_forward_hook(lambda _module, _args, out: out.to(model.head.weight.dtype))
    model.head.register_forward_hook(lambda module, *_: seen.append((module.weight.dtype, model.norms[0].weight.dtype)))
    fault, verified = answers(model)
    assert (fault.outcome, verified.outcome) == ("fault", "verified")
    assert verified.changed == "float16 -> float32"
    assert [fault.number("finite", name) for name in NAMES] == [0, 1, 1, 0]
    assert seen == [(dtype, torch.float32) for dtype in (torch.float16, torch.float32, torch.bfloat16)]


def small_loss(model, batch):
    return loss_of(model, batch) * 1e-7


def test_a_gradient_that_underflows_in_fp16_is_named_and_kept_by_a_loss_scale():
    fault, verified = answers(Model(), FP16, small_loss)
    assert (fault.outcome, verified.outcome) == ("fault", "verified")
    assert "underflows in float16" in fault.conclusion
    assert fault.number("zero_gradients", "recorded") > 0.9
    assert fault.number("zero_gradients", "float32") < 0.1
    assert "weight" in fault.conclusion
    (scaled,) = answers(Model(), FP16, small_loss, scale=65536.0)
    assert scaled.outcome == "clean"
    (bf16,) = answers(Model(), BF16, small_loss)
    assert bf16.outcome == "clean"


def test_a_gradient_out_of_range_by_the_loss_scale_points_to_the_scale():
    fault, verified = answers(Model(), FP16, scale=2.0**26)
    assert (fault.outcome, verified.outcome) == ("fault", "verified")
    assert "loss scale of 6.71089e+07" in fault.conclusion


def no_label(model, batch):
    return loss_of(model, {**batch, "labels": torch.full_like(batch["labels"], -100)})


def raising(model, batch):
    raise IndexError("nothing there")


@pytest.mark.parametrize("autocast", [None, FP16], ids=["float32", "float16"])
@pytest.mark.parametrize("loss", [no_label, raising])
def test_what_fails_in_every_precision_is_no_matter_of_precision(loss, autocast):
    (result,) = answers(Model(), autocast, loss)
    assert result.outcome == "unverified"
    assert [result.number("finite", name) for name in NAMES] == [0] * 4


def test_an_overflow_of_float32_that_narrower_precision_does_not_show_is_not_called_cured():
    def loss(model, batch):
        x = model.embed(batch["ids"])
        return loss_of(model, batch) + (x * math.inf if torch.is_autocast_enabled("cpu") is False else x).sum() * 0

    (result,) = answers(Model(), None, loss)
    assert result.outcome == "inconclusive"
    assert result.number("finite", "bfloat16") == 1


def own_autocast(model, batch):
    with torch.autocast("cpu", dtype=torch.float16):
        return loss_of(model, batch)


@pytest.mark.parametrize("gain", [1.0, 1e3])
def test_a_program_that_chooses_its_precision_itself_gives_no_verdict(gain):
    (result,) = answers(Model(gain), FP16, own_autocast)
    assert result.outcome == "inconclusive"
    assert "itself" in result.conclusion


def test_a_model_that_calls_no_module_has_no_headroom():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    (result,) = answers(
        Bare(), loss=lambda model, batch: (batch @ model.weight).square().mean(), batch=torch.ones(3, 4)
    )
    assert result.outcome == "clean"
    assert result.number("headroom") is None
    assert "not known" in result.conclusion
