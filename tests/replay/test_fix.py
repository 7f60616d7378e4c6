"""A fix is verified only when the failure is there without it and gone with it."""

import pytest
import torch
import torch.utils.checkpoint

from gradforensics.replay import activation_checkpoints, experiments
from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments import accumulation, checkpointing, padding, reproduce
from gradforensics.replay.experiments.fix import EXPERIMENT
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The experiments of this test, whatever else there is."""
    every = (reproduce.EXPERIMENT, accumulation.EXPERIMENT, padding.EXPERIMENT, checkpointing.EXPERIMENT, EXPERIMENT)
    monkeypatch.setattr(experiments, "EXPERIMENTS", every, raising=False)


def ask(training, recording, without, other, *, found=(), model=None):
    """The results of `fix` for two loss functions (or programs), after the experiments in `found`."""
    runner = training.runner(recording, (model or training.LM)(), without)
    context = Context(runner, other=None if other is None else lambda: other)
    for experiment in found:
        context.found += list(experiment.run(context))
    before = runner.spent
    results = list(EXPERIMENT.run(context))
    assert runner.spent - before <= EXPERIMENT.cost(context)
    return results


def outcomes(results):
    return [r.outcome for r in results]


def overflowing(training):
    return lambda model, batch: training.lm_loss(model, batch) + (model.head.weight * 0).sum().sqrt()


def test_a_failure_that_the_other_program_cures_is_verified(training):
    bad = overflowing(training)
    recording = training.record(training.LM(), bad, [[training.tokens(2, 6)]])
    (result,) = ask(training, recording, bad, Program(training.LM(), training.lm_loss))
    assert result.outcome == "verified"
    assert result.text("failure", "recorded") == "nonfinite_gradient"
    assert result.text("failure", "other program") == "none"
    assert result.number("loss", "recorded") == pytest.approx(result.number("loss", "other program"))


def test_a_failure_that_stays_or_comes_with_the_other_program_is_not(training):
    bad = overflowing(training)
    recording = training.record(training.LM(), bad, [[training.tokens(2, 6)]])
    stays = ask(training, recording, bad, Program(training.LM(), lambda m, b: 2 * bad(m, b)))
    assert outcomes(stays) == ["unverified"]
    recording = training.record(training.LM(), training.lm_loss, [[training.tokens(2, 6)]])
    comes = ask(training, recording, training.lm_loss, Program(training.LM(), bad))
    assert outcomes(comes) == ["unverified"]
    assert "only with the other program" in comes[0].conclusion


def test_an_exception_is_a_failure_as_well(training):
    batch = training.tokens(2, 6)
    batch["input_ids"][0, 3] = 31
    recording = Recording("none", (Step(2, (Micro(batch),)),))

    def clamped(model, batch):
        return training.lm_loss(model, batch | {"input_ids": batch["input_ids"].clamp(max=30)})

    (result,) = ask(training, recording, training.lm_loss, Program(training.LM(), clamped))
    assert result.outcome == "verified"
    assert "IndexError" in result.result
    (result,) = ask(training, recording, training.lm_loss, Program(training.LM(), training.lm_loss))
    assert result.outcome == "unverified"
    assert "same way" in result.conclusion


def test_nothing_to_cure_proves_nothing(training):
    recording = training.record(training.LM(), training.lm_loss, [[training.tokens(2, 6)]])
    other = Program(training.LM(), lambda m, b: 0.5 * training.lm_loss(m, b))
    (result,) = ask(training, recording, training.lm_loss, other, found=[accumulation.EXPERIMENT])
    assert result.outcome == "inconclusive"
    assert outcomes(ask(training, recording, training.lm_loss, None)) == ["inconclusive"]


def test_both_programs_start_from_the_state_that_the_recorded_one_reached(training):
    """Rolled forward once: what the other program would have made of the steps before does not count."""
    bad = overflowing(training)
    torch.manual_seed(0)
    recording = training.record(training.LM(), training.lm_loss, [[training.tokens(2, 6, s)] for s in range(3)], keep=3)
    calls = []

    def other(model, batch):
        calls.append(model.head.weight.detach().clone())
        return training.lm_loss(model, batch)

    runner = training.runner(recording, training.LM(), training.lm_loss)
    list(EXPERIMENT.run(Context(runner, other=lambda: Program(training.LM(), other))))
    assert len(calls) == 1
    assert torch.equal(calls[0], runner.state()["head.weight"])
    assert bad is not other


def test_a_model_that_cannot_take_the_state_is_said(training):
    recording = training.record(training.LM(), training.lm_loss, [[training.tokens(2, 6)]])
    (result,) = ask(training, recording, training.lm_loss, Program(training.LM(layers=3), training.lm_loss))
    assert result.outcome == "inconclusive"
    assert "blocks.2" in result.result


def test_a_missing_division_is_cured_by_a_program_that_divides(training):
    micros = [training.tokens(2, 6, seed) for seed in range(4)]
    recording = training.record(training.LM(), training.lm_loss, [micros], divide=False)
    found = [accumulation.EXPERIMENT]
    cured = ask(training, recording, training.lm_loss, Program(training.LM(), training.lm_loss), found=found)
    assert outcomes(cured) == ["verified"]
    assert cured[0].text("experiment") == "accumulation"
    same = Program(training.LM(), training.lm_loss, divide=False)
    assert outcomes(ask(training, recording, training.lm_loss, same, found=found)) == ["unverified"]


def test_a_lost_random_state_is_cured_by_a_program_that_preserves_it(training, monkeypatch):
    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", torch.utils.checkpoint.checkpoint)
    activation_checkpoints.install()

    def model(*, preserve):
        def wrap(block, x, allowed):
            return torch.utils.checkpoint.checkpoint(
                block, x, allowed, use_reentrant=False, preserve_rng_state=preserve
            )

        return training.LM(dropout=0.3, wrap=wrap)

    recording = Recording("none", (Step(2, (Micro(training.tokens(2, 6)),)),))
    found = [reproduce.EXPERIMENT, checkpointing.EXPERIMENT]
    for preserve, outcome in ((True, "verified"), (False, "unverified")):
        other = Program(model(preserve=preserve), training.lm_loss)
        results = ask(training, recording, training.lm_loss, other, found=found, model=lambda: model(preserve=False))
        assert outcomes(results) == [outcome]
    without = Program(training.LM(dropout=0.3), training.lm_loss)
    results = ask(training, recording, training.lm_loss, without, found=found, model=lambda: model(preserve=False))
    assert outcomes(results) == ["inconclusive"]
