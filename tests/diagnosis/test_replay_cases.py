"""What a replay decides: from a log and a replay directory to the primary case, its variant and its consequences."""

import json
import math
from dataclasses import replace

import pytest

from gradforensics.diagnosis import rule_model
from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.judge import Verdict, judge
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.experiments import Quantity, Replay, Result, append, write_header
from gradforensics.languages import Text
from gradforensics.questions import QUESTIONS

RULES = load_rules()
STEP = 60


def q(name, value=None, variation="", text=""):
    return Quantity(name, value, "", variation, text)


def result(experiment, outcome, *quantities, changed="nothing", step=STEP):
    return Result(experiment, step, QUESTIONS[experiment], changed, "what came out", "so it is", outcome, quantities)


def anomaly(phase="forward", operation="softmax", kind="nan"):
    return result(
        "anomaly", "fault", q("phase", text=phase), q("operation", text=operation), q("module", text="blocks.3.attn"),
        q("source_line", text="model.py:41"), q("value_kind", text=kind), q("sample", 5.0), q("token", 12.0),
        q("micro_batch", 0.0),
    )  # fmt: skip


PRECISION = result(
    "precision", "fault", q("finite", 0.0, "recorded"), q("finite", 0.0, "float16"), q("finite", 1.0, "bfloat16"),
    q("finite", 1.0, "float32"), q("max_activation", 81234.0, "float32"), q("module", text="blocks.3.mlp"),
    changed="autocast float16 -> float32, bfloat16",
)  # fmt: skip
SEVERED = result(
    "severed", "fault", q("trainable", 29.0), q("severed", 14.0), q("unused", 0.0), q("omitted", 0.0),
    q("module", text="blocks.0"), q("names", text="embed.weight"),
)  # fmt: skip
MISSING_DIVISION = result(
    "accumulation", "fault", q("kind", text="missing-division"), q("ratio", 8.0), q("cosine", 1.0),
    q("micro_batches", 8.0),
)  # fmt: skip
NO_LABEL = result("content", "fault", q("empty_samples", 4.0), q("samples", 4.0))
MASKED_ROW = result("padding", "fault", q("finite", 0.0, "recorded"), q("relative_difference", math.nan, "recorded"))


@pytest.fixture
def diagnosis(tmp_path):
    """The diagnosis of a run whose log holds NaN from `nan_from` on (None: never), with these replayed results."""

    def make(*results, nan_from=STEP, steps=80, step=STEP):
        run = tmp_path / "alpha"
        run.mkdir()
        rows = [
            {"step": s, "loss": 3.0 - s / 100 if nan_from is None or s < nan_from else math.nan, "grad_norm": 1.0}
            for s in range(1, steps + 1)
        ]
        (run / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
        folder = tmp_path / "replay"
        folder.mkdir()
        write_header(folder, Replay("gradforensics 0", "alpha", step, "cpu", "capsule", finished=True))
        for one in results:
            append(folder, one)
        (evidence,) = gather([run], replayed=[folder])
        return diagnose(evidence, RULES)

    return make


def verdict_of(diagnosis, rule):
    return next(v for v in diagnosis.verdicts if v.rule.id == rule)


def primary(diagnosis):
    found = diagnosis.primary
    return None if found is None else (found.rule.id, found.variant, found.strength, found.onset)


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ((anomaly(),), ("GF11", "forward-operation", "proven", 60)),
        ((anomaly("backward", "SqrtBackward0", "posinf"),), ("GF11", "backward-operation", "proven", 60)),
        ((anomaly("batch"),), ("GF11", "bad-batch", "proven", 60)),
        ((anomaly(), PRECISION), ("GF12", "overflow", "proven", 60)),
        ((anomaly(), MASKED_ROW), ("GF16", "nan", "proven", 60)),
        ((anomaly("forward", "cross_entropy"), NO_LABEL), ("GF15", "nothing-in", "proven", 60)),
        ((), ("GF11", "forward-first", "proven", 60)),
    ],
)
def test_with_nan_in_the_log_the_named_case_is_the_primary_one(diagnosis, results, wanted):
    assert primary(diagnosis(*results)) == wanted


