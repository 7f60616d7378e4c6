"""The experiment "anomaly": faults that are really injected into a small transformer, and twins that are none."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradforensics.capsule import Autocast
from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.anomaly import EXPERIMENT
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step
from gradforensics.replay.step import StepRunner

VOCABULARY, WIDTH, SAMPLES, TOKENS = 17, 16, 4, 6
FP16 = Autocast("cpu", True, "float16")
MAX = torch.finfo(torch.float32).max


def same(x, *_):
    return x


def causal(scores, _):
    return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)


class Attention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.qkv, self.out, self.mask = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), mask

    def forward(self, x, batch):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = self.mask(q @ k.transpose(-1, -2) / math.sqrt(WIDTH // 2), batch)
        mixed = torch.softmax(scores, dim=-1) @ v  # line: softmax
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.up, self.down, self.gain = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), gain

    def forward(self, x):
        hidden = self.up(x * self.gain)  # line: up
        return self.down(F.layer_norm(torch.relu(hidden), hidden.shape[-1:]))


class Block(nn.Module):
    def __init__(self, mask, gain):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp, self.drop = Attention(mask), Mlp(gain), nn.Dropout(0.1)

    def forward(self, x, batch):
        x = x + self.drop(self.attn(self.norm1(x), batch))
        return x + self.drop(self.mlp(self.norm2(x)))


class Tail(nn.Module):
    """Whatever a test puts behind the blocks."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, batch):
        return self.function(x, batch)


class Tiny(nn.Module):
    def __init__(self, mask=causal, gain=1.0, tail=same, wrap=None):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(mask, gain) for _ in range(2))
        self.tail, self.head = Tail(tail), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.wrap = wrap or (lambda module, *args: module(*args))

    def forward(self, batch):
        x = self.embed(batch["input_ids"])
        if "kept" in batch:
            x = x * batch["kept"][..., None]
        for block in self.blocks:
            x = self.wrap(block, x, batch)
        return self.head(self.wrap(self.tail, x, batch))


def loss_of(model, batch):
    return F.cross_entropy(model(batch).float().flatten(0, 1), batch["labels"].flatten())


def tokens(seed=0, **more):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (SAMPLES, TOKENS), generator=draw)
    return {"input_ids": ids, "labels": ids.roll(-1, 1), **more}


def marked(value):
    """Ones for every token, and `value` at sample 2, token 3."""
    made = torch.ones(SAMPLES, TOKENS)
    made[2, 3] = value
    return made


def runner_of(model, *batches, loss=loss_of, autocast=None, **step):
    micros = tuple(Micro(batch, autocast=autocast) for batch in batches or (tokens(),))
    recording = Recording("by hand", (Step(1207, micros, **step),))
    return StepRunner(recording, Program(model, loss), "cpu")


def answers(runner):
    found = list(EXPERIMENT.run(Context(runner)))
    assert len(found) <= runner.spent <= EXPERIMENT.cost(Context(runner))
    return found


def only(model, *batches, **options):
    (result,) = answers(runner_of(model, *batches, **options))
    return result


def line(name):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# line: {name}")]
    return f"test_anomaly.py:{number}"


def place(result):
    return result.number("sample"), result.number("token"), result.number("micro_batch")


# -- the forward ------------------------------------------------------------------------------------------------------


def padded(scores, batch):
    """Forgets that a query must see something: of a token of no document the whole row is masked."""
    return scores.masked_fill(batch["document"][:, None, :, None] < 0, -math.inf)


def test_softmax_over_a_fully_masked_row_is_the_root():
    result = only(Tiny(padded), tokens(document=marked(-1)))
    assert (result.outcome, result.text("phase"), result.text("value_kind")) == ("fault", "forward", "nan")
    assert (result.text("module"), result.text("operation")) == ("blocks.0.attn", "softmax")
    assert "softmax [aten._softmax]" in result.result
    assert result.text("source_line") == line("softmax")
    assert place(result) == (2, 3, 0)
    assert result.number("samples_hit") == 1
    assert result.number("input_nonfinite") == 2 * TOKENS
    assert -5 < result.number("input_min") < 0 < result.number("input_max") < 5
    assert "masked completely" in result.conclusion


