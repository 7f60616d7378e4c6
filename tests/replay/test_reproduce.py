"""Whether a step came out again as recorded: bit for bit, close, different or not known; never "the hardware"."""

import random
from dataclasses import replace

import pytest
import torch

from gradforensics.capsule import Autocast
from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.reproduce import EXPERIMENT
from gradforensics.replay.recording import Micro, Recording, Step


@pytest.fixture
def recording(training):
    """A step of two micro-batches with dropout, clipped."""
    torch.manual_seed(4)
    batches = [[training.tokens(3, 8, 0), training.tokens(3, 8, 1)]]
    return training.record(training.LM(dropout=0.2), training.lm_loss, batches, clip=0.5)


def reproduce(training, recording, loss=None, **options):
    (result,) = training.answers(EXPERIMENT, recording, training.LM(dropout=0.2), loss or training.lm_loss, **options)
    assert "hardware" not in result.conclusion or "does not show" in result.conclusion
    return result


def test_a_healthy_step_agrees_bit_for_bit(training, recording):
    result = reproduce(training, recording)
    assert result.outcome == "clean"
    assert result.text("agreement") == "bitwise"
    assert result.number("deterministic") == 1
    assert result.number("runs") == 3
    assert result.number("loss", "recorded") == result.number("loss", "replayed")
    assert result.number("grad_norm", "recorded") == result.number("grad_norm", "replayed")
    assert result.text("failure") == "none"
    assert "before clipping" in result.result
    assert "logs" not in result.conclusion


def test_as_many_runs_as_asked_and_as_stated(training, recording):
    context = Context(training.runner(recording, training.LM(dropout=0.2), training.lm_loss), runs=5)
    cost = EXPERIMENT.cost(context)
    (result,) = EXPERIMENT.run(context)
    assert result.number("runs") == cost == context.runner.spent == 5


def test_one_bit_in_one_gradient_is_not_bitwise_but_close(training, recording):
    gradients = {n: g.clone() for n, g in recording.last.gradients.items()}
    flat = gradients["blocks.1.up.weight"].reshape(-1)
    flat[3] = torch.nextafter(flat[3], torch.tensor(9.0))
    recording.steps = (replace(recording.last, gradients=gradients),)
    result = reproduce(training, recording)
    assert result.outcome == "clean"
    assert result.text("agreement") == "close"
    assert "every gradient differs" in result.conclusion


def test_another_program_is_different(training, recording):
    result = reproduce(training, recording, lambda model, batch: 1.1 * training.lm_loss(model, batch))
    assert result.outcome == "inconclusive"
    assert result.text("agreement") == "different"
    assert "the loss differs by 0.1 " in result.conclusion


def test_without_a_recorded_random_state_dropout_is_named_as_the_reason(training, recording):
    recording.steps = (replace(recording.last, micros=tuple(replace(m, random=None) for m in recording.last.micros)),)
    result = reproduce(training, recording)
    assert result.text("agreement") == "different"
    assert result.number("deterministic") == 1
    assert "No random state was recorded" in result.conclusion


def test_what_was_recorded_elsewhere_is_said(training, recording):
    recording.device, recording.flags = "cuda:0", {"num_threads": 64, "deterministic": False}
    recording.steps = (replace(recording.last, loss=None, grad_norm=recording.last.grad_norm * 1.0001),)
    result = reproduce(training, recording)
    assert result.text("agreement") == "close"
    assert "Recorded on cuda:0, replayed on cpu" in result.conclusion
    assert "Recorded with num_threads 64, replayed with 1" in result.conclusion
    assert "deterministic" not in result.conclusion


def test_the_gradient_of_one_rank_is_not_held_against_the_mean_over_ranks(training, recording):
    recording.world_size = 4
    recording.steps = (replace(recording.last, grad_norm=0.1),)
    result = reproduce(training, recording)
    assert result.text("agreement") == "bitwise"
    assert "4 ranks" in result.conclusion