@pytest.mark.parametrize(
    ("results", "wanted"),
    [
        ((SEVERED,), ("GF01", "cut", "proven", 60)),
        ((MISSING_DIVISION,), ("GF03", "missing-division", "proven", 60)),
        (
            (result("content", "fault", q("loss_over_mean", 512.0), q("valid_tokens", 512.0)),),
            ("GF02", "sum", "proven", 60),
        ),
        (
            (result("content", "fault", q("ids_out_of_range", 1.0), q("id", 50.0), q("rows", 50.0)),),
            ("GF14", "ids", "proven", 60),
        ),
        (
            (result("content", "fault", q("pad_in_labels", 73.0), q("pad_share", 0.28)),),
            ("GF15", "pad-in", "proven", 60),
        ),
        (
            (result("padding", "fault", q("finite", 1.0, "recorded"), q("relative_difference", 0.1, "recorded")),),
            ("GF16", "shifted", "proven", 60),
        ),
        (
            (result("checkpointing", "fault", q("relative_difference", 0.2, "recorded"), q("calls", 4.0)),),
            ("GF04", "silent", "proven", 60),
        ),
        (
            (anomaly("exception", "RuntimeError: Trying to backward through the graph a second time"),),
            ("GF04", "error", "proven", 60),
        ),
    ],
)
def test_faults_that_no_log_shows_are_the_primary_case(diagnosis, results, wanted):
    found = diagnosis(*results, nan_from=None)
    assert primary(found) == wanted
    assert [v.rule.id for v in found.alarms] == [wanted[0]]


@pytest.mark.parametrize(("results", "cause"), [((PRECISION,), "GF12"), ((MASKED_ROW,), "GF16"), ((NO_LABEL,), "GF15")])
@pytest.mark.parametrize("nan_from", [59, 60, 61])  # a log may count its steps from 0, or log the loss of a step later
def test_the_nan_is_the_consequence_of_what_the_replay_proves(diagnosis, results, cause, nan_from):
    found = diagnosis(anomaly(), *results, nan_from=nan_from)
    assert primary(found)[0] == cause
    assert (cause, "GF11") in found.chain


def test_padding_in_the_labels_does_not_cause_a_nan(diagnosis):
    found = diagnosis(anomaly(), result("content", "fault", q("pad_in_labels", 3.0), q("pad_share", 0.1)))
    assert primary(found)[0] == "GF11"
    assert found.chain == ()


def test_the_text_names_operation_module_line_sample_and_token(diagnosis):
    found = diagnosis(anomaly()).primary
    what = found.texts().what
    for piece in ("softmax", "blocks.3.attn", "model.py:41", "micro-batch 0, sample 5, token 12", "NaN", "step 60"):
        assert piece in what
    hit = found.holdings[0].hits[0]
    assert (hit.step, hit.line, hit.tensor) == (60, 1, "blocks.3.attn")
    assert hit.source.endswith("replay/experiments.jsonl")
    assert "softmax" in found.texts("zh").what


@pytest.mark.parametrize("results", [(anomaly(),), (PRECISION,), (NO_LABEL,)])
def test_a_step_that_the_run_got_over_is_no_alarm(diagnosis, results):
    found = diagnosis(*results, nan_from=None)
    assert found.alarms == []
    assert [v.severity for v in found.verdicts if v.outcome == "fired"] == ["S4"]


def test_an_overflow_by_the_loss_scale_alone_is_no_alarm_where_no_log_shows_harm(diagnosis):
    scale = result("anomaly", "verified", q("scale", 65536.0), changed="loss scale 65536 -> 1")
    found = diagnosis(anomaly("backward", "MulBackward0", "posinf"), scale, nan_from=None, steps=STEP)
    assert found.alarms == []
    assert verdict_of(found, "GF11").variant == "survived"


def test_a_replay_of_a_later_step_does_not_hide_where_it_began(diagnosis):
    found = diagnosis(anomaly("state"), nan_from=40)
    assert primary(found) == ("GF11", "forward-first", "proven", 40)


def test_a_clean_experiment_on_the_code_acquits_and_one_on_the_batch_does_not(diagnosis):
    found = diagnosis(
        result("severed", "clean", q("trainable", 29.0), q("severed", 0.0), q("unused", 0.0)),
        result("accumulation", "clean", q("kind", text="agrees"), q("ratio", 1.0)),
        result("padding", "clean", q("relative_difference", 0.0, "recorded")),
        result("checkpointing", "clean", q("relative_difference", 0.0, "recorded")),
        result("anomaly", "clean"),
        result("content", "clean", q("ids_out_of_range", 0.0)),
        nan_from=None,
    )
    assert found.alarms == []
    outcomes = {v.rule.id: v.outcome for v in found.verdicts}
    assert {outcomes[rule] for rule in ("GF01", "GF03", "GF04")} == {"clear"}
    assert {outcomes[rule] for rule in ("GF14", "GF15", "GF16")} == {"not_judged"}
    assert "experiments:content" not in verdict_of(found, "GF14").missing


@pytest.mark.parametrize("outcome", ["inconclusive", "not-run", "failed"])
def test_an_experiment_without_an_answer_acquits_nobody(diagnosis, outcome):
    found = diagnosis(result("severed", outcome), nan_from=None)
    verdict = verdict_of(found, "GF01")
    assert verdict.outcome == "not_judged"
    assert {"experiments:severed", "experiments:checkpointing"} <= set(verdict.missing)