def where_marked(value, then):
    """A tail that puts `value` at sample 2, token 3 and applies a function there and elsewhere."""
    return lambda x, batch: x + 0 * then(torch.where(batch["mark"][..., None] > 0, value, 0.5 + 0 * x))


@pytest.mark.parametrize(
    ("tail", "operation", "reason"),
    [
        (where_marked(1.0, torch.atanh), "atanh", "atanh is infinite at -1 and 1"),
        (where_marked(0.0, torch.logit), "logit", "logit is infinite at 0 and 1"),
        (where_marked(1.0, torch.erfinv), "erfinv", "erfinv is infinite at -1 and 1"),
        (where_marked(0.0, torch.lgamma), "lgamma", "lgamma is infinite at 0"),
        (where_marked(-2.0, torch.lgamma), "lgamma", "at negative whole numbers"),
        (where_marked(0.0, torch.digamma), "digamma", "digamma is infinite at 0"),
        (where_marked(-math.inf, lambda x: x.logsumexp(-1, keepdim=True)), "logsumexp", "masked completely"),
        (where_marked(0.0, lambda x: 1 / x), "reciprocal", "the divisor is 0"),
    ],
)
def test_a_pole_is_told_from_a_number_that_became_too_large(tail, operation, reason):
    result = only(Tiny(tail=tail), tokens(mark=marked(0) * -1 + 1))
    assert (result.outcome, result.text("operation")) == ("fault", operation)
    assert reason in result.conclusion.lower()
    assert "largest number" not in result.conclusion
    assert place(result) == (2, 3, 0)


def test_a_logarithm_of_gamma_that_became_too_large_is_no_pole():
    result = only(Tiny(tail=where_marked(3e37, torch.lgamma)), tokens(mark=marked(0) * -1 + 1))
    assert (result.text("operation"), place(result)) == ("lgamma", (2, 3, 0))
    assert "beyond the largest number of float32" in result.conclusion


@pytest.mark.parametrize(("steps", "outcome"), [(3, "fault"), (4, "clean")])
def test_a_target_that_does_not_fit_into_its_input_is_named(steps, outcome):
    """Two equal labels need a blank between them: three steps."""
    model = nn.Linear(2, 5)
    batch = {"x": torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(0)), "y": torch.tensor([[1, 2], [1, 1]])}

    def loss(model, batch):
        scores = model(batch["x"]).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, batch["y"], torch.tensor([6, steps - 1]), torch.tensor([2, 2]))

    result = only(model, batch, loss=loss)
    assert result.outcome == outcome
    if outcome == "fault":
        assert (result.text("operation"), result.number("sample")) == ("ctc_loss", 1)
        assert "does not fit into the length of its input" in result.conclusion


