"""The tracer: its look at single tensors, its records, its modules and lines, and that it changes nothing."""

import math
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradforensics.replay import tracing_causes
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step
from gradforensics.replay.step import StepRunner
from gradforensics.replay.tracing import Tracer
from gradforensics.replay.tracing_lineage import Input, Lineage, Record, origin, root_of
from gradforensics.replay.tracing_modules import ModuleWatch
from gradforensics.replay.tracing_ops import operator_of
from gradforensics.replay.tracing_sources import line_of_stack, running_line, shown
from gradforensics.replay.tracing_values import kind_of, place_of, summary_of, traceable
from gradforensics.torch_state import RandomState

aten = torch.ops.aten
NAN, INF = math.nan, math.inf


def line(name):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# line: {name}")]
    return f"test_tracing.py:{number}"


def runner_of(model, loss, *batches):
    recording = Recording("by hand", (Step(3, tuple(Micro(b) for b in batches)),))
    return StepRunner(recording, Program(model, loss), "cpu")


def traced(model, loss, *batches):
    """The finding of a run under the tracer."""
    runner = runner_of(model, loss, *batches)
    tracer = Tracer(runner)
    outcome = runner.compute(watch=tracer.watch)
    assert outcome.error is None
    assert not tracer.missed
    return tracer.finding


# -- single tensors ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([0.0, 1.0, -3.5, NAN, INF, -INF]), min_size=1, max_size=6),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]),
)
def test_the_worst_value_and_the_range_of_a_tensor_are_those_of_numpy(values, dtype):
    tensor = torch.tensor(values).to(dtype)
    array = np.array(values)
    expected = "nan" if np.isnan(array).any() else "posinf" if INF in values else "neginf" if -INF in values else ""
    assert kind_of(tensor) == expected
    good = array[np.isfinite(array)]
    summary = summary_of("x", tensor)
    assert (summary.nonfinite, summary.zeros) == (len(array) - len(good), int((good == 0).sum()))
    assert summary.smallest == (good.min() if len(good) else None)
    assert summary.largest == (good.max() if len(good) else None)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1]), torch.tensor([True]), torch.tensor([1j]), torch.tensor([]), torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"), 3.0, None,
    ],
    ids=repr,
)  # fmt: skip
def test_tensors_without_real_numbers_are_left_alone(tensor):
    assert not traceable(tensor)


@pytest.mark.parametrize(
    ("shape", "bad", "sample", "token", "hit"),
    [
        ((4, 6, 8), [(2, 3, 1)], 2, 3, 1),
        ((4, 2, 6, 6), [(2, 1, 3, 5), (3, 0, 0, 0)], 2, 3, 2),  # scores: the token is the query
        ((24, 8), [(2 * 6 + 3, 0)], 2, 3, 1),
        ((24,), [(2 * 6 + 3,)], 2, 3, 1),
        ((8, 6, 5), [(5, 3, 0), (4, 0, 0)], 2, 0, 1),  # samples x heads: both are sample 2
        ((6, 4, 8), [(3, 2, 0)], 2, 3, 1),  # tokens first
        ((4,), [(2,)], 2, None, 1),
        ((4, 9), [(2, 6)], 2, None, 1),
        ((5, 7), [(2, 3)], None, None, None),
        ((7, 6, 5), [(2, 3, 1)], None, None, None),
        ((), [()], None, None, None),
    ],
)
def test_sample_and_token_are_named_where_the_shape_tells(shape, bad, sample, token, hit):
    tensor = torch.zeros(shape)
    for index in bad:
        tensor[index] = NAN
    place = place_of(tensor, "nan", 4, 6, ())
    assert (place.sample, place.token, place.hit, place.bad) == (sample, token, hit, len(bad))
    assert place.index == min(bad)


def test_a_tensor_of_a_weights_shape_belongs_to_no_sample():
    place = place_of(torch.tensor([[0.0, 0.0], [0.0, INF]]), "posinf", 2, 2, {torch.Size((2, 2))})
    assert (place.index, place.sample) == ((1, 1), None)


# -- operators --------------------------------------------------------------------------------------------------------


def test_operators_have_readable_names():
    names = {
        aten._softmax.default: "softmax", aten._log_softmax.default: "log_softmax", aten.addmm.default: "matmul",
        aten.bmm.default: "matmul", aten.native_layer_norm.default: "layer_norm", aten._to_copy.default: "cast",
        aten.nll_loss_forward.default: "nll_loss", aten.add_.Tensor: "add", aten.masked_fill_.Scalar: "masked_fill",
        aten._scaled_dot_product_flash_attention_for_cpu.default: "scaled_dot_product_attention",
        aten._softmax_backward_data.default: "softmax_backward", aten.relu.default: "relu",
    }  # fmt: skip
    assert {op: operator_of(op).name for op in names} == names
    assert operator_of(aten._softmax.default).aten == "aten._softmax"