@pytest.mark.parametrize(
    "results",
    [
        (result("accumulation", "verified"),),  # the line with the fault is torn
        (result("accumulation", "unverified"),),
        (result("accumulation", "fault", q("kind", text="of a later version")),),
        (result("accumulation", "clean"), result("accumulation", "fault", q("kind", text="other"), step=70)),
    ],
)
def test_only_an_experiment_that_looked_and_found_nothing_acquits(diagnosis, results):
    assert verdict_of(diagnosis(*results, nan_from=None), "GF03").outcome == "not_judged"


def test_a_fault_of_checkpointing_that_is_another_rules_acquits_nobody(diagnosis):
    found = diagnosis(result("checkpointing", "fault", q("missing", 3.0)), nan_from=None)
    assert primary(found) == ("GF01", "re-entrant", "proven", 60)
    assert verdict_of(found, "GF04").outcome == "not_judged"


@pytest.mark.parametrize("results", [(anomaly("backward"),), (PRECISION,), (anomaly(), PRECISION), (NO_LABEL,)])
def test_a_step_long_before_the_nan_is_not_its_cause(diagnosis, results):
    found = diagnosis(*results, nan_from=70, steps=90)
    assert primary(found) == ("GF11", "forward-first", "proven", 70)
    assert [v.rule.id for v in found.alarms] == ["GF11"]
    assert found.chain == ()


@pytest.mark.parametrize(("steps", "severity"), [(62, "S1"), (61, "S2"), (60, "S2")])
def test_an_overflow_is_as_grave_as_what_the_log_shows_of_it(diagnosis, steps, severity):
    found = verdict_of(diagnosis(anomaly(), PRECISION, steps=steps), "GF12")
    assert (found.variant, found.severity) == ("overflow", severity)  # one bad value or two may be skipped steps


def test_a_nan_of_an_attempt_that_had_ended_before_says_nothing_of_the_step():
    series = {"loss#0": "decay(4.2, 3.4, 40) nan*10", "loss#1": "decay(3.4, 3.0, 160)"}
    rows = [("finite", "recorded", 0.0), ("finite", "float32", 1.0)]
    experiments = [
        {"experiment": "precision", "step": 100, "verdict": "fault", "changed": "float16 -> float32",
         "quantity": name, "variation": variation, "value": value}
        for name, variation, value in rows
    ]  # fmt: skip
    rule = next(one for one in RULES if one.id == "GF12")
    found = judge(rule, evidence_of({"series": series, "start": {"loss#1": 41}, "experiments": experiments}))
    assert (found.variant, found.severity) == ("one-overflow", "S4")


def test_a_failure_in_bfloat16_is_no_matter_of_range(diagnosis):
    changed = "autocast bfloat16 -> float32, float16"
    found = verdict_of(diagnosis(anomaly(), replace(PRECISION, changed=changed)), "GF12")
    assert (found.variant, found.severity) == ("rounding", "S1")
    assert "bf16" not in " ".join(found.texts().fix)


def test_a_clean_step_beside_a_nan_elsewhere_acquits_nothing_that_could_have_made_it(diagnosis):
    clean = [result(name, "clean") for name in QUESTIONS]
    found = diagnosis(*clean, nan_from=75, steps=100)
    assert primary(found)[0] == "GF11"
    assert {verdict_of(found, rule).outcome for rule in ("GF12", "GF14", "GF15", "GF16")} == {"not_judged"}


def test_a_replayed_verdict_offers_no_further_replay_and_a_logged_one_names_run_and_step(diagnosis, monkeypatch):
    monkeypatch.setattr(rule_model, "COMMANDS", ("analyze", "replay"))
    found = diagnosis(SEVERED)
    logged = verdict_of(found, "GF11")
    run = found.evidence.path
    assert logged.verify() == f"gradforensics replay {run} --step 60 --experiment anomaly"
    assert verdict_of(found, "GF01").verify() == ""


def test_the_step_of_a_command_is_n_where_no_onset_is_known_and_unknown_experiments_are_not_offered(monkeypatch):
    monkeypatch.setattr(rule_model, "COMMANDS", ("analyze", "replay"))
    rule = replace(RULES[0], verify=Text("gradforensics replay {run} --step N --experiment severed"))
    facts = {"run": "my run", "onset": None}
    assert Verdict(rule, "fired", facts=facts).verify() == (
        "gradforensics replay 'my run' --step N --experiment severed"
    )
    onset = Verdict(rule, "fired", onset=7, facts=facts).verify()
    assert onset == "gradforensics replay 'my run' --step 7 --experiment severed"
    unknown = replace(rule, verify=Text("gradforensics replay {run} --step {onset} --experiment lr"))
    assert not unknown.verifiable
