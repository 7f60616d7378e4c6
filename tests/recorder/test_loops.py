"""Loops as people write them: what the recorder leaves alone, and what its capsules then hold."""

import copy
import gc
import io
import json
import logging
import math
import os
import pickle
import weakref
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradforensics import Recorder, capsule
from gradforensics.recorder import gradients, measuring
from gradforensics.recorder.names import Names
from gradforensics.recorder.past import Past
from gradforensics.recorder.readings import Reading
from gradforensics.recorder.state import Buffers
from gradforensics.replay.program import Program
from gradforensics.replay.recording import from_capsule
from gradforensics.replay.step import StepRunner


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))


def loss_of(model, x):
    return model(x).square().mean()


def replayed(folder, step, model=None, loss=loss_of):
    """The recorded step, and what a replay of it gives."""
    where = folder / "capsules" / capsule.folder_name(step, 0, 1)
    header = capsule.read_header(where)
    return header, StepRunner(from_capsule(where), Program(model or small(), loss), "cpu").compute()


def one_step(model, optimizer, recorder, batch=None):
    x = recorder.batch(torch.randn(6, 4) if batch is None else batch)
    loss = recorder.loss(loss_of(model, x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.fixture(params=["now", "late"])
def check(request):
    return request.param


# -- what ends up in the capsule --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["evaluation", "skipped"])
def test_a_micro_batch_without_a_backward_is_no_part_of_the_step(kind, check, tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, check=check, at_steps=(2,)) as recorder:
        for _ in range(2):
            if kind == "evaluation":
                model.eval()
                with torch.no_grad():
                    recorder.loss(loss_of(model, recorder.batch(torch.randn(6, 4))))
                model.train()
            else:  # the loop finds the loss too large and takes the next batch
                recorder.loss(loss_of(model, recorder.batch(torch.randn(6, 4) * 100)))
            last = one_step(model, optimizer, recorder)
    header, found = replayed(tmp_path, 2)
    assert header.steps[-1].loss == last == found.loss
    assert header.steps[-1].grad_norm == found.clipped_norm
    assert header.notices == ("1 micro-batches without a backward are left out",)


def test_a_division_of_the_loss_in_place_is_seen(check, tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, accumulation=2, check=check, at_steps=(2,)) as recorder:
        for _ in range(2):
            for _ in range(2):
                loss = recorder.loss(loss_of(model, recorder.batch(torch.randn(6, 4))))
                loss /= 2
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    header, found = replayed(tmp_path, 2)
    assert header.steps[-1].grad_norm == found.clipped_norm


@pytest.mark.parametrize("kind", ["reentrant", "penalty"])
def test_checkpointing_that_reenters_and_a_penalty_on_the_gradient_are_replayed_bit_by_bit(kind, check, tmp_path):
    def reentrant(model, x):
        x = x.clone().requires_grad_()
        return checkpoint(model[2:], checkpoint(model[:2], x, use_reentrant=True), use_reentrant=True).square().mean()

    def penalty(model, x):
        x = x.clone().requires_grad_()
        out = model(x).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        return out + (slope.norm(dim=1) - 1).square().mean()

    loss = {"reentrant": reentrant, "penalty": penalty}[kind]

    def train(folder=None):
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        recorder = None if folder is None else Recorder(model, optimizer, folder, check=check, at_steps=(3,))
        for _ in range(4):
            x = torch.randn(6, 4)
            value = loss(model, x if recorder is None else recorder.batch(x))
            optimizer.zero_grad()
            (value if recorder is None else recorder.loss(value)).backward()
            optimizer.step()
        if recorder is not None:
            recorder.close()
        return model.state_dict()

    bare, recorded = train(), train(tmp_path)
    assert all(torch.equal(bare[key], recorded[key]) for key in bare)
    header, found = replayed(tmp_path, 3, loss=loss)
    assert (header.steps[-1].loss, header.steps[-1].grad_norm) == (found.loss, found.clipped_norm)


def test_weights_that_another_optimizer_changed_within_the_step_are_told(tmp_path):
    for both in (True, False):
        model = small()
        one = torch.optim.SGD(model[:2].parameters(), lr=0.1)
        two = torch.optim.SGD(model[2:].parameters(), lr=0.1)
        with Recorder(model, two, tmp_path / str(both), at_steps=(2,)) as recorder:
            for _ in range(2):
                recorder.loss(loss_of(model, recorder.batch(torch.randn(6, 4)))).backward()
                if both:
                    one.step()
                two.step()
        header = capsule.read_header(capsule.find(tmp_path / str(both))[0])
        assert any("changed the weights within a step" in notice for notice in header.notices) is both


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_capsule_of_several_steps_of_one_rank_says_that_the_others_are_missing(ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, check="late", at_steps=(1,)) as recorder:
        for step in range(1, 4):
            one_step(model, optimizer, recorder, torch.full((6, 4), math.nan) if step == 3 else None)
    one, several = map(capsule.read_header, capsule.find(tmp_path))
    assert (len(one.steps), len(several.steps)) == (1, 3)
    assert not any("this rank alone" in notice for notice in one.notices)
    assert any("this rank alone" in notice for notice in several.notices) is (ranks == 2)


@pytest.mark.parametrize("outside", [True, False])
def test_weights_that_are_changed_between_the_steps_of_a_capsule_are_told(outside, tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, check="late") as recorder:
        for step in range(1, 6):
            one_step(model, optimizer, recorder, torch.full((6, 4), math.nan) if step == 4 else None)
            if outside and step == 2:
                with torch.no_grad():
                    model[0].weight.clamp_(-0.1, 0.1)
    header = capsule.read_header(capsule.find(tmp_path)[0])
    assert [step.step for step in header.steps] == [1, 2, 3, 4]
    assert any("between the steps" in notice for notice in header.notices) is outside


def test_modes_are_those_of_the_forward_also_where_the_capsule_is_written_later(tmp_path):
    model = small()
    model[0].bias.requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path, check="late")
    for step in range(1, 4):
        one_step(model, optimizer, recorder, torch.full((6, 4), math.nan) if step == 3 else None)
    model.eval()
    model[0].bias.requires_grad_()
    recorder.close()
    header = capsule.read_header(capsule.find(tmp_path)[0])
    assert (header.step, header.evaluating, header.frozen) == (3, (), ("0.bias",))


def test_a_step_whose_optimizer_raised_is_not_mixed_with_the_next_one(check, tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with Recorder(model, optimizer, tmp_path, check=check) as recorder:
        for turn in range(4):
            optimizer.param_groups[0]["lr"] = "wrong" if turn == 1 else 0.1
            try:
                losses.append(one_step(model, optimizer, recorder))
            except (TypeError, RuntimeError):
                assert turn == 1
            if turn == 1:
                recorder.save("the step that was tried again")
    rows = map(json.loads, (tmp_path / "gradforensics-steps.jsonl").read_text().splitlines())
    assert [(row["step"], row["loss"]) for row in rows] == list(enumerate(losses, 1))
    header, found = replayed(tmp_path, 2)
    assert len(header.steps[-1].micro_batches) == 1
    assert found.loss == header.steps[-1].loss == losses[1]


class Half(torch.optim.SGD):
    """Raises at the third step, when it has changed half of the weights."""

    count = 0

    def step(self, closure=None):
        Half.count += 1
        if Half.count == 3:
            with torch.no_grad():
                self.param_groups[0]["params"][0].zero_()
            raise LookupError("half done")
        return super().step(closure)


def test_an_exception_in_the_optimizer_is_recorded_from_the_state_before_it_where_one_was_kept(check, tmp_path):
    Half.count = 0
    model = small()
    optimizer = Half(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path, check=check)
    for _ in range(2):
        one_step(model, optimizer, recorder)
    before = model[0].weight.detach().clone()
    with pytest.raises(LookupError), recorder:
        one_step(model, optimizer, recorder)
    where = capsule.find(tmp_path)[0]
    header = capsule.read_header(where)
    assert (header.step, header.reason) == (3, "exception")
    other = small()
    program = Program(other, loss_of, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    replay = StepRunner(from_capsule(where), program, "cpu")
    assert torch.equal(replay.state()["0.weight"], before) is (check == "late")
    assert any("weights may have changed" in notice for notice in header.notices) is (check == "now")
    if check == "late":
        assert replay.compute().loss == header.steps[-1].loss


def test_a_layer_that_is_added_with_its_group_is_in_the_next_capsule(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, at_steps=(2,)) as recorder:
        one_step(model, optimizer, recorder)
        model.append(nn.Linear(2, 2))
        optimizer.add_param_group({"params": model[4].parameters()})
        one_step(model, optimizer, recorder)
    header, found = replayed(tmp_path, 2, small().append(nn.Linear(2, 2)))
    assert header.groups[1] == ("4.weight", "4.bias")
    assert header.steps[-1].grad_norm == found.clipped_norm


def test_the_first_capsule_of_a_step_is_not_overwritten(tmp_path, caplog):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING), Recorder(model, optimizer, tmp_path, at_steps=(1,)) as recorder:
        for turn in range(6):
            loss = recorder.loss(loss_of(model, recorder.batch(torch.full((6, 4), math.nan if turn < 5 else 1.0))))
            if not loss.isfinite():
                continue
            loss.backward()
            optimizer.step()
    (folder,) = capsule.find(tmp_path)
    assert capsule.read_header(folder).reason == "nonfinite_loss"
    assert len(caplog.records) == 2  # the capsule, and that there is none of the step that was asked for


def test_keys_of_a_batch_that_look_alike_are_kept_apart(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch: dict[Any, Any] = {"a": {"b": torch.ones(2)}, "a.b": torch.zeros(3), 1: torch.ones(1), "1": torch.zeros(1)}
    with Recorder(model, optimizer, tmp_path, at_steps=(1,)) as recorder:
        recorder.batch(batch)
        recorder.loss(loss_of(model, torch.ones(6, 4))).backward()
        optimizer.step()
    found = from_capsule(capsule.find(tmp_path)[0]).last.micros[0].batch
    assert torch.equal(found["a"]["b"], batch["a"]["b"])
    assert torch.equal(found["a.b"], batch["a.b"])
    assert (found[1].item(), found["1"].item()) == (1.0, 0.0)


def test_a_buffer_replaced_by_another_at_the_same_address_is_copied_again():
    model: Any = nn.Module()
    model.register_buffer("mask", torch.zeros(4, dtype=torch.int64))
    names = Names(model)
    buffers = Buffers()
    for value in range(20):
        model.mask = None  # frees the one before: Python gives its address to the next
        model.mask = torch.full((4,), value)
        buffers.start(names)
        assert buffers.copies()["mask"].tolist() == [value] * 4


# -- what is left alone -----------------------------------------------------------------------------------------------


def test_model_optimizer_and_scaler_can_be_copied_and_pickled_at_any_point_of_a_step(check, tmp_path):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")

    def everything():
        for thing in (model, optimizer, scaler):
            torch.save(thing, io.BytesIO())
            pickle.loads(pickle.dumps(thing))
        return [copy.deepcopy(thing) for thing in (model, optimizer, scaler)]

    with Recorder(model, optimizer, tmp_path, scaler=scaler, check=check, at_steps=(3,)) as recorder:
        for _ in range(3):
            x = recorder.batch(torch.randn(6, 4))
            twin, _, _ = everything()
            twin(x)
            loss = recorder.loss(loss_of(model, x))
            everything()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            _, _, other = everything()
            scaler.step(optimizer)
            scaler.update()
        other_optimizer = torch.optim.SGD(small().parameters(), lr=0.1)
        other.scale(torch.ones((), requires_grad=True)).backward()
        other_optimizer.param_groups[0]["params"][0].grad = torch.ones(8, 4)
        other.step(other_optimizer)
        assert list(scaler._per_optimizer_states) == []  # the copy used its own method, not the one that is recorded
    assert len(capsule.find(tmp_path)) == 1


def test_a_function_that_is_compiled_whole_is_compiled_as_without_the_recorder(tmp_path):
    def count(folder=None):
        graphs = []

        def backend(graph, _inputs):
            graphs.append(len(list(graph.graph.nodes)))
            return graph.forward

        torch.compiler.reset()
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled = torch.compile(loss_of, backend=backend, fullgraph=True)
        recorder = None if folder is None else Recorder(model, optimizer, folder)
        for _ in range(3):
            x = torch.randn(6, 4)
            loss = compiled(model, x if recorder is None else recorder.batch(x))
            loss = loss if recorder is None else recorder.loss(loss)
            loss.backward()
            optimizer.step()
        if recorder is not None:
            recorder.close()
        return graphs

    assert count() == count(tmp_path) != []


def test_a_buffer_made_in_inference_mode_and_another_default_device_are_no_obstacle(check, tmp_path):
    model = small()
    model.register_buffer("cache", torch.zeros(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, check=check, at_steps=(2,), max_grad_norm=1.0) as recorder:
        for step in range(3):
            with torch.inference_mode():
                if step == 0:
                    model.cache = torch.zeros(3, dtype=torch.int64)
                model.cache.fill_(step)
            x = torch.randn(6, 4)
            with torch.device("meta"):  # stands for a script that makes everything on "cuda"
                one_step(model, optimizer, recorder, x)
    header, found = replayed(tmp_path, 2, _with_cache())
    assert header.steps[-1].loss == found.loss
    assert from_capsule(capsule.find(tmp_path)[0]).model["cache"].tolist() == [1] * 3  # type: ignore[index]  # it is there


def _with_cache():
    model = small()
    model.register_buffer("cache", torch.zeros(3, dtype=torch.int64))
    return model


def test_a_forked_process_writes_nothing(tmp_path, monkeypatch):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path, check="late", at_steps=(2,))
    one_step(model, optimizer, recorder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        one_step(model, optimizer, recorder)
    assert not (tmp_path / "gradforensics-steps.jsonl").exists()
    recorder.close()
    assert len((tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()) == 1
    assert capsule.find(tmp_path) == []


def test_an_exception_does_not_keep_its_tensors(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path)
    kept = []

    def failing():
        x = recorder.batch(torch.randn(6, 4))
        held = torch.zeros(3)
        kept.append(weakref.ref(held))
        raise ValueError(x.shape)

    gc.disable()
    try:
        failing()
    except ValueError as error:
        recorder.exception(error)
    finally:
        gc.enable()
    assert kept[0]() is None
    recorder.close()


def test_a_recorder_that_stops_lets_go_of_what_it_kept(tmp_path, monkeypatch):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, tmp_path, check="late")
    one_step(model, optimizer, recorder)
    assert recorder._past is not None
    anchor = weakref.ref(recorder._past.anchors)

    def broken(*_):
        raise ValueError("broken")

    monkeypatch.setattr("gradforensics.recorder.recorder.kept", broken)
    recorder.batch(torch.ones(2))
    assert anchor() is None


def test_a_loop_that_never_steps_the_optimizer_is_told(tmp_path, caplog):
    model = small()
    with caplog.at_level(logging.WARNING), Recorder(model, torch.optim.SGD(model.parameters()), tmp_path) as recorder:
        for _ in range(100):
            recorder.loss(loss_of(model, recorder.batch(torch.randn(6, 4)))).backward()
    assert ["more than 64 micro-batches" in record.message for record in caplog.records] == [True]


def test_two_losses_of_one_batch_are_told_and_the_calls_of_a_closure_are_not(tmp_path, caplog):
    model = small()
    for twice in (False, True):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        with caplog.at_level(logging.WARNING), Recorder(model, optimizer, tmp_path) as recorder:
            x = recorder.batch(torch.randn(6, 4))

            def closure(x=x, recorder=recorder, optimizer=optimizer, twice=twice):
                optimizer.zero_grad()
                if twice:
                    recorder.loss(loss_of(model, x)).backward()
                loss = recorder.loss(loss_of(model, x))
                loss.backward()
                return loss

            optimizer.step(closure)
        assert any("twice" in record.message for record in caplog.records) is twice


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_every_rank_has_its_own_room(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        model = nn.Linear(100, 100)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with Recorder(model, optimizer, tmp_path, max_bytes=300_000, at_steps=(1, 2)) as recorder:
            for _ in range(2):
                recorder.loss(model(recorder.batch(torch.ones(3, 100))).mean()).backward()
                optimizer.step()
    assert [path.name for path in capsule.find(tmp_path)] == ["capsule-00000001-rank0", "capsule-00000001-rank1"]


def test_a_state_that_safetensors_cannot_hold_costs_the_capsule_only(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def full(*_):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("gradforensics.recorder.writing.save_file", full)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path, at_steps=(1,)) as recorder:
        for _ in range(3):
            one_step(model, optimizer, recorder)
    lines = (tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert "SafetensorError: I/O error" in lines[0]


def test_a_checkpoint_that_cannot_be_pickled_costs_the_checkpoint_only(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return io.StringIO("no tensor")

        def set_extra_state(self, state):
            pass

    model = Extra(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["schedule"] = lambda: 1
    with Recorder(model, optimizer, tmp_path, pair_at=(2,)) as recorder:
        for _ in range(3):
            one_step(model, optimizer, recorder)
    lines = (tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()
    assert ["checkpoint_not_written" in line for line in lines] == [False, True, False]
    assert not list(tmp_path.glob("*checkpoint*"))


# -- a device that fails, on the CPU ----------------------------------------------------------------------------------


class Lost:
    """The event of a device that fails: every question to it raises."""

    def query(self):
        raise RuntimeError("CUDA error: device-side assert triggered")

    synchronize = query


def on_a_device(tensors, *, arrived):
    """The numbers as they wait for a CUDA device; on the host are those that arrived before it failed."""
    reading = Reading({})
    values = [float(v) for tensor in tensors.values() for v in tensor.reshape(-1).tolist()]
    reading._names = [(name, tensor.numel()) for name, tensor in tensors.items()]
    reading._host = torch.tensor([*values, 1.0] if arrived else [0.0] * (len(values) + 1), dtype=torch.float64)
    reading._event = cast("torch.cuda.Event", Lost())
    return reading


@pytest.mark.parametrize("first_to_see", ["recorder", "training"])
@pytest.mark.parametrize("bad", [3, 4, 5])
def test_a_device_that_fails_leaves_a_capsule_of_the_step_in_which_it_failed(
    bad, first_to_see, tmp_path, monkeypatch, caplog
):
    """Five steps were handed to the device before the host saw that it had failed in step `bad`."""

    def waiting(tensors):
        return on_a_device(tensors, arrived=recorder.step < bad) if recorder.step > 2 else Reading(tensors)

    monkeypatch.setattr("gradforensics.recorder.recorder.Reading", waiting)
    # events are not asked until the device has failed
    monkeypatch.setattr(Reading, "ready", lambda self, *, later: self._event is None and later)
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder: Recorder = Recorder(model, optimizer, tmp_path, check="late")
    losses = [one_step(model, optimizer, recorder) for _ in range(5)]
    if first_to_see == "recorder":
        monkeypatch.setattr(Past, "arrived", _fails)
        recorder.batch(torch.randn(6, 4))
    else:
        recorder.exception(RuntimeError("CUDA error: device-side assert triggered"))
    assert recorder._closed
    recorder.close()
    (folder,) = capsule.find(tmp_path)
    header, found = replayed(tmp_path, bad)
    assert (folder.name, header.reason) == (f"capsule-0000000{bad}", "exception")
    assert "device-side assert" in header.text
    assert found.loss == losses[bad - 1]
    lines = (tmp_path / "gradforensics-steps.jsonl").read_text().splitlines()
    assert len(lines) == bad
    assert ["grad_norm" in line for line in lines] == [True] * (bad - 1) + [False]
    assert sum("recorded in" in record.message for record in caplog.records) == 1


def _fails(*_, **__):
    raise RuntimeError("CUDA error: device-side assert triggered")


def test_norms_meet_on_one_device_and_idle_micro_batches_leave_only_where_others_ran(tmp_path):
    assert gradients.together([torch.ones(1), torch.ones(2)])[0].device.type == "cpu"
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, tmp_path) as recorder:
        recorder.batch(torch.ones(6, 4))
        assert recorder._open is not None
        measuring.leave_out_idle(recorder._open)
        assert len(recorder._open.micros) == 1
