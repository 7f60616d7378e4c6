"""NaN and infinity in the tensors of checkpoints."""

import polars as pl
import pytest

from gradforensics.diagnosis.checks.weights import moments_nonfinite_beside_finite_weights, weights_nonfinite
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.languages import Text
from gradforensics.tables import TABLES, Evidence


def evidence(*rows):
    """Tensors as (checkpoint, step, role, name, nan, posinf, neginf)."""
    keys = ("checkpoint", "step", "role", "name", "nan", "posinf", "neginf")
    schema = TABLES["tensors"]
    table = pl.DataFrame([{c: dict(zip(keys, r, strict=True)).get(c) for c in schema} for r in rows], schema=schema)
    return Evidence("run", tables={"tensors": table})


def found(check, of):
    answer = check(of)
    assert isinstance(answer, list)
    return answer


GOOD = ("a", 100, "param", "w", 0, 0, 0)
BAD = ("b", 200, "param", "w", 3, 0, 0)


def test_the_first_bad_checkpoint_is_the_onset_and_the_last_good_one_before_it_the_other_end():
    hits = found(
        weights_nonfinite, evidence(("c", 300, "param", "w", 9, 0, 0), GOOD, BAD, ("b", 200, "param", "v", 0, 1, 0))
    )
    assert [(h.step, h.after, h.tensor) for h in hits] == [(200, 100, "w"), (300, 100, "w")]
    assert hits[0].facts == {
        "checkpoint": "b", "tensors": 2, "of": 2, "values": 4, "checkpoints": 2, "first_in": Text("weights", "权重"),
        "last_finite": "a",
    }  # fmt: skip


def test_without_steps_no_checkpoint_is_the_last_finite_one():
    (hit,) = found(weights_nonfinite, evidence(("a", None, "param", "w", 0, 0, 0), ("b", None, "param", "w", 3, 0, 0)))
    assert (hit.step, hit.facts["last_finite"]) == (None, Text("none", "无"))


def test_finite_weights_are_no_hit():
    assert weights_nonfinite(evidence(GOOD)) == []


@pytest.mark.parametrize("row", [("b", 2, "buffer", "w", 3, 0, 0), ("b", 2, "param", "attn.mask", 0, 0, 64)])
def test_buffers_and_masks_full_of_minus_infinity_are_no_weights(row):
    assert weights_nonfinite(evidence(GOOD, row)) == []


def test_infinity_in_a_weight_counts():
    assert [h.facts["values"] for h in found(weights_nonfinite, evidence(("b", 2, "param", "w", 0, 0, 3)))] == [3]


def test_without_measured_tensors_nothing_is_judged():
    assert isinstance(weights_nonfinite(evidence(("b", 2, "param", "w", None, None, None))), Missing)
    assert isinstance(moments_nonfinite_beside_finite_weights(evidence(GOOD)), Missing)


def test_moments_count_only_beside_finite_weights():
    moment = ("b", 200, "exp_avg", "w", 5, 0, 0)
    fine = ("b", 200, "param", "w", 0, 0, 0)
    assert [h.step for h in found(moments_nonfinite_beside_finite_weights, evidence(GOOD, fine, moment))] == [200]
    assert moments_nonfinite_beside_finite_weights(evidence(GOOD, BAD, moment)) == []


def test_the_kind_of_tensor_that_was_bad_first_is_named():
    hits = found(
        weights_nonfinite,
        evidence(("b", 200, "exp_avg_sq", "w", 0, 5, 0), ("b", 200, "param", "w", 0, 0, 0), GOOD,
                 ("c", 300, "param", "w", 9, 0, 0)),
    )  # fmt: skip
    assert [(h.step, h.facts["first_in"].en, h.facts["last_finite"]) for h in hits] == [(300, "exp_avg_sq", "a")]
