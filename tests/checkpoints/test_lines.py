"""Names of checkpoints that tell several trainings in one folder apart."""

import pytest

from gradforensics.checkpoints.lines import lines, told_apart


def test_seeds_in_one_folder_are_lines_of_their_own():
    saved = [(f"seed{seed}_step{step}.pt", step) for seed in (1, 2) for step in (30, 60)]
    assert lines(saved) == {path: f"seed{path[4]}_step#.pt" for path, _ in saved}


def test_names_with_leading_zeros_are_of_one_line():
    saved = [(f"{kind}{step:06d}.pt", step) for kind in ("model", "opt") for step in (50, 100)]
    assert set(lines(saved).values()) == {"model#.pt", "opt#.pt"}


def test_a_resume_under_another_name_stays_on_one_line():
    assert lines([("a_10.pt", 10), ("a_20.pt", 20), ("b_30.pt", 30), ("b_40.pt", 40), ("last.pt", 40)]) == {}


def test_what_names_no_step_is_on_no_line():
    saved = [("a_10.pt", 10), ("b_10.pt", 10), ("a_20.pt", 20), ("b_20.pt", 20), ("best.pt", 15), ("final.pt", None)]
    assert lines(saved).keys() == {"a_10.pt", "b_10.pt", "a_20.pt", "b_20.pt"}


@pytest.mark.parametrize(
    ("first", "last", "apart"),
    [
        ("lr1e-3.pt", "lr3e-3.pt", True),
        ("fold_0/best.pt", "fold_1/best.pt", True),
        ("stage0.pt", "stage1.pt", True),
        ("lr1e-3_step10.pt", "lr0.001_step20.pt", False),
        ("checkpoint-10", "checkpoint-20", False),
        ("epoch=1-val_loss=2.31.ckpt", "epoch=2-val_loss=2.11.ckpt", False),
        ("run_1/step_10.pt", "run_2/step_20.pt", False),
    ],
)
def test_names_that_say_that_they_are_of_two_trainings_or_stages(first, last, apart):
    assert told_apart(first, last) is apart