def test_a_loss_with_a_generator_of_its_own_is_not_deterministic(training, recording):
    own = random.Random(1)

    def loss(model, batch):
        return training.lm_loss(model, batch) * (1 + own.random())

    result = reproduce(training, recording, loss)
    assert result.outcome == "inconclusive"
    assert result.number("deterministic") == 0
    assert "the loss of micro-batch 0" in result.text("first_difference")


def test_the_parameter_whose_gradient_changes_is_named(training, recording):
    own = random.Random(1)

    def loss(model, batch):
        model.blocks[1].down.bias.register_hook(lambda g: g * (1 + own.random()))
        return training.lm_loss(model, batch)

    result = reproduce(training, replace(recording, steps=(replace(recording.last, max_grad_norm=None),)), loss)
    assert result.text("first_difference") == "the gradient of blocks.1.down.bias"


def test_a_generator_that_is_restored_is_deterministic(training):
    """The near miss: randomness in the loss, from the recorded generators."""

    def loss(model, batch):
        return training.lm_loss(model, batch) * (1 + random.random()) * (1 + torch.rand(()))

    recording = training.record(training.LM(), loss, [[training.tokens(3, 8), training.tokens(3, 8, 1)]])
    (result,) = training.answers(EXPERIMENT, recording, training.LM(), loss)
    assert result.text("agreement") == "bitwise"


def bare(training, autocast=None):
    return Recording("checkpoint", (Step(7, (Micro(training.tokens(3, 8), autocast=autocast),)),))


def test_without_a_recording_the_logs_decide_to_their_digits(training):
    exact = training.runner(bare(training), training.LM(), training.lm_loss).compute()

    def said(**logged):
        (result,) = training.answers(EXPERIMENT, bare(training), training.LM(), training.lm_loss, logged=logged)
        return result.outcome, result.text("agreement")

    assert said(loss=round(exact.loss, 3), grad_norm=round(exact.norm, 4)) == ("clean", "close")
    assert said(loss=float(f"{exact.loss:.3e}")) == ("clean", "close")
    assert said(loss=round(exact.loss, 3) + 0.001) == ("inconclusive", "different")
    assert said(loss=round(exact.loss, 3), grad_norm=2 * exact.norm) == ("inconclusive", "different")
    assert said() == ("inconclusive", "unknown")


def test_a_difference_within_bfloat16_is_close(training):
    recording = bare(training, Autocast("cpu", True, "bfloat16"))
    loss = training.runner(recording, training.LM(), training.lm_loss).compute().loss
    recording.steps = (replace(recording.last, loss=loss * 1.005),)
    (result,) = training.answers(EXPERIMENT, recording, training.LM(), training.lm_loss)
    assert result.text("agreement") == "close"
    plain = bare(training)
    plain.steps = (replace(plain.last, loss=loss * 1.005),)
    (result,) = training.answers(EXPERIMENT, plain, training.LM(), training.lm_loss)
    assert result.text("agreement") == "different"


def test_a_recorded_failure_comes_back(training):
    def loss(model, batch):
        return training.lm_loss(model, batch) * torch.tensor(0.0).log()

    recording = training.record(training.LM(), loss, [[training.tokens(3, 8)]])
    (result,) = training.answers(EXPERIMENT, recording, training.LM(), loss)
    assert result.text("failure") == "nonfinite_loss"
    assert result.text("agreement") == "bitwise"
    (result,) = training.answers(EXPERIMENT, recording, training.LM(), training.lm_loss)
    assert result.text("failure") == "none"
    assert result.text("agreement") == "different"


def test_an_exception_is_a_failure_with_its_message(training):
    batch = training.tokens(3, 8)
    batch["input_ids"][1, 2] = 99
    recording = Recording("capsule", (Step(7, (Micro(batch),)),))
    (result,) = training.answers(EXPERIMENT, recording, training.LM(), training.lm_loss)
    assert result.text("failure") == "exception"
    assert "IndexError: index out of range" in result.result
    assert result.number("deterministic") == 1
