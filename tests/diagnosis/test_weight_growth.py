"""Weights that grow while the loss stands."""

from functools import partial

import numpy as np
import polars as pl
import pytest

from gradforensics.diagnosis.checks import weight_growth as checks
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.tables import TABLES, Evidence, SeriesFrame, SeriesKey, Setting, series_frame

STANDS = partial(checks.weights_grew_while_loss_stood, times=8.0, early=0.1, share=0.8, still=0.03)


def hit_of(answer):
    """The one hit of an answer."""
    assert isinstance(answer, list)
    (hit,) = answer
    return hit


def run(before, after, *, first=10, loss=None, settings=()):
    """Matrices of these norms at two steps of 200, and a loss that stands at 3.9 from step 20 on."""
    common = {"role": "param", "dtype": "float32", "shape": [4, 4], "count": 16, "nan": 0, "posinf": 0, "neginf": 0}
    common |= {"zero": 0, "one": 0, "fingerprint": "", "source": "x"}
    rows = [
        {**common, "checkpoint": name, "step": step, "name": f"blocks.{index}.w", "l2": l2}
        for name, step, norms in (("a", first, before), ("b", 200, after))
        for index, l2 in enumerate(norms)
    ]
    table = pl.DataFrame([{c: row.get(c) for c in TABLES["tensors"]} for row in rows], schema=TABLES["tensors"])
    evidence = Evidence("run", tables={"tensors": table})
    values = np.full(200, 3.9) if loss is None else loss
    values = values + np.random.default_rng(0).normal(0.0, 0.02, 200)
    frame = series_frame({"step": list(range(1, 201))}, values.tolist())
    evidence.frames[SeriesKey("run", "train", "loss", "loss", "log")] = SeriesFrame(frame)
    evidence.settings = [Setting(key, key, value, "config") for key, value in settings]
    return evidence


def test_weights_that_grew_tenfold_beside_a_loss_that_stands_are_found():
    hit = hit_of(STANDS(run([1.0, 1.0, 2.0], [10.0, 11.0, 20.0])))
    assert (hit.step, hit.after, hit.facts["grown"], hit.tensor) == (200, 10, 10.0, "blocks.1.w")


@pytest.mark.parametrize(
    ("before", "after", "loss"),
    [
        ([1.0, 1.0, 1.0], [3.2, 3.0, 2.0], None),  # three times the best rate, healthy
        ([1.0, 1.0, 1.0], [10.0, 10.0, 10.0], np.linspace(4.2, 2.9, 200)),  # the loss falls
        ([1.0, 1.0, 1.0, 0.01, 0.0, 0.01], [1.5, 1.5, 1.5, 1.0, 1.0, 1.0], None),  # near zero at first: meant to grow
    ],
)
def test_healthy_growth_is_no_finding(before, after, loss):
    assert STANDS(run(before, after, loss=loss)) == []


def test_a_first_checkpoint_from_the_middle_of_the_run_tells_nothing():
    assert isinstance(STANDS(run([1.0] * 3, [10.0] * 3, first=100)), Missing)


def test_a_loss_at_the_unigram_entropy_with_grown_weights_is_parked():
    at = (("unigram_entropy", 3.9), ("vocab_size", 64))
    parked = partial(checks.parks_at_unigram_with_grown_weights, tolerance=0.02, share=0.33, times=8.0, early=0.1)
    hit = hit_of(parked(run([1.0] * 3, [10.0] * 3, settings=at)))
    assert hit.facts["grown"] == 10.0
    assert parked(run([1.0] * 3, [2.0] * 3, settings=at)) == []
