"""Two checkpoints compared: what is matched with what, and which is the older one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradforensics.checkpoints.compare import Change, Difference, called, compare, label
from gradforensics.checkpoints.load import Loaded
from gradforensics.checkpoints.model import Checkpoint, Group, Role, Tensor
from gradforensics.checkpoints.refs import Run, TensorRef
from gradforensics.untrusted.files import Memory


def tensor(
    role: Role, name: str, values: Any, *, key: str = "", rank: int | None = None, dtype: str = "float32"
) -> Tensor:
    array = np.asarray(values, dtype={"bfloat16": "uint16"}.get(dtype, dtype))
    run = Run(Memory(name, array.tobytes()), 0, array.size)
    return Tensor(name, role, TensorRef(dtype, array.shape, (run,) if array.size else ()), "f.pt", key or name, rank)


def loaded(step: int | None, *tensors: Tensor, groups: list[Group] | None = None, **facts: Any) -> Loaded:
    checkpoint = Checkpoint(
        f"checkpoint-{step}", "torch-zip", step, tensors=list(tensors), groups=groups or [], facts=facts
    )
    return Loaded(checkpoint, Path())


def changes(found: list[Change]) -> Mapping[str, tuple[Any, Any]]:
    return {change.what: (change.before, change.after) for change in found}


@pytest.mark.parametrize(
    ("a", "b", "older", "ordered"), [(3, 6, 3, True), (6, 3, 3, True), (5, 5, 5, False), (None, 3, None, False)]
)
def test_the_step_tells_which_one_is_older(a: int | None, b: int | None, older: int | None, ordered: bool) -> None:
    found = compare(loaded(a, tensor("param", "w", [1.0])), loaded(b, tensor("param", "w", [2.0])))
    assert (found.older.step, found.ordered) == (older, ordered)


def test_parameters_that_moved_come_by_their_way() -> None:
    before = loaded(
        1, *(tensor("param", name, [1.0, 1.0]) for name in ("near", "same", "far")), tensor("param", "born", [0.0])
    )
    after = loaded(
        2, tensor("param", "near", [1.0, 1.1]), tensor("param", "same", [1.0, 1.0]), tensor("param", "far", [5.0, 1.0]),
        tensor("param", "born", [1.0]),
    )  # fmt: skip
    found = compare(before, after)
    assert [travel.name for travel in found.moved] == ["born", "far", "near"]
    assert found.moved[1].rel_travel == pytest.approx(4 / 2**0.5)
    assert found.moved[2].changed == 0.5
    assert found.identical == ["same"]
    assert found.others == []


def test_a_parameter_beside_its_master_is_compared_too() -> None:
    def at(step: int, master: float) -> Loaded:
        return loaded(step, tensor("param", "w", [0x3F80], dtype="bfloat16"), tensor("master", "w", [master]))

    found = compare(at(1, 1.0), at(2, 1.001))
    assert [travel.name for travel in found.moved] == ["w"]
    (same,) = found.others
    assert (same.role, same.identical, same.changed) == ("param", ["w"], [])


def test_states_without_a_name_in_one_checkpoint_are_matched_by_their_ids() -> None:
    before = loaded(1, tensor("exp_avg", "state.4.exp_avg", [1.0], key="state.4.exp_avg"))
    after = loaded(2, tensor("exp_avg", "layer.weight", [2.0], key="state.4.exp_avg"))
    found = compare(before, after)
    assert (found.appeared, found.vanished) == ([], [])
    (same,) = found.others
    assert same.changed == ["layer.weight"]


def test_states_of_one_parameter_and_ranks_are_kept_apart() -> None:
    def at(step: int, row: float, rank1: float) -> Loaded:
        return loaded(
            step, tensor("state", "w", [row], key="state.0.exp_avg_sq_row"),
            tensor("state", "w", [7.0], key="state.0.exp_avg_sq_col"),
            tensor("buffer", "b", [1.0], rank=0), tensor("buffer", "b", [rank1], rank=1),
        )  # fmt: skip

    found = compare(at(1, 1.0, 1.0), at(2, 2.0, 3.0))
    told = {same.role: (same.identical, same.changed) for same in found.others}
    assert told == {"state": (["w exp_avg_sq_col"], ["w exp_avg_sq_row"]), "buffer": (["b@0"], ["b@1"])}


def test_what_cannot_be_compared_is_named() -> None:
    gone = tensor("buffer", "lost", [1.0])
    gone.lost = "its record is missing"
    short = tensor("buffer", "short", [1.0])
    short.ref = TensorRef("float32", (1,), (Run(Memory("x", b"ab"), 0, 1),))
    found = compare(
        loaded(1, tensor("buffer", "lost", [1.0]), tensor("buffer", "short", [1.0])), loaded(2, gone, short)
    )
    assert [(skipped.name, bool(skipped.reason)) for skipped in found.skipped] == [("lost", True), ("short", True)]
    assert found.skipped[0].reason == "its record is missing"
    assert found.others == []


def test_groups_facts_and_settings_that_changed() -> None:
    first = Group(
        0, ["a"], "adamw", 1e-3, (0.9, 0.99), 1e-8, 0.1, None, 3, 3, values={"initial_lr": 1e-3, "nan": float("nan")}
    )
    second = Group(
        0,
        ["a", "b"],
        "adamw",
        5e-4,
        (0.9, 0.99),
        1e-8,
        0.1,
        None,
        4,
        6,
        values={"initial_lr": 1e-3, "nan": float("nan")},
    )
    before = loaded(1, tensor("param", "w", [1.0]), groups=[first], folder="x", scale=2.0)
    after = loaded(2, tensor("param", "w", [1.0]), groups=[second, Group(1, [])], folder="y", scale=1.0, new=None)
    before.checkpoint.settings = [("seed", 1, "a.bin")]
    after.checkpoint.settings = [("seed", 2, "a.bin")]
    found = compare(before, after)
    assert changes(found.groups) == {
        "group 0 lr": (1e-3, 5e-4), "group 0 step": (3, (4, 6)), "group 0 parameters": (1, 2),
        "group 1": (None, "there"),
    }  # fmt: skip
    assert changes(found.facts) == {"scale": (2.0, 1.0)}
    assert changes(found.settings) == {"seed": (1, 2)}


def test_progress_goes_through_the_phases() -> None:
    told: list[tuple[str, int, int]] = []
    progress: Callable[[str, int, int], None] = lambda *state: told.append(state)  # noqa: E731  one line says it
    one, other = (loaded(s, tensor("param", "w", [1.0]), tensor("buffer", "b", [1.0])) for s in (1, 2))
    compare(one, other, progress=progress)
    assert list(dict.fromkeys(what for what, _, _ in told)) == ["comparing parameters", "comparing other tensors"]
    assert all(0 <= done <= total for _, done, total in told)


def test_labels() -> None:
    assert label(tensor("param", "w", [1.0], rank=2)) == "w@2"
    assert label(tensor("exp_avg", "w", [1.0], key="state.0.exp_avg")) == "w exp_avg"
    assert label(tensor("exp_avg", "state.0.exp_avg", [1.0], key="state.0.exp_avg")) == "state.0.exp_avg"
    assert label(tensor("state", "w", [1.0], key="state.0.row")) == "w row"
    assert called(tensor("exp_avg", "w", [1.0], key="state.0.exp_avg")) == "w"


def test_two_empty_checkpoints_differ_in_nothing() -> None:
    found = compare(loaded(1), loaded(2))
    assert found == Difference(found.older, found.newer, ordered=True)
