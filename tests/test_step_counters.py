"""What the parts of a checkpoint counted, read from files that torch really wrote."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from gradforensics import step_counters as sc
from gradforensics.evidence.gather import gather
from gradforensics.tables import Setting


def model_and_optimizer():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def update(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()


def counted(folder, **settings):
    (evidence,) = gather([folder])
    evidence.settings = [*(evidence.settings or []), *(Setting(k, k, v, "x") for k, v in settings.items())]
    found = sc.counters(evidence)
    assert found is not None
    return evidence, found


def saved(folder, make, steps=30, name="step_30.pt", **more):
    model, optimizer = model_and_optimizer()
    schedule = make(optimizer)
    for _ in range(steps):
        update(model, optimizer)
        schedule.step(*([1.0] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict()}
    torch.save(state | more, folder / name)
    return counted(folder)[1][0]


def sequence(optimizer):
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=90),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [10])


def chain(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=100), sc.Scheduler(30, 100.0, "cosine", plateau=False)),
        (
            lambda o: lr_scheduler.OneCycleLR(o, 1e-3, total_steps=100),
            sc.Scheduler(30, 100.0, "one-cycle", plateau=False),
        ),
        (lambda o: lr_scheduler.PolynomialLR(o, 100), sc.Scheduler(30, 100.0, "polynomial", plateau=False)),
        (lambda o: lr_scheduler.LambdaLR(o, lambda s: 1 / (s + 1)), sc.Scheduler(30, None, "", plateau=False)),
        (lr_scheduler.ReduceLROnPlateau, sc.Scheduler(30, None, "", plateau=True)),
        (sequence, sc.Scheduler(30, 100.0, "cosine", plateau=False)),
        (chain, None),
    ],
)  # fmt: skip
def test_schedulers_of_torch_say_how_often_they_were_stepped_and_where_they_end(tmp_path, make, expected):
    assert saved(tmp_path, make).scheduler == expected


def test_the_step_of_the_run_is_the_one_that_a_file_or_a_name_states(tmp_path):
    model, optimizer = model_and_optimizer()
    for _ in range(5):
        update(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "last.pt")
    (unstated,) = counted(tmp_path)[1]
    assert (unstated.step, unstated.made, unstated.behind) == (None, 5, None)
    torch.save(state, tmp_path / "step_0000008.pt")
    assert [one.step for one in counted(tmp_path)[1]] == [None, 8]
    torch.save(state | {"global_step": 9}, tmp_path / "last.pt")
    assert [(one.step, one.behind) for one in counted(tmp_path)[1]] == [(8, 3), (9, 4)]


def test_of_several_optimizers_none_is_taken_for_that_of_the_run(tmp_path):
    model, optimizer = model_and_optimizer()
    update(model, optimizer)
    states = [optimizer.state_dict(), optimizer.state_dict()]
    torch.save({"state_dict": model.state_dict(), "optimizer_states": states, "global_step": 2}, tmp_path / "a.ckpt")
    (one,) = counted(tmp_path)[1]
    assert (one.optimizers, one.made) == (2, None)


def test_two_schedulers_are_counted_and_the_parts_of_one_are_not(tmp_path):
    _, optimizer = model_and_optimizer()
    pair = {"a": lr_scheduler.StepLR(optimizer, 10).state_dict(), "b": sequence(optimizer).state_dict()}
    assert saved(tmp_path, sequence, steps=2).schedulers == 1
    assert saved(tmp_path, sequence, steps=2, more=pair).schedulers == 3


def test_the_scale_bounds_how_many_steps_the_scaler_of_torch_can_have_skipped(tmp_path):
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10)
    for step in range(1, 41):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        scaler.scale(loss * (math.inf if step % 4 == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    torch.save(state | {"step": 40}, tmp_path / "step_40.pt")
    (one,) = counted(tmp_path)[1]
    assert (one.step, one.made, one.behind) == (40, 30, 10)
    # from 2^16, tried upwards thrice at the most in 30 good steps
    assert sc.most_skipped(one, 2.0**16) == pytest.approx(13)
    assert sc.most_skipped(one._replace(made=9), 2.0**16) == pytest.approx(10)
    assert sc.most_skipped(one._replace(scaler=None), 2.0**16) == 0
    assert sc.most_skipped(one._replace(scaler=sc.Scaler(0.0, 10, 2.0, 0.5)), 2.0**16) == math.inf


@pytest.mark.parametrize(
    ("step", "made", "accumulated", "answer"),
    [
        (40, 40, None, True),  # both counters agree
        (120, 79, None, True),  # too little for two micro-batches
        (120, 40, None, None),
        (120, 40, 1, True),
        (160, 40, 4, False),
    ],
)  # fmt: skip
def test_whether_a_plain_loop_counts_optimizer_steps_is_known_or_open(tmp_path, step, made, accumulated, answer):
    model, optimizer = model_and_optimizer()
    for _ in range(made):
        update(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, tmp_path / "a.pt")
    settings = {} if accumulated is None else {"gradient_accumulation_steps": accumulated}
    evidence, found = counted(tmp_path, **settings)
    assert sc.counts_updates(evidence, found) is answer
