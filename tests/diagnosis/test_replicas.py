"""Checks that compare ranks: what parts them, what merely differs, and who is slow."""

import numpy as np
import pytest

from gradforensics.diagnosis.checks import replicas
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.vocabulary import Missing

PARTED = {"equal": 1e-3, "apart": 1e-2, "points": 5}


def parted(series, **settings):
    evidence = evidence_of({"series": series, "settings": settings})
    return replicas.ranks_part(evidence, name="grad_norm", **PARTED)


def test_a_nan_on_one_rank_alone_parts_the_replicas():
    (hit,) = parted({"grad_norm@0": "1.0*60 nan*20", "grad_norm@1": "1.0*80"})
    assert (hit.step, hit.after) == (61, 60)


def test_a_nan_on_all_ranks_does_not():
    assert parted({"grad_norm@0": "1.0*60 nan*20", "grad_norm@1": "1.0*60 nan*20"}) == []


def test_a_drift_begins_where_the_values_stop_to_be_equal():
    (hit,) = parted({"grad_norm@0": "1.0*60 ramp(1.002, 1.2, 40)", "grad_norm@1": "1.0*100"})
    assert hit.step == 61


@pytest.mark.parametrize("late", ["1.2*3 1.0*37", "1.2*3"])
def test_a_few_points_apart_are_no_divergence(late):
    assert parted({"grad_norm@0": f"1.0*60 {late}", "grad_norm@1": "1.0*100"}) == []


def test_ranks_are_compared_at_common_steps_only():
    evidence = evidence_of(
        {"series": {"grad_norm@0": "ramp(1, 2, 100)", "grad_norm@1": "ramp(1.09090909, 2, 10)"},
         "every": {"grad_norm@1": 10}}
    )  # fmt: skip
    found = replicas.together(evidence, "grad_norm")
    assert found is not None
    assert found.steps.tolist() == list(range(10, 101, 10))
    assert float(found.spread.max()) < 1e-6


def test_spread_is_the_range_over_the_median():
    rng = np.random.default_rng(0)
    values = rng.uniform(1, 2, (3, 20))
    series = {f"grad_norm@{r}": " ".join(map(repr, map(float, row))) for r, row in enumerate(values)}
    found = replicas.together(evidence_of({"series": series}), "grad_norm")
    assert found is not None
    slow = [(max(c) - min(c)) / sorted(c)[1] for c in values.T.tolist()]
    assert found.spread == pytest.approx(slow)


def test_sharded_weights_may_differ():
    series = {"param_norm@0": "18.0*50", "param_norm@1": "19.0*50"}
    for settings in ({}, {"strategy": "fsdp"}, {"strategy": "ddp", "tensor_model_parallel_size": 2}):
        evidence = evidence_of({"series": series, "settings": settings})
        answer = replicas.weights_part(evidence, equal=1e-5, points=5, begun="apart")
        assert isinstance(answer, Missing)


def slow(series, **settings):
    evidence = evidence_of({"series": series, "settings": settings})
    return replicas.rank_is_slower(evidence, tolerance=0.1, share=0.8)


def test_a_machine_that_is_busy_for_a_while_is_no_straggler():
    assert slow({"step_time@0": "0.5*100", "step_time@1": "0.5*70 0.8*30"}) == []


def test_stages_of_a_pipeline_are_not_compared():
    series = {"step_time@0": "0.5*100", "step_time@1": "0.8*100"}
    assert isinstance(slow(series, pipeline_model_parallel_size=2), Missing)
    assert slow(series)[0].facts["rank"] == 1


def test_three_ranks_of_different_speed_are_within_their_own_spread():
    assert slow({"step_time@0": "0.5*100", "step_time@1": "0.6*100", "step_time@2": "0.7*100"}) == []


def test_times_of_zero_and_gaps_are_survived():
    assert slow({"step_time@0": "0*100", "step_time@1": "0.5*100"}) == []
    (hit,) = slow({"step_time@0": "0.5*50 nan*5 0.5*45", "step_time@1": "0.8*30 _*3 0.8*67"})
    assert hit.facts["excess"] == pytest.approx(0.6)
