"""In which units a gradient norm was logged."""

import numpy as np
import pytest

from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.gradient_units import gradient_unit

SCALES = "1024*40 2048*40 4096*40"


def unit(series, **example):
    return gradient_unit(evidence_of({"series": series, **example}))


def test_a_norm_that_follows_the_scale_is_still_multiplied_by_it():
    found = unit({"grad_norm": "900*40 1800*40 3600*40 + noise(sd=100)", "loss_scale": SCALES})
    assert (found.kind, found.sure, found.factor) == ("loss-scale", True, 2048.0)


def test_a_norm_logged_one_row_before_its_scale_follows_it_as_well():
    found = unit({"grad_norm": "900*41 1800*40 3600*39", "loss_scale": SCALES})
    assert found.kind == "loss-scale"
    assert found.sure


def test_a_norm_that_ignores_the_scale_is_in_no_foreign_unit():
    assert unit({"grad_norm": "0.9*120 + noise(sd=0.1)", "loss_scale": SCALES}) is None


def test_a_scale_that_never_changes_leaves_it_unsure():
    found = unit({"grad_norm": "60000*120 + noise(sd=9000)", "loss_scale": "65536*120"})
    assert (found.kind, found.sure) == ("loss-scale", False)


def test_two_cuts_of_the_scale_in_an_explosion_are_no_unit():
    """The norm grows while the scale falls."""
    assert unit({"grad_norm": "ramp(1, 5000, 120)", "loss_scale": "4096*40 2048*40 1024*40"}) is None


def test_a_large_steady_norm_is_that_of_summed_tokens_where_their_number_is_known():
    settings = {"per_device_train_batch_size": 2, "max_seq_length": 2048}
    series = {"grad_norm": "1000*100 + noise(sd=80)"}
    assert unit(series, settings=settings).kind == "tokens"
    assert unit(series).kind == "steady"


@pytest.mark.parametrize("growth", ["ramp(1, 5000, 100)", "1.0*50 900*50", "1.0*99 9000"])
def test_a_norm_that_grew_is_in_no_foreign_unit(growth):
    assert unit({"grad_norm": growth}) is None


def test_norms_that_differ_between_ranks_from_the_start_are_of_one_rank_each():
    assert (
        unit({"grad_norm@0": "1.0*50 + noise(sd=0.2)", "grad_norm@1": "1.4*50 + noise(sd=0.2, seed=1)"}).kind == "shard"
    )


def test_ranks_that_part_later_have_no_unit_of_their_own():
    assert unit({"grad_norm@0": "1.0*50", "grad_norm@1": "1.0*10 ramp(1.1, 4.0, 40)"}) is None


def test_infinite_and_zero_norms_are_left_out():
    found = unit({"grad_norm": "nan*5 0*5 900*30 1800*40 3600*40", "loss_scale": SCALES})
    assert found.kind == "loss-scale"


def test_few_points_have_no_unit():
    assert unit({"grad_norm": "1000*5"}) is None


def test_the_answer_is_kept():
    evidence = evidence_of({"series": {"grad_norm": "300*100"}})
    unit = gradient_unit(evidence)
    assert unit is gradient_unit(evidence)
    assert unit is not None
    assert np.isclose(unit.level, 300)
