"""The experiment "severed": cuts that are really there, and detaches, freezing and unused parts that are none."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.severed import EXPERIMENT
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step
from gradforensics.replay.step import StepRunner

WIDTH, CLASSES = 8, 5


def unchanged(_, x):
    return x


class Blocks(nn.Module):
    """Four linear blocks and a head; `between(index, x)` is what a test does after a block."""

    def __init__(self, between=unchanged, width=WIDTH):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, CLASSES)
        self.between = between

    def forward(self, x):
        for index, block in enumerate(self.blocks):
            x = self.between(index, torch.tanh(block(x)))
        return self.head(x)


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def judged(model, loss=cross_entropy, micros=1, **recorded):
    torch.manual_seed(0)
    batches = [{"x": torch.randn(6, WIDTH), "y": torch.randint(0, CLASSES, (6,))} for _ in range(micros)]
    recording = Recording("a test", (Step(7, tuple(Micro(b) for b in batches)),), **recorded)
    context = Context(StepRunner(recording, Program(model, loss), "cpu"))
    results = list(EXPERIMENT.run(context))
    assert context.runner.spent <= EXPERIMENT.cost(context)
    return results


def line_of(marker):
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"test_severed.py:{next(i for i, line in enumerate(text, 1) if f'# {marker}' in line)}"


def test_a_healthy_model_is_clean_and_costs_one_step():
    torch.manual_seed(0)
    model = Blocks()
    recording = Recording("a test", (Step(7, (Micro({"x": torch.randn(6, WIDTH), "y": torch.zeros(6).long()}),)),))
    context = Context(StepRunner(recording, Program(model, cross_entropy), "cpu"))
    (result,) = EXPERIMENT.run(context)
    assert result.outcome == "clean"
    assert result.number("trainable") == 10
    assert (result.number("severed"), result.number("unused"), result.number("zero")) == (0, 0, 0)
    assert context.runner.spent == 1


def detached(index, x):
    return x.detach() if index == 1 else x  # the detach


def data(index, x):
    return x.data if index == 1 else x  # the data


@pytest.mark.parametrize(("between", "kind"), [(detached, "detach"), (data, "data")])
def test_a_cut_is_named_with_its_line_and_verified(between, kind):
    fault, proof = judged(Blocks(between))
    assert fault.outcome == "fault"
    assert fault.number("severed") == 4  # weight and bias of blocks 0 and 1
    assert fault.text("source_line") == line_of(f"the {kind}")
    assert fault.text("module") == "(model)"
    assert fault.text("names").startswith("blocks.0.weight")
    assert proof.outcome == "verified"
    assert proof.number("regained") == 4


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_a_tensor_that_is_made_anew_is_a_cut():
    def between(index, x):
        return torch.tensor(x) if index == 0 else x  # made anew

    fault, proof = judged(Blocks(between))
    assert fault.text("source_line") == line_of("made anew")
    assert (fault.number("severed"), proof.outcome) == (2, "verified")


def test_a_stretch_under_no_grad_is_a_cut_at_its_with_statement():
    class Model(Blocks):
        def forward(self, x):
            with torch.no_grad():  # the stretch
                x = torch.tanh(self.blocks[0](x))
                x = torch.tanh(self.blocks[1](x))
            return self.head(torch.tanh(self.blocks[3](self.blocks[2](x))))

    fault, proof = judged(Model())
    assert fault.text("source_line") == line_of("the stretch")
    assert (fault.number("severed"), proof.outcome) == (4, "verified")


def test_two_cuts_one_behind_the_other_are_both_named():
    def between(index, x):
        if index == 0:
            return x.detach()  # the first of two
        return x.detach() if index == 2 else x  # the second of two

    fault, proof = judged(Blocks(between))
    assert fault.number("severed") == 6
    assert line_of("the first of two") in fault.conclusion
    assert line_of("the second of two") in fault.conclusion
    assert proof.outcome == "verified"


def test_two_cuts_side_by_side_are_both_named():
    class Model(Blocks):
        def forward(self, x):
            x = self.blocks[0](x)
            left = self.blocks[1](x.detach())  # on the left
            right = self.blocks[2](x.detach())  # on the right
            return self.head(self.blocks[3](left + right))

    fault, proof = judged(Model())
    assert fault.number("severed") == 2
    assert line_of("on the left") in fault.conclusion
    assert line_of("on the right") in fault.conclusion
    assert proof.outcome == "verified"


def test_a_detach_for_a_log_is_not_named_beside_the_cut():
    logged = []

    def between(index, x):
        logged.append(x.detach().norm().item())  # only logged
        return x.detach() if index == 1 else x  # the cut beside it

    def loss(model, batch):
        value = cross_entropy(model, batch)
        logged.append(value.detach().item())
        return value

    fault, proof = judged(Blocks(between), loss)
    assert fault.number("severed") == 4
    assert fault.text("source_line") == line_of("the cut beside it")
    assert line_of("only logged") not in fault.conclusion + proof.changed
    assert proof.outcome == "verified"


def test_detaches_for_a_log_alone_are_clean():
    logged = []

    def between(index, x):
        logged.extend([x.detach().norm().item(), x.data.abs().max().item(), x.detach().numpy().sum()])
        return x

    (result,) = judged(Blocks(between))
    assert (result.outcome, result.number("severed")) == ("clean", 0)


def test_a_loss_without_any_gradient_severs_everything():
    def loss(model, batch):
        return cross_entropy(model, batch).detach()  # the whole loss

    fault, proof = judged(Blocks(), loss)
    assert fault.number("severed") == fault.number("trainable") == 10
    assert "requires no gradient" in fault.conclusion
    assert fault.text("source_line") == line_of("the whole loss")
    assert fault.text("module") == "(loss function)"
    assert proof.outcome == "verified"


def test_a_way_through_numpy_is_suspected_where_no_run_can_open_it():
    def between(index, x):
        return torch.from_numpy(np.tanh(x.detach().numpy())) if index == 1 else x  # through numpy

    (fault,) = judged(Blocks(between))
    assert fault.outcome == "fault"
    assert fault.number("severed") == 4
    assert fault.text("source_line") == line_of("through numpy")
    assert "Probably" in fault.conclusion


def test_a_step_function_without_gradient_is_suspected():
    def between(index, x):
        return (x > 0).float() if index == 1 else x  # the step function

    # a small change of the weights changes a step function only where it crosses it: 6 x 8 units are enough
    (fault,) = judged(Blocks(between))
    assert fault.number("severed") == 4
    assert fault.text("source_line") == line_of("the step function")


def test_frozen_parameters_beside_adapters_are_silent():
    model = Blocks()
    model.blocks.requires_grad_(False)
    (result,) = judged(model)
    assert result.outcome == "clean"
    assert result.number("trainable") == 2


def test_a_recorded_freezing_is_silent_too():
    frozen = frozenset(n for n, _ in Blocks().named_parameters() if n.startswith("blocks"))
    (result,) = judged(Blocks(), frozen=frozen)
    assert (result.outcome, result.number("trainable")) == ("clean", 2)


class Checkpointed(Blocks):
    """A frozen embedding, and trained blocks behind it that are recomputed in the backward."""

    def __init__(self, reentrant, head_start=False):
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.embed.requires_grad_(False)
        self.reentrant, self.head_start = reentrant, head_start

    def forward(self, x):
        x = self.embed(x)
        if self.head_start:
            x.requires_grad_()
        x = checkpoint(self.blocks[0], x, use_reentrant=self.reentrant)  # recomputed
        x = torch.tanh(self.blocks[3](self.blocks[2](self.blocks[1](x))))
        return self.head(x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpointing_behind_a_frozen_base_is_named_and_cured_by_inputs_that_need_gradients():
    fault, proof = judged(Checkpointed(reentrant=True))
    assert fault.number("severed") == 2
    assert fault.text("source_line") == line_of("recomputed")
    assert "checkpoint" in fault.text("cut")
    assert proof.outcome == "verified"


@pytest.mark.parametrize("model", [Checkpointed(reentrant=False), Checkpointed(reentrant=True, head_start=True)])
def test_checkpointing_that_keeps_the_gradient_is_clean(model):
    (result,) = judged(model)
    assert (result.outcome, result.number("severed")) == ("clean", 0)


def test_an_expert_that_no_token_was_sent_to_is_unused_and_no_fault():
    class Model(Blocks):
        def forward(self, x):
            return self.head(self.blocks[0](x))  # blocks 1 to 3 are never called

    (result,) = judged(Model())
    assert (result.outcome, result.number("severed"), result.number("unused")) == ("clean", 0, 6)
    assert "no fault by itself" in result.conclusion


def test_a_head_that_the_loss_does_not_use_is_no_cut():
    class Model(Blocks):
        def forward(self, x):
            x = self.blocks[0](x)
            self.pooled = self.blocks[1](x).detach()
            return self.head(self.blocks[3](self.blocks[2](x)))

    (result,) = judged(Model())
    assert (result.outcome, result.number("severed"), result.number("unused")) == ("clean", 0, 2)
    assert "does not depend on it" in result.conclusion


def test_a_stop_gradient_beside_a_path_that_is_open_is_clean():
    class Model(Blocks):
        def forward(self, x):
            x = self.blocks[0](x)
            return super().forward(x + (x.round() - x).detach())  # straight through

    (result,) = judged(Model())
    assert (result.outcome, result.number("severed")) == ("clean", 0)


def test_tied_weights_of_which_the_optimizer_has_one_name_are_clean():
    class Model(Blocks):
        def __init__(self):
            super().__init__()
            self.blocks[3].weight = self.blocks[0].weight

    model = Model()
    names = tuple(n for n, _ in model.named_parameters(remove_duplicate=False) if n != "blocks.0.weight")
    (result,) = judged(model, groups=(names,))
    assert (result.outcome, result.number("omitted")) == ("clean", 0)


def test_a_parameter_that_the_optimizer_lacks_is_omitted():
    names = tuple(n for n, _ in Blocks().named_parameters() if not n.startswith("blocks.2"))
    (result,) = judged(Blocks(), groups=(names,))
    assert (result.outcome, result.number("omitted"), result.number("severed")) == ("fault", 2, 0)
    assert result.text("names") == "blocks.2.weight, blocks.2.bias"


def test_a_teacher_under_no_grad_that_the_optimizer_does_not_have_is_frozen_on_purpose():
    class Model(Blocks):
        def forward(self, x):
            with torch.no_grad():
                goal = self.blocks[0](x)
            return self.head(self.blocks[3](self.blocks[2](self.blocks[1](x))) + goal)

    names = tuple(n for n, _ in Model().named_parameters() if not n.startswith("blocks.0"))
    (result,) = judged(Model(), groups=(names,))
    assert (result.outcome, result.number("severed"), result.number("omitted")) == ("clean", 0, 0)


class LowRank(Blocks):
    """A low-rank adapter: down and up, of which a test sets some to zero."""

    def __init__(self, *zeroed):
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        for name in zeroed:
            nn.init.zeros_(getattr(self, name).weight)

    def forward(self, x):
        return super().forward(x + self.up(self.down(x)))


def test_two_zero_factors_in_a_row_are_zero_and_not_severed():
    (result,) = judged(LowRank("down", "up"))
    assert (result.outcome, result.number("severed")) == ("clean", 0)
    assert (result.number("zero"), result.number("dead")) == (2, 2)
    assert "never leave zero" in result.conclusion


def test_one_zero_factor_is_healthy_in_the_first_step():
    (result,) = judged(LowRank("up"))
    assert (result.outcome, result.number("zero"), result.number("dead")) == ("clean", 1, 0)
    assert "Healthy" in result.conclusion


def test_every_parameter_frozen_is_a_fault():
    model = Blocks()
    model.requires_grad_(False)
    (result,) = judged(model)
    assert (result.outcome, result.number("trainable")) == ("fault", 0)


def test_an_exception_in_the_step_leaves_the_question_open():
    def loss(model, batch):
        raise ValueError("no such column")

    (result,) = judged(Blocks(), loss)
    assert result.outcome == "inconclusive"
    assert "no such column" in result.result


def test_a_parameter_used_in_one_micro_batch_only_is_not_severed():
    calls: list[None] = []

    class Model(Blocks):
        def forward(self, x):
            calls.append(None)
            return self.head(self.blocks[len(calls) % 2](x))

    (result,) = judged(Model(), micros=2)
    assert (result.outcome, result.number("severed"), result.number("unused")) == ("clean", 0, 4)


def test_a_step_whose_gradients_are_all_zero_shows_nothing():
    (result,) = judged(Blocks(), lambda model, batch: cross_entropy(model, batch) * 0)
    assert result.outcome == "inconclusive"
    assert result.number("zero") == result.number("trainable") == 10
    assert "gets a gradient" not in result.conclusion