def test_views_are_ignored_and_changes_in_place_known():
    assert all(operator_of(op).ignored for op in (aten.view.default, aten.t.default, aten.split.Tensor))
    assert not operator_of(aten.add.Tensor).ignored
    assert operator_of(aten.add_.Tensor).mutated == ("self",)
    assert not operator_of(aten.add_.Tensor).overwrites
    assert operator_of(aten.copy_.default).overwrites
    assert operator_of(aten.add.out).overwrites


# -- records ----------------------------------------------------------------------------------------------------------


def record(order, kind, *parents, **more):
    return Record(order, more.pop("phase", "forward"), kind, f"op{order}", parents=parents, **more)


def fed(kind, held, size=4):
    return Input("x", torch.zeros(size), kind, held)


def test_an_infinity_put_there_stays_intended_in_its_place_only():
    mask = record(0, "neginf", intended=True)
    add, mm, gather = (operator_of(op) for op in (aten.add.Tensor, aten.mm.default, aten.gather.default))
    assert origin("neginf", add, [fed("neginf", mask)], 4, constant=False) == (True, (mask,))
    assert origin("neginf", mm, [fed("neginf", mask)], 4, constant=False) == (False, (mask,))
    assert origin("neginf", gather, [fed("neginf", mask)], 1, constant=False) == (False, (mask,))
    assert origin("neginf", add, [fed("", None)], 4, constant=True) == (True, ())
    assert origin("neginf", add, [fed("", None)], 4, constant=False) == (False, ())
    assert origin("nan", add, [fed("neginf", mask)], 4, constant=False) == (False, ())


def test_an_overflow_beside_a_mask_is_followed_and_the_mask_is_not():
    mask, overflow = record(0, "neginf", intended=True), record(1, "posinf")
    add = operator_of(aten.add.Tensor)
    inputs = [fed("posinf", overflow), fed("neginf", mask)]
    assert origin("posinf", add, inputs, 4, constant=False) == (False, (overflow,))
    assert origin("nan", add, inputs, 4, constant=False) == (False, (overflow,))


def test_the_earliest_root_is_found_and_where_its_infinity_became_nan():
    overflow = record(1, "posinf")
    moved = record(2, "posinf", overflow)
    became = record(3, "nan", moved)
    later = record(4, "nan")
    loss = record(6, "nan", record(5, "nan", became, later))
    assert root_of(loss) == (overflow, became)


def test_the_search_of_the_backward_ends_where_the_backward_began():
    masked = record(1, "neginf")
    spoiled = record(2, "nan", masked, phase="backward")
    assert root_of(record(3, "nan", spoiled, phase="backward"))[0] is spoiled


def test_a_freed_tensors_record_is_not_given_to_the_next_at_its_address():
    lineage = Lineage()
    addresses = set()
    for order in range(50):
        tensor = torch.full((64,), NAN)
        assert lineage.get(tensor, "nan") is None
        lineage.put(tensor, record(order, "nan"))
        held = lineage.get(tensor[3:5], "nan")
        assert held is not None
        assert held.order == order
        addresses.add(tensor.untyped_storage()._cdata)
        del tensor
    assert len(addresses) == 50


# -- modules and lines ------------------------------------------------------------------------------------------------


class Halves(nn.Module):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.second(torch.exp(self.first(x))).sin()


def test_every_node_of_the_graph_is_given_to_the_module_that_made_it():
    model = Halves()
    with ModuleWatch(model) as watch:
        out = model(torch.ones(2, 3))
        loss = out.cos().sum()
    found: dict[str, set[str | None]] = {}
    pending = [loss.grad_fn]
    while pending:
        node = pending.pop()
        found.setdefault(node.name().rpartition("::")[2], set()).add(watch.of_node(node, []))
        pending += [following for following, _ in node.next_functions if following is not None]
    assert found["CosBackward0"] == found["SumBackward0"] == {None}
    assert found["SinBackward0"] == found["ExpBackward0"] == {"(model)"}
    assert found["AddmmBackward0"] == found["AccumulateGrad"] == {"first", "second"}


