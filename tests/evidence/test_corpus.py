"""Public runs with labelled facts, read from beside the checkout where they are."""

import math
import tomllib
from pathlib import Path

import polars as pl
import pytest

from gradforensics.errors import NoEvidenceError
from gradforensics.evidence.gather import gather

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
RUNS = tomllib.loads((CORPUS / "INDEX.toml").read_text())["run"] if CORPUS.exists() else []
WITHOUT_SERIES = {
    "checkpoint-fixtures-labelled",
    "dmesg-xid-119",
    "flight-recorder-gpu-error",
    "flight-recorder-lock-gil",
    "m4-hang-dmesg",
    "torch-legacy-ddpg",
    "torch-legacy-dqn",
    "verl-crash-at-start",
    "verl-not-implemented",
}

pytestmark = pytest.mark.skipif(not RUNS, reason="the labelled corpus is not here")


def label_fits(label, key):
    phase, _, rest = label.partition("_")
    if phase in ("eval", "val") and rest:
        return key.tag == label or (key.phase == "eval" and key.series in (label, rest))
    return key.tag == label or (key.series == label and key.phase != "eval")


def facts(evidence, label):
    for key, stored in evidence.frames.items():
        rows = (
            stored.frame.filter(pl.col("kind") != "missing")
            .unique("step", keep="last", maintain_order=True)
            .sort("step")
        )
        good = rows["value"].drop_nulls()
        if label_fits(label, key) and len(good):
            yield {
                "points": rows.height, "nonfinite": rows.height - len(good), "first": good[0], "last": good[-1],
                "min": good.min(), "max": good.max(), "first_step": rows["step"][0], "last_step": rows["step"][-1],
            }  # fmt: skip


@pytest.mark.parametrize("entry", RUNS, ids=[r["dir"] for r in RUNS])
def test_labelled_run(entry):
    folder = CORPUS / entry["dir"]
    if entry["not_a_run"]:
        with pytest.raises(NoEvidenceError):
            gather([folder])
        return
    found = gather([folder])
    assert any(e.ending.kind in (entry["ending"], *entry.get("ending_also", [])) for e in found)
    assert not [n for e in found for n in e.notices if "defect" in n.text]
    if entry["dir"] in WITHOUT_SERIES:
        return
    for name, want in entry["series"].items():
        if "/" in name or isinstance(want, (bool, str, list)):
            continue
        if name in ("first_step", "last_step"):
            assert want in {f[name] for e in found for k in e.frames for f in facts(e, k.tag)}
            continue
        label, _, what = name.rpartition("_")
        if name.startswith(("points_", "nonfinite_")):
            what, _, label = name.partition("_")
        elif what not in ("first", "last", "min", "max"):
            continue
        got = [f[what] for e in found for f in facts(e, label)]
        assert any(math.isclose(g, want, rel_tol=2e-4, abs_tol=1e-9) for g in got), (name, want, got)