class Divided(torch.autograd.Function):
    """Somebody's own function, whose backward divides by its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.saved_tensors[0]


def test_a_division_by_zero_in_a_backward_is_told_from_a_number_that_became_too_large():
    result = only(Tiny(tail=lambda x, batch: Divided.apply(x * batch["mark"][..., None])), tokens(mark=marked(0)))
    assert (result.text("phase"), result.text("operation")) == ("backward", "DividedBackward")
    assert "the divisor is 0" in result.conclusion.lower()
    assert "largest number" not in result.conclusion


def additive(scores, batch):
    return scores + batch["mask"][:, None]


def test_a_row_that_a_mask_of_the_batch_covers_completely_is_the_softmaxs_too():
    mask = torch.full((SAMPLES, TOKENS, TOKENS), -math.inf).triu(1)
    healthy = only(Tiny(additive), tokens(mask=mask))
    mask = mask.clone()
    mask[2, 3] = -math.inf
    result = only(Tiny(additive), tokens(mask=mask))
    assert (result.text("phase"), result.text("operation")) == ("forward", "softmax")
    assert (place(result), healthy.outcome) == ((2, 3, 0), "clean")


def test_masks_that_leave_something_to_see_raise_nothing():
    log_mask = torch.ones(TOKENS, TOKENS).tril().log()  # the logarithm of 0 is meant here
    for mask in (causal, lambda scores, _: scores + log_mask, lambda s, _: torch.where(log_mask == 0, s, -math.inf)):
        result = only(Tiny(mask))
        assert result.outcome == "clean"
        assert "masked again" not in result.result


def entropy_loss(model, batch):
    p = model(batch).softmax(-1) * batch["allowed"]
    return loss_of(model, batch) - (p * p.log()).sum(-1).mean()  # line: log


def test_of_p_log_p_the_log_is_the_root_and_the_product_is_where_it_became_nan():
    allowed = torch.ones(SAMPLES, TOKENS, VOCABULARY)
    assert only(Tiny(), tokens(allowed=allowed), loss=entropy_loss).outcome == "clean"
    allowed[2, 3, 7] = 0
    result = only(Tiny(), tokens(allowed=allowed), loss=entropy_loss)
    assert (result.text("operation"), result.text("value_kind")) == ("log", "neginf")
    assert result.text("module") == "(loss function)"
    assert result.text("became_nan").startswith("mul")
    assert result.text("source_line") == line("log")
    assert place(result) == (2, 3, 0)
    assert result.conclusion == "The logarithm of 0."


def test_an_overflow_of_fp16_is_found_where_it_happens_and_not_where_it_becomes_nan():
    result = only(Tiny(gain=1e5), autocast=FP16)
    assert (result.outcome, result.text("value_kind")) == ("fault", "posinf")
    assert (result.text("module"), result.text("operation")) == ("blocks.0.mlp.up", "cast")
    assert "65504" in result.conclusion
    model = Tiny(gain=1e4)
    with torch.no_grad():
        model.get_parameter("blocks.0.mlp.up.weight").mul_(30)
    result = only(model, autocast=FP16)
    assert (result.text("module"), result.text("operation")) == ("blocks.0.mlp.up", "matmul")
    assert result.text("became_nan") == "layer_norm in blocks.0.mlp"
    assert result.text("source_line") == line("up")
    assert result.number("input_nonfinite") == 0
    assert "65504" in result.conclusion


def test_values_that_are_huge_but_finite_raise_nothing():
    assert only(Tiny(gain=1e15)).outcome == "clean"
    assert only(Tiny(gain=1e3), autocast=FP16).outcome == "clean"


def test_a_batch_without_a_valid_label_is_named_as_such():
    empty = tokens()
    empty["labels"][:] = -100
    result = only(Tiny(), tokens(1), empty)
    assert (result.text("operation"), result.text("module")) == ("nll_loss", "(loss function)")
    assert place(result) == (None, None, 1)
    assert "no label of the micro-batch is valid (all are -100)" in result.conclusion.lower()
    empty["labels"][0, 0] = 4
    assert only(Tiny(), tokens(1), empty).outcome == "clean"


def selected_loss(model, batch):
    each = F.cross_entropy(model(batch).flatten(0, 1), batch["labels"].flatten().clamp(min=0), reduction="none")
    return each[batch["labels"].flatten() >= 0].mean()


def test_the_mean_over_no_token_is_named_as_such():
    empty = tokens()
    empty["labels"][:] = -100
    result = only(Tiny(), empty, loss=selected_loss)
    assert result.text("operation") == "mean"
    assert "mean of no elements" in result.conclusion
    assert "No label" in result.conclusion


def masked_loss(model, batch):
    logits = model(batch).masked_fill(batch["forbidden"], -math.inf)
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())  # line: forbidden


def test_an_intended_infinity_that_the_loss_takes_is_found_where_it_takes_it():
    batch = tokens()
    batch["forbidden"] = F.one_hot((batch["labels"] + 1) % VOCABULARY, VOCABULARY).bool()
    assert only(Tiny(), batch, loss=masked_loss).outcome == "clean"
    batch["labels"][2, 3] = (batch["labels"][2, 3] + 1) % VOCABULARY
    result = only(Tiny(), batch, loss=masked_loss)
    assert (result.text("operation"), result.text("value_kind")) == ("nll_loss", "posinf")
    assert result.text("source_line") == line("forbidden")


# -- the backward -----------------------------------------------------------------------------------------------------


def where_sqrt(x, batch):
    size = (x * x).sum(-1, keepdim=True) * batch["kept"][..., None]
    return x / torch.where(size > 0, size.sqrt(), 1.0)  # line: sqrt


def safe_sqrt(x, batch):
    size = (x * x).sum(-1, keepdim=True) * batch["kept"][..., None]
    return x / torch.where(size > 0, size, 1.0).sqrt()


WRAPPED = {
    "plain": None,
    "checkpointed": lambda module, *args: checkpoint(module, *args, use_reentrant=False),
    "checkpointed, reentrant": lambda module, *args: checkpoint(module, *args, use_reentrant=True),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_the_derivative_of_sqrt_at_zero_behind_where_is_found_in_the_backward(wrap):
    batch = tokens(kept=marked(0))
    result = only(Tiny(tail=where_sqrt, wrap=wrap), batch)
    assert (result.outcome, result.text("phase")) == ("fault", "backward")
    assert (result.text("module"), result.text("operation")) == ("tail", "SqrtBackward0")
    assert result.text("source_line") == line("sqrt")
    assert place(result) == (2, 3, 0)
    assert (result.number("input_min"), result.number("input_nonfinite")) == (0, 0)
    assert "derivative of sqrt at 0 is infinite" in result.conclusion
    assert only(Tiny(tail=safe_sqrt, wrap=wrap), batch).outcome == "clean"


def own_norm(x, batch):
    return x / (1 + (x * batch["kept"][..., None]).pow(2).sum(-1, keepdim=True).sqrt())  # line: norm


def norm(x, batch):
    return x / (1 + torch.linalg.vector_norm(x * batch["kept"][..., None], dim=-1, keepdim=True))


def test_the_gradient_of_a_handwritten_norm_at_zero_is_found_and_that_of_pytorchs_is_none():
    batch = tokens(kept=marked(0))
    result = only(Tiny(tail=own_norm), batch)
    assert (result.text("operation"), result.text("source_line")) == ("SqrtBackward0", line("norm"))
    assert (result.text("became_nan"), place(result)) == ("PowBackward0 in tail", (2, 3, 0))
    assert only(Tiny(tail=norm), batch).outcome == "clean"


def where_log(x, batch):
    size = x.abs() * batch["kept"][..., None]
    return x + torch.where(size > 0, size.log(), 0.0)


def test_a_masked_infinity_raises_nothing_as_long_as_no_gradient_flows_there():
    batch = tokens(kept=marked(0))
    result = only(Tiny(tail=lambda x, b: where_log(x.detach(), b) + x), batch)
    assert result.outcome == "clean"
    assert "masked again" in result.result
    assert "log" in result.result
    result = only(Tiny(tail=where_log), batch)
    assert (result.outcome, result.text("operation")) == ("fault", "LogBackward0")


def where_product(x, batch):
    weight = batch["kept"][..., None].log()  # -inf where it is 0
    return x + torch.where(weight > -1, x * weight, 0.0)


def test_a_masked_infinity_of_the_forward_that_spoils_the_backward_is_named_beside_it():
    result = only(Tiny(tail=where_product), tokens(kept=marked(0)))
    assert (result.text("phase"), result.text("operation")) == ("backward", "MulBackward0")
    assert "met an -Inf that log had made" in result.result.replace("It met", "met")


def test_a_sum_of_micro_batches_that_overflows_is_accumulategrads():
    model = nn.Linear(1, 1, bias=False)
    batch = torch.full((2, 1), 0.75 * MAX)

    def loss(model, batch):
        return (model.weight * batch[0, 0]).sum()

    weighted = runner_of(model, batch, batch, loss=loss)
    weighted.program.divide = False
    (result,) = answers(weighted)
    assert (result.outcome, result.text("operation")) == ("fault", "AccumulateGrad")
    assert (result.text("value_kind"), result.number("micro_batch")) == ("posinf", 1)


def test_a_gradient_that_only_the_loss_scale_takes_out_of_range_is_verified_as_such():
    fault, verified = answers(runner_of(Tiny(), autocast=FP16, scale=2.0**24))
    assert (fault.outcome, fault.text("phase")) == ("fault", "backward")
    assert "only with the loss scale" in fault.conclusion
    assert (verified.outcome, verified.changed) == ("verified", "loss scale 1.67772e+07 -> 1")
    assert math.isfinite(verified.number("grad_norm", "unscaled"))
    assert only(Tiny(), autocast=FP16, scale=2.0**10).outcome == "clean"


def test_a_gradient_that_fails_without_the_scale_too_is_not_put_down_to_it():
    result = only(Tiny(tail=where_sqrt), tokens(kept=marked(0)), scale=1024.0)
    assert "the loss scale is not the reason" in result.conclusion.lower()


def test_a_loss_scale_beyond_the_range_of_the_loss_itself_is_found():
    fault, verified = answers(runner_of(Tiny().half(), loss=lambda m, b: loss_of(m, b).half(), scale=65536.0))
    assert (fault.text("operation"), fault.text("phase")) == ("full_like", "backward")
    assert verified.outcome == "verified"


# -- before the step --------------------------------------------------------------------------------------------------


def test_a_weight_that_is_nan_before_the_step_is_named():
    model = Tiny()
    with torch.no_grad():
        model.get_parameter("blocks.1.mlp.up.weight")[5, 3] = math.nan
    result = only(model)
    assert (result.outcome, result.text("phase"), result.text("module")) == ("fault", "state", "blocks.1.mlp.up")
    assert "blocks.1.mlp.up.weight" in result.text("operation")
    assert "element [5, 3]" in result.result.lower()
    assert "earlier step" in result.conclusion


def test_a_bad_weight_and_a_mask_that_reach_nothing_raise_nothing():
    model: nn.Module = Tiny(mask=lambda scores, _: scores + model.get_buffer("mask"))
    model.register_parameter("unused", nn.Parameter(torch.tensor([math.nan])))
    model.register_buffer("mask", torch.full((TOKENS, TOKENS), -math.inf).triu(1))
    result = only(model)
    assert result.outcome == "clean"
    assert "parameter unused" in result.result


def features_loss(model, batch):
    x, y = batch
    return torch.where(y.isnan(), 0.0, (model(x) - y.nan_to_num()) ** 2).mean()


def test_a_batch_that_holds_nan_is_named_with_its_sample_and_feature():
    x, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(5, 1)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    y[1] = math.nan  # a missing target, which the loss leaves out
    healthy = only(model, (x, y), loss=features_loss)
    assert healthy.outcome == "clean"
    assert "batch 1" in healthy.result
    x[4, 2] = math.nan
    result = only(model, (x, y), (x, y), loss=features_loss)
    assert (result.outcome, result.text("phase"), place(result)) == ("fault", "batch", (4, None, 0))
    assert result.number("feature") == 2


# -- exceptions -------------------------------------------------------------------------------------------------------


def test_an_id_beyond_the_embedding_is_named_with_module_and_line():
    batch = tokens()
    batch["input_ids"][1, 1] = VOCABULARY
    result = only(Tiny(), tokens(1), batch)
    assert (result.outcome, result.text("phase")) == ("fault", "exception")
    assert (result.text("module"), result.number("micro_batch")) == ("embed", 1)
    assert result.text("operation").startswith("IndexError: index out of range")
    assert result.text("source_line").startswith("test_anomaly.py:")


def overwritten(x, _):
    kept = torch.exp(x)  # line: exp
    made = kept * 2
    kept += 1
    return made


def test_a_tensor_changed_in_place_is_named_with_the_line_of_the_forward():
    result = only(Tiny(tail=overwritten))
    assert (result.text("phase"), result.text("module")) == ("exception", "tail")
    assert "modified by an inplace operation" in result.text("operation")
    assert "ExpBackward0" in result.result
    assert result.text("source_line") == line("exp")


def test_a_second_backward_through_the_graph_is_named_with_the_line_of_the_forward():
    carried: list[torch.Tensor] = []

    def loss(model, batch):
        hidden = model[0](batch).tanh()  # line: carried
        hidden = model[1](hidden + carried[-1]) if carried else hidden
        carried.append(hidden)
        return hidden.pow(2).mean()

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    result = only(model, torch.ones(2, 3), torch.ones(2, 3), loss=loss)
    assert "second time" in result.text("operation")
    assert (result.number("micro_batch"), result.text("source_line")) == (1, line("carried"))


def checked_loss(model, batch):
    loss = loss_of(model, batch)
    if not loss.isfinite():
        raise FloatingPointError("the loss is not finite")
    return loss


def test_a_program_that_stops_at_a_bad_loss_still_shows_where_it_began():
    result = only(Tiny(padded), tokens(document=marked(-1)), loss=checked_loss)
    assert result.text("operation") == "FloatingPointError: the loss is not finite"
    assert "softmax" in result.conclusion


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_a_failure_that_does_not_come_back_is_inconclusive():
    assert only(Tiny(), loss=loss_of, grad_norm=math.nan).outcome == "inconclusive"


def test_finite_gradients_whose_norm_overflows_are_told_apart():
    result = only(nn.Linear(4, 1), torch.full((1, 4), 1e30), loss=lambda m, x: m(x).sum() * 1e-20)
    assert result.outcome == "clean"
    result = only(nn.Linear(4, 1), torch.full((1, 4), 1e30), loss=lambda m, x: m(x).sum())
    assert (result.outcome, result.text("operation")) == ("fault", "gradient norm")


def test_a_model_without_modules_and_one_with_tied_weights_are_named():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return (x * self.weight).sum(-1).sqrt()

    result = only(Bare(), torch.ones(2, 3), loss=lambda m, x: m(x).mean())
    assert (result.text("module"), result.text("operation")) == ("(model)", "SqrtBackward0")
    tied = Tiny()
    tied.head.weight = tied.embed.weight
    assert only(tied).outcome == "clean"
    with torch.no_grad():
        tied.embed.weight[:] = math.inf
    assert only(tied).text("operation") == "parameter embed.weight"


def test_odd_tensors_do_not_end_the_step():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 4, sparse=True)

        def forward(self, ids):
            x = self.embed(ids)
            spectrum = torch.fft.fft(x).abs().sum()
            sparse = torch.eye(4).to_sparse() @ x[0].T
            small = x.detach().to(torch.float8_e4m3fn).float()
            return spectrum + sparse.sum() + small.sum() + x[:0].sum()

    result = only(Odd(), torch.tensor([[1, 2, 3]]), loss=lambda m, x: m(x))
    assert result.outcome == "clean"
    assert "could not be looked at" not in result.result


@pytest.mark.parametrize("frozen", [True, False])
def test_a_step_without_a_backward_is_not_called_clean(frozen):
    model = nn.Linear(3, 1).requires_grad_(not frozen)
    recording = Recording("a test", (Step(1, (Micro(torch.ones(4, 3)),)),))
    program = Program(model, lambda model, batch: model(batch).mean())
    (result,) = EXPERIMENT.run(Context(StepRunner(recording, program, "cpu")))
    assert result.outcome == ("inconclusive" if frozen else "clean")
    assert ("No parameter got a gradient" in result.conclusion) == frozen