def test_an_exception_in_a_module_leaves_the_modules_around_it():
    class Catching(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            try:
                self.inner(x[:, :1])
            except RuntimeError:
                return watch.running()

    model = Catching()
    with ModuleWatch(model) as watch:
        assert model(torch.ones(2, 3)) == "(model)"
        assert watch.running() is None


def test_threads_have_modules_of_their_own():
    model = nn.Linear(3, 3)
    seen = []
    with ModuleWatch(model) as watch:
        model.register_forward_pre_hook(lambda *_: seen.append(watch.running()))
        thread = threading.Thread(target=model, args=(torch.ones(1, 3),))
        thread.start()
        thread.join()
        assert watch.running() is None
    assert seen == ["(model)"]


def test_the_users_line_is_the_innermost_outside_pytorch_and_this_package():
    assert running_line().startswith("test_tracing.py:")
    stack = ['  File "/a/train.py", line 7, in f\n    g()\n', f'  File "{torch.__file__}", line 3, in g\n    x\n']
    assert line_of_stack(stack) == "train.py:7"
    assert shown("/x/lib/python3/site-packages/transformers/models/t5.py", 4) == "transformers/models/t5.py:4"
    assert line_of_stack(["nothing"]) == ""


# -- a whole step -----------------------------------------------------------------------------------------------------


def mean(model, batch):
    return model(batch).mean()


class Backwards(torch.autograd.Function):
    """A function of the user's whose backward divides by 0."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004  as PyTorch calls it
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ARG004  likewise
        return grad / torch.zeros_like(grad)  # line: custom


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return Backwards.apply(self.linear(x))


def test_the_backward_of_a_function_of_the_users_is_named_with_its_own_line():
    root = traced(Custom(), mean, torch.ones(2, 3)).root
    assert (root.operation, root.source_line, root.module) == ("BackwardsBackward", line("custom"), "(model)")


def test_changes_in_place_keep_the_root():
    class InPlace(nn.Linear):
        def forward(self, x):
            buffer = torch.empty(2, 3)
            buffer[:, :2] = super().forward(x)[:, :2].log()  # line: written
            buffer[:, 2:] = 0
            buffer.mul_(0).add_(1)
            return buffer

    model = InPlace(3, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1.0, 0.0, 1.0]))
    finding = traced(model, mean, torch.ones(2, 3))
    assert (finding.root.operation, finding.root.source_line) == ("log", line("written"))
    assert finding.became.operation == "mul"


def test_a_value_that_is_overwritten_is_no_fault():
    class Filled(nn.Linear):
        def forward(self, x):
            buffer = torch.full_like(x, NAN)
            return super().forward(buffer.copy_(x))

    assert traced(Filled(3, 3), mean, torch.ones(2, 3)) is None


def test_a_compiled_model_is_seen_operation_by_operation():
    class Logs(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return (self.linear(x) * 0).log().mul(0)  # line: compiled

    root = traced(torch.compile(Logs(), backend="eager"), mean, torch.ones(2, 3)).root
    assert (root.operation, root.source_line) == ("log", line("compiled"))


def test_the_tracer_changes_neither_numbers_nor_the_program_nor_random_states():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    batches = [torch.randn(4, 3, generator=torch.Generator().manual_seed(s)) for s in (1, 2)]
    runner = runner_of(model, mean, *batches)
    program = runner.program
    plain = runner.compute()
    after = RandomState.capture()
    tracer = Tracer(runner)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        watched = runner.compute(watch=tracer.watch)
    assert torch.equal(RandomState.capture().cpu, after.cpu)
    assert not warned
    assert runner.program is program
    assert watched.losses == plain.losses
    assert watched.norm == plain.norm
    assert all(torch.equal(watched.gradients[n], g) for n, g in plain.gradients.items())
    assert not torch.is_anomaly_enabled()
    assert runner.compute().losses == plain.losses


def test_an_operation_that_cannot_be_looked_at_is_counted_and_does_not_end_the_step(monkeypatch):
    def broken(*_):
        raise ValueError("odd")

    monkeypatch.setattr("gradforensics.replay.tracing.explained", broken)
    runner = runner_of(nn.Linear(3, 3), lambda m, b: (m(b) * 0).log().sum(), torch.ones(2, 3))
    tracer = Tracer(runner)
    assert runner.compute(watch=tracer.watch).error is None
    assert tracer.missed == 1
    assert tracer.finding is not None
    assert tracer.finding.root.operation == "log"


@pytest.mark.parametrize(
    ("compute", "note"),
    [
        (lambda x: x / 0, "the divisor is 0"),
        (lambda x: (x * 0) / 0, "0 is divided by 0"),
        (lambda x: (x * 0).rsqrt(), "the divisor is 0"),
        (lambda x: (-x).log(), "the logarithm of a number below its domain"),
        (lambda x: (-x).sqrt(), "a root of a negative number"),
        (lambda x: (x * 0) * INF, "0 times infinity"),
        (lambda x: x.masked_fill(x > 0, NAN), "NaN is written here as a constant"),
        (lambda x: x.half() * 60000, "its result is beyond the largest number of float16, 65504"),
        (lambda x: (x * 1e20).square() * 1e20, "its result is beyond the largest number of float32, 3.4028e+38"),
    ],
)
def test_the_reason_is_told_where_the_inputs_show_it(compute, note):
    finding = traced(nn.Linear(2, 2), lambda _, x: compute(x).float().sum(), torch.tensor([[2.0, 3.0]]))
    assert finding.root.note == note


def test_the_reason_of_a_weighted_loss_without_weight_is_told():
    labels, weight = torch.tensor([0, 0]), torch.tensor([0.0, 1.0])
    finding = traced(
        nn.Linear(2, 2), lambda m, x: nn.functional.cross_entropy(m(x), labels, weight=weight), torch.ones(2, 2)
    )
    assert finding.root.note == "the weights of its labels sum to 0"
    assert tracing_causes.NO_LABEL not in finding.root.note
