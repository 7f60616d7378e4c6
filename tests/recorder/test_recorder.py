"""The recorder in a training: it changes nothing, and what it writes is the step bit by bit."""

import json
import logging
import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradforensics import Recorder, capsule
from gradforensics.replay.recording import from_capsule

NAMES = (
    "plain", "dropout, accumulation, clipping", "bfloat16", "float16 with a scaler", "a scaler without clipping",
    "tied weights", "workers", "gradients zeroed in place",
)  # fmt: skip


def lines(folder):
    return [json.loads(line) for line in (folder / "gradforensics-steps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("check", ["now", "late"])
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_weights_are_bitwise_the_same_with_and_without_it(name, check, trainings, recording):
    training = trainings.TRAININGS[name]
    losses, model = training.run()
    recorded, other = training.run(recording(check=check, at_steps=(2, 5), keep=2, log_every=2, pair_at=(3,)))
    assert recorded == losses
    for (key, before), after in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(before, after), key


@pytest.mark.parametrize("name", NAMES)
def test_a_replayed_step_has_the_recorded_loss_and_gradient_bit_by_bit(name, trainings, recording, headers, runner):
    training = trainings.TRAININGS[name]
    losses, _ = training.run(recording(at_steps=(4,)))
    step = headers()[4].steps[-1]
    found = runner(training, 4).compute()
    count = training.accumulation
    assert found.losses == losses[3 * count : 4 * count]
    assert found.loss == step.loss
    assert found.clipped_norm == step.grad_norm
    gradients = runner(training, 4).step.gradients
    if training.clip is None:
        for key, gradient in gradients.items():
            assert torch.equal(gradient, found.gradients[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_a_step_seen_too_late_is_reached_from_the_last_copied_state(name, trainings, recording, headers, runner):
    training = trainings.TRAININGS[name]
    training = replace(training, bad=(5, training.accumulation - 1, math.inf))
    states = {}
    losses, _ = training.run(
        recording(check="late", keep=3),
        lambda step, model: states.update({step: {k: v.clone() for k, v in model.state_dict().items()}}),
    )
    header = headers()[5]
    assert (header.reason, [step.step for step in header.steps]) == ("nonfinite_loss", [4, 5])
    replay = runner(training, 5)
    for key, tensor in replay.state().items():
        assert torch.equal(tensor, states[5][key]), key
    found = replay.compute()
    count = training.accumulation
    assert all(map(trainings.same, found.losses, losses[4 * count : 5 * count]))
    assert found.failure == "nonfinite_loss"


def test_a_capsule_of_tied_weights_holds_them_once_and_the_optimizer_under_their_first_name(
    trainings, recording, tmp_path, headers
):
    trainings.TRAININGS["tied weights"].run(recording(at_steps=(4,)))
    header = headers()[4]
    recorded = from_capsule(next(iter(capsule.find(tmp_path))))
    assert header.tied == {"head.weight": "embedding.weight"}
    assert recorded.model is not None
    assert "head.weight" not in recorded.model
    assert set(recorded.optimizer["embedding.weight"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert header.optimizer == "torch.optim.AdamW"
    assert header.groups[0][0] == "embedding.weight"


def test_buffers_are_those_before_the_forward(trainings, recording, runner):
    seen = {}
    training = trainings.TRAININGS["plain"]
    training.run(recording(at_steps=(4,)), lambda step, model: seen.update({step: model[1].running_mean.clone()}))
    assert torch.equal(runner(training, 4).state()["1.running_mean"], seen[4])
    assert not torch.equal(seen[4], seen[5])


def test_autocast_scale_weight_and_clipping_are_in_the_header(trainings, recording, headers, runner):
    training = trainings.TRAININGS["float16 with a scaler"]
    training.run(recording(at_steps=(4,)))
    header = headers()[4]
    step = header.steps[0]
    assert step.micro_batches[0].autocast == capsule.Autocast("cpu", True, "float16")
    assert step.scale == 2.0**11  # grew once after two steps
    assert header.scaler["scale"] == step.scale
    assert header.scaler["_growth_tracker"] == 1
    assert [micro.backward.item() for micro in runner(training, 4).step.micros] == [2.0**10, 2.0**10]
    assert step.max_grad_norm == 0.3
    assert step.options[0]["lr"] == 0.01
    assert header.settings["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("cleared", [True, False])
@pytest.mark.parametrize("said", [1, 3])
def test_gradients_that_are_cleared_between_micro_batches_are_noticed(said, set_to_none, cleared, tmp_path, headers):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, accumulation=said, at_steps=(2,)) as recorder:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=set_to_none)
            for _ in range(3):
                batch = recorder.batch(torch.randn(4, 3))
                loss = recorder.loss(model(batch).square().mean())
                if cleared:
                    optimizer.zero_grad(set_to_none=set_to_none)
                loss.backward()
            optimizer.step()
    assert [micro.cleared for micro in headers()[2].steps[0].micro_batches] == [False, cleared, cleared]


def test_one_backward_of_several_losses_is_no_clearing(tmp_path, headers):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, at_steps=(2,)) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            losses = [recorder.loss(model(recorder.batch(torch.randn(4, 3))).square().mean()) for _ in range(70)]
            torch.stack(losses).sum().backward()
            optimizer.step()
    header = headers()[2]
    assert not any(micro.cleared for micro in header.steps[0].micro_batches)
    assert header.notices == ("6 micro-batches at the start of the step were not kept",)


def test_a_bad_loss_and_a_bad_gradient_are_told_apart_and_told_once(tmp_path, headers):
    model = Weighted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Recorder(model, optimizer, tmp_path) as recorder:
        for step in range(1, 12):
            x = recorder.batch(torch.zeros(4) if step in (3, 4, 8) else torch.ones(4))
            loss = recorder.loss(model(x).sqrt() / (1.0 if step != 10 else 0.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.heal()
    found = headers()
    assert {step: header.reason for step, header in found.items()} == {
        3: "nonfinite_gradient", 8: "nonfinite_gradient", 10: "nonfinite_loss",
    }  # fmt: skip
    assert "such as weight" in found[3].text


class Weighted(nn.Module):
    """The weighted sum of four numbers. heal: what a bad gradient did to the weights is undone."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (self.weight * x).sum()

    def heal(self):
        with torch.no_grad():
            self.weight.fill_(1.0)


@pytest.mark.parametrize("spiked", [True, False])
def test_a_spike_is_recorded_and_a_healthy_training_is_not(spiked, tmp_path, headers):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder(model, optimizer, tmp_path) as recorder:
        for step in range(1, 400):
            x = recorder.batch(torch.randn(32, 8) * (20.0 if spiked and step in (50, 300) else 1.0))
            loss = recorder.loss((model(x) - x.sum(-1, keepdim=True) - torch.randn(32, 1)).square().mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert {step: header.reason for step, header in headers().items()} == ({300: "spike"} if spiked else {})


def test_five_skipped_steps_in_a_row_are_recorded_and_four_are_not(trainings, tmp_path, headers):
    for many, expected in ((4, {}), (6, {6: "skipped_steps"})):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        with Recorder(model, optimizer, tmp_path, scaler=scaler) as recorder:
            for step in range(1, 10):
                loss = recorder.loss(model(recorder.batch(torch.ones(3, 2))).mean())
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                if 2 <= step < 2 + many:
                    model.weight.grad = torch.full((1, 2), math.inf)
                scaler.step(optimizer)
                scaler.update()
        assert {step: header.reason for step, header in headers().items()} == expected
        rows = lines(tmp_path)[-9:]
        assert [row["skipped_steps"] for row in rows][-1] == many
        assert [row["step"] for row in rows] == list(range(1, 10))
    assert "step" not in vars(scaler)


def test_an_exception_writes_the_step_that_raised_and_passes_on(trainings, recording, headers, runner):
    training = replace(trainings.TRAININGS["dropout, accumulation, clipping"], bad=(3, 2, 0.0))
    record = recording()

    def failing(model, *rest):
        model[0].register_forward_pre_hook(_raise_at_a_zero)
        return record(model, *rest)

    with pytest.raises(LookupError, match="a zero"):
        training.run(failing)
    header = headers()[3]
    assert header.reason == "exception"
    assert header.text == "LookupError: a zero"
    assert len(header.steps[0].micro_batches) == 3
    assert [micro.loss is None for micro in header.steps[0].micro_batches] == [False, False, True]
    replay = runner(training, 3)
    assert replay.compute(replay.step.micros[:2]).losses == [m.loss for m in header.steps[0].micro_batches[:2]]


def _raise_at_a_zero(_module, inputs):
    if (inputs[0] == 0).any():
        raise LookupError("a zero")


def test_an_uncaught_exception_is_recorded_and_the_hook_before_is_called_and_restored(tmp_path, headers, monkeypatch):
    calls = []
    before = lambda *given: calls.append(given[1])  # noqa: E731  compared below
    monkeypatch.setattr(sys, "excepthook", before)
    model = nn.Linear(2, 1)
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path)
    recorder.loss(model(recorder.batch(torch.ones(3, 2))).mean())
    error = ValueError("no")
    sys.excepthook(ValueError, error, None)
    assert calls == [error]
    assert headers()[1].reason == "exception"
    recorder.close()
    assert sys.excepthook is before


def test_an_interrupt_is_no_failure(tmp_path, headers):
    model = nn.Linear(2, 1)
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path)
    recorder.batch(torch.ones(3, 2))
    with pytest.raises(KeyboardInterrupt), recorder:
        raise KeyboardInterrupt
    assert headers() == {}


@pytest.mark.parametrize("leaves", ["continue", "break"])
def test_a_loop_that_leaves_a_bad_loss_out_is_recorded_all_the_same(leaves, tmp_path, headers):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path) as recorder:
        for turn in range(5):
            batch = recorder.batch(torch.full((3, 2), math.nan if turn == 2 else 1.0))
            loss = recorder.loss(model(batch).mean())
            if not loss.isfinite():
                if leaves == "continue":
                    continue
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert {step: (h.reason, len(h.steps[0].micro_batches)) for step, h in headers().items()} == {
        3: ("nonfinite_loss", 1)
    }
    rows = [row["loss"] for row in lines(tmp_path)]
    assert len(rows) == (4 if leaves == "continue" else 2)
    assert all(isinstance(loss, float) for loss in rows)


def test_a_capsule_on_request_is_of_the_step_that_runs(tmp_path, headers):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path) as recorder:
        for step in range(1, 4):
            loss = recorder.loss(model(recorder.batch(torch.ones(3, 2))).mean())
            if step == 2:
                recorder.save("odd sample")
            loss.backward()
            optimizer.step()
    assert {step: (header.reason, header.text) for step, header in headers().items()} == {2: ("request", "odd sample")}
    assert lines(tmp_path)[1]["capsule"] == "capsule-00000002"


def test_a_closure_is_recorded_when_it_has_computed_the_gradients(tmp_path, headers):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    with Recorder(model, optimizer, tmp_path, at_steps=(1, 2)) as recorder:
        for _ in range(2):
            batch = recorder.batch(torch.randn(3, 2))

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = recorder.loss(model(batch).square().mean())
                loss.backward()
                return loss

            optimizer.step(closure)
    assert sorted(headers()) == [1, 2]
    assert headers()[1].steps[0].grad_norm > 0


def test_wrapped_models_are_recorded_under_the_names_of_the_model_inside(tmp_path, headers):
    inner = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model = nn.DataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, at_steps=(1,)) as recorder:
        recorder.loss(model(recorder.batch(torch.ones(3, 2))).mean()).backward()
        optimizer.step()
    assert headers()[1].groups == (("0.weight", "0.bias", "1.weight", "1.bias"),)


def test_frozen_parameters_and_modules_in_evaluation_are_recorded(tmp_path, headers):
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.Linear(3, 1))
    model[0].requires_grad_(requires_grad=False)
    model[1].eval()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, at_steps=(1,)) as recorder:
        recorder.loss(model(recorder.batch(torch.ones(3, 2))).mean()).backward()
        optimizer.step()
    assert headers()[1].frozen == ("0.weight", "0.bias")
    assert headers()[1].evaluating == ("1",)


# -- bounds and failures ----------------------------------------------------------------------------------------------


def test_capsules_are_bounded_in_number_and_the_line_says_what_was_not_written(tmp_path, headers):
    model = Weighted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Recorder(model, optimizer, tmp_path, max_capsules=2, at_steps=(8,)) as recorder:
        for step in range(1, 9):
            x = torch.full((4,), math.nan if step % 2 else 1.0)
            recorder.loss(model(recorder.batch(x))).backward()
            optimizer.step()
            optimizer.zero_grad()
            model.heal()
    assert sorted(headers()) == [1, 3, 8]
    assert lines(tmp_path)[4]["capsule_not_written"] == "nonfinite_loss: max_capsules is 2"


def test_capsules_are_bounded_in_size(tmp_path, headers):
    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Recorder(model, optimizer, tmp_path, max_bytes=150_000, at_steps=(1, 2)) as recorder:
        for _ in range(2):
            recorder.loss(model(recorder.batch(torch.ones(3, 100))).mean()).backward()
            optimizer.step()
    assert sorted(headers()) == [1]
    assert "does not fit" in lines(tmp_path)[1]["capsule_not_written"]


def test_a_capsule_that_fails_half_way_leaves_nothing_and_the_training_goes_on(
    tmp_path, monkeypatch, trainings, recording
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capsule, "write_header", full)
    training = trainings.TRAININGS["plain"]
    losses, _ = training.run(recording(at_steps=(3,)))
    assert losses == training.run()[0]
    assert list((tmp_path / "capsules").iterdir()) == []
    assert "No space left" in lines(tmp_path)[2]["capsule_not_written"]
    assert len(lines(tmp_path)) == trainings.STEPS


def test_a_failure_of_its_own_is_said_once_and_never_reaches_the_training(monkeypatch, caplog, trainings, recording):
    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr("gradforensics.recorder.recorder.kept", broken)
    training = trainings.TRAININGS["float16 with a scaler"]
    hook = sys.excepthook
    with caplog.at_level(logging.WARNING):
        losses, _ = training.run(recording())
    assert losses == training.run()[0]
    assert [record.message for record in caplog.records] == ["the recorder stops: RuntimeError: broken"]
    assert sys.excepthook is hook


def test_a_batch_that_cannot_be_recorded_costs_the_capsules_only(tmp_path, caplog, headers):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, at_steps=(1, 2)) as recorder:
        for _ in range(2):
            recorder.batch({"x": torch.ones(3, 2), "path": object()})
            recorder.loss(model(torch.ones(3, 2)).mean()).backward()
            optimizer.step()
    assert headers() == {}
    assert len(lines(tmp_path)) == 2
    assert "object cannot be recorded" in lines(tmp_path)[0]["capsule_not_written"]
    assert sum("no capsules: batch.path" in record.message for record in caplog.records) == 1


def test_sharded_parameters_are_logged_but_not_recorded(tmp_path, caplog, headers, monkeypatch):
    monkeypatch.setattr("gradforensics.recorder.recorder.sharded", lambda _model: "DTensor")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, at_steps=(1,), pair_at=(1,)) as recorder:
        recorder.loss(model(recorder.batch(torch.ones(3, 2))).mean()).backward()
        optimizer.step()
    assert headers() == {}
    assert set(lines(tmp_path)[0]) == {"step", "loss", "lr", "capsule_not_written"}
    assert sum("sharded (DTensor)" in record.message for record in caplog.records) == 1


def test_nothing_stays_on_the_training_after_close(tmp_path):
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    recorder = Recorder(model, optimizer, tmp_path, scaler=scaler)
    recorder.batch(torch.ones(3, 2))
    recorder.close()
    recorder.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert "step" not in vars(scaler)
    loss = recorder.loss(model(recorder.batch(torch.ones(3, 2))).mean())
    loss.backward()
    optimizer.step()


def test_arguments_that_make_no_sense_are_refused(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="check"):
        Recorder(model, optimizer, tmp_path, check="never")  # type: ignore[arg-type]  # the wrong value is the test
    with pytest.raises(ValueError, match="at least 1"):
        Recorder(model, optimizer, tmp_path, accumulation=0)
