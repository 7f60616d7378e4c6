"""From the recorder's capsule alone: the injected fault is named, with its place, and the fix verified.

Published faults among them: softmax over a fully masked row (pytorch issue 103749), the gradient of sqrt at zero behind
torch.where (pytorch issue 187297), an activation beyond the range of fp16 (T5, text-to-text-transfer-transformer issue
539), a batch in which every label is ignored (trl issue 6668), a loss not divided by the accumulation steps (nanoGPT
issue 206).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parent / "faults" / "tiny.py"
SAMPLE, TOKEN, BAD = 5, 12, 8


@pytest.fixture(scope="module")
def tiny(load_module):
    return load_module("tiny", FAULTS)


def gradforensics(*arguments):
    command = [sys.executable, "-m", "gradforensics.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done


class Replayed:
    """What a replay of a recorded fault and the analysis with it say."""

    def __init__(self, tiny, fault, folder, experiments):
        run, out, report = folder / "run", folder / "replayed", folder / "report.json"
        self.losses = tiny.train(fault, run)
        chosen = [part for name in experiments for part in ("--experiment", name)]
        fix = ["--fix", f"{FAULTS}:fixed"] if "fix" in experiments else []
        self.done = gradforensics("replay", run, "--step", BAD, "--trust-run-code", *fix, *chosen, "-o", out)
        assert self.done.returncode in (0, 1), self.done.stderr
        lines = (out / "experiments.jsonl").read_text(encoding="utf-8").splitlines()
        self.results = [json.loads(line) for line in lines]
        gradforensics("analyze", run, "--with", out, "-o", folder / "report.html", "--output", f"json={report}")
        self.run = json.loads(report.read_text(encoding="utf-8"))["runs"][0]

    def outcomes(self, experiment):
        return [r["outcome"] for r in self.results if r["experiment"] == experiment]

    def quantity(self, experiment, name, variation=None):
        found = [
            q for r in self.results if r["experiment"] == experiment for q in r["quantities"]
            if q["name"] == name and variation in (None, q["variation"])
        ]  # fmt: skip
        assert found, f"{experiment} gives no {name}: {self.results}"
        return found[0]["text"] or found[0]["value"]

    def verdict(self, rule):
        return next(v for v in self.run["verdicts"] if v["rule"] == rule)


@pytest.fixture
def replayed(tiny, tmp_path):
    return lambda fault, *experiments: Replayed(tiny, fault, tmp_path, experiments)


@pytest.mark.parametrize(
    ("fault", "phase", "module", "operation", "place"),
    [
        ("masked-row", "forward", "blocks.0.attn", "softmax", (SAMPLE, TOKEN)),
        ("sqrt-at-zero", "backward", "scale", "Sqrt", (SAMPLE, TOKEN)),
        ("entropy", "forward", "", "log", (SAMPLE, TOKEN)),
    ],
)
def test_the_first_bad_value_is_named_and_the_fix_verified(replayed, fault, phase, module, operation, place):
    found = replayed(fault, "reproduce", "anomaly", "precision", "batch", "fix")
    assert found.quantity("reproduce", "agreement") == "bitwise"
    assert found.quantity("anomaly", "phase") == phase
    assert operation in found.quantity("anomaly", "operation")
    assert "tiny.py:" in found.quantity("anomaly", "source_line")
    if module:
        assert found.quantity("anomaly", "module") == module
    assert (found.quantity("anomaly", "sample"), found.quantity("anomaly", "token")) == place
    assert "verified" not in found.outcomes("precision")  # it is there in float32 as well
    assert found.quantity("batch", "sample") == SAMPLE
    assert "verified" in found.outcomes("batch")
    assert found.outcomes("fix") == ["verified"]
    assert found.run["primary"] == "GF11"
    assert found.verdict("GF11")["strength"] == "proven"
    assert operation in json.dumps(found.verdict("GF11"))


def test_an_activation_beyond_fp16_is_named_and_gone_in_float32(replayed):
    found = replayed("fp16-overflow", "anomaly", "precision", "batch", "fix")
    assert found.quantity("anomaly", "module") == "blocks.0.mlp"
    assert found.quantity("anomaly", "operation").startswith("mul")
    assert (found.quantity("anomaly", "sample"), found.quantity("anomaly", "token")) == (SAMPLE, TOKEN)
    assert found.quantity("precision", "finite", "float16") == 0
    assert found.quantity("precision", "finite", "float32") == 1
    assert "verified" in found.outcomes("precision")
    assert found.outcomes("fix") == ["verified"]
    assert found.run["primary"] == "GF12"


def test_a_batch_without_labels_is_named_as_such(replayed):
    found = replayed("empty-labels", "anomaly", "content", "fix")
    assert found.quantity("anomaly", "operation").startswith("div")
    assert found.quantity("content", "empty_samples") == found.quantity("content", "samples") == 8
    assert found.outcomes("fix") == ["verified"]


@pytest.mark.parametrize(
    ("fault", "ratio"),
    [("missing-division", pytest.approx(4, rel=1e-3)), ("cleared-each", None), ("mean-of-means", None)],
)
def test_the_arithmetic_of_accumulation_is_named_with_its_factor(replayed, fault, ratio):
    found = replayed(fault, "reproduce", "accumulation")
    assert found.quantity("reproduce", "agreement") == "bitwise"
    assert found.quantity("accumulation", "kind") == fault
    assert found.quantity("accumulation", "micro_batches") == 4
    if ratio is not None:
        assert found.quantity("accumulation", "ratio") == ratio
    assert "verified" in found.outcomes("accumulation")
    assert found.run["primary"] == "GF03"
    assert found.verdict("GF03")["variant"] == fault


def test_a_cut_graph_is_named_with_its_line(replayed):
    found = replayed("detach", "severed", "fix")
    assert found.outcomes("severed")[0] == "fault"
    assert found.quantity("severed", "severed") > 10
    assert "tiny.py:" in found.quantity("severed", "source_line")
    assert found.outcomes("fix") == ["verified"]
    assert found.run["primary"] == "GF01"


def test_a_label_out_of_range_is_named_with_sample_and_token(replayed):
    found = replayed("label-out-of-range", "anomaly", "batch", "content", "fix")
    assert found.quantity("content", "labels_out_of_range") == 1
    assert (found.quantity("content", "sample"), found.quantity("content", "token")) == (SAMPLE, TOKEN)
    assert found.quantity("batch", "sample") == SAMPLE
    assert found.outcomes("fix") == ["verified"]
    assert found.run["primary"] == "GF14"


def test_pads_in_the_labels_are_counted(replayed):
    found = replayed("pads-in-labels", "content", "fix")
    assert found.quantity("content", "pad_in_labels") > 8
    assert found.outcomes("fix") == ["verified"]
    assert found.run["primary"] == "GF15"


def test_left_padding_without_mask_and_positions_is_named(replayed):
    found = replayed("left-padding", "padding", "fix")
    assert found.quantity("padding", "relative_difference", "recorded") > 0.01
    assert found.outcomes("fix") == ["verified"]
    assert found.run["primary"] == "GF16"


def test_a_recomputation_with_other_dropout_is_named_and_gone_with_its_random_state(replayed):
    found = replayed("checkpoint-rng", "checkpointing", "fix")
    assert found.quantity("checkpointing", "relative_difference", "recorded") > 1e-3
    assert found.quantity("checkpointing", "relative_difference", "rng-preserved") < 1e-6
    assert "verified" in found.outcomes("checkpointing")
    assert found.outcomes("fix") == ["verified"]
    assert found.run["primary"] == "GF04"


def test_the_sample_that_carries_the_gradient_is_named(replayed):
    found = replayed("toxic-sample", "batch", "fix")
    assert (found.quantity("batch", "sample"), found.quantity("batch", "token")) == (SAMPLE, TOKEN)
    assert found.quantity("batch", "share") > 0.9
    assert "verified" in found.outcomes("batch")
    assert found.outcomes("fix") == ["verified"]


def test_a_healthy_step_replays_bitwise_and_raises_nothing(replayed):
    found = replayed("", *[
        "reproduce", "anomaly", "precision", "batch", "severed", "content", "accumulation", "padding", "checkpointing",
    ])  # fmt: skip
    assert found.done.returncode == 0, found.done.stdout
    assert found.quantity("reproduce", "agreement") == "bitwise"
    assert found.quantity("reproduce", "deterministic") == 1
    assert not [r for r in found.results if r["outcome"] in ("fault", "verified", "failed", "not-run")]
    assert found.run["primary"] is None
    assert found.verdict("GF01")["outcome"] == "clear"
