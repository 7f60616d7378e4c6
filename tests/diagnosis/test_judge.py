"""Strengths, acquittal, refutation, onset and causes, on small rules over the real checks."""

import pytest

from gradforensics.diagnosis.causes import diagnose, may_cause
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.judge import judge
from gradforensics.diagnosis.rules import load_rule, load_rules

RULE = """
id = "TT01"
slug = "test"
family = "test"
title = "A test"
severity = "S2"
what = "From step {onset}."
why = "Because."
fix = ["Do it."]
[parameters]
wide = { value = 0.5, unit = "fraction", source = "made up for this test" }
seed_wide = { value = 0.5, unit = "fraction", source = "made up for this test" }
noise = { value = 7.0, unit = "sd", source = "made up for this test" }
rise = { value = 0.25, unit = "fraction", source = "made up for this test" }
share = { value = 0.2, unit = "fraction", source = "made up for this test" }
times = { value = 3.0, unit = "times", source = "made up for this test" }
[[sign]]
check = "lr_identically_zero"
strength = "suspect"
with = { share = "$LR" }
[[sign]]
check = "left_best_level"
strength = "suspect"
acquits = ACQUITS
with = { noise = "$noise", rise = "$rise", share = "$share", times = "$times", far = "$times" }
"""
BAD_LOSS = "decay(2, 1, 50) ramp(1, 5, 20) 5*30"
DEAD = "0*100"


@pytest.fixture
def rule(tmp_path):
    def make(lr="wide", acquits="true", extra=""):
        path = tmp_path / "rule.toml"
        text = RULE.replace("$LR", f"${lr}").replace("ACQUITS", acquits)
        unused = "seed_wide" if lr == "wide" else "wide"
        text = text.replace(
            f'\n{unused} = {{ value = 0.5, unit = "fraction", source = "made up for this test" }}', "", 1
        )
        path.write_text(text + extra)
        return load_rule(path)

    return make


def test_one_suspect_stays_a_suspect_and_is_no_alarm(rule):
    verdict = judge(rule(), evidence_of({"series": {"loss": BAD_LOSS, "lr": "1*100"}}))
    assert (verdict.outcome, verdict.strength, verdict.alarm) == ("fired", "suspect", False)


def test_two_suspects_on_disjoint_evidence_make_probable(rule):
    verdict = judge(rule(), evidence_of({"series": {"loss": BAD_LOSS, "lr": DEAD}}))
    assert (verdict.strength, verdict.alarm) == ("probable", True)


def test_a_seed_beside_another_suspect_counts_and_a_seed_alone_is_a_suspect(rule):
    assert judge(rule("seed_wide"), evidence_of({"series": {"lr": DEAD}})).strength == "suspect"
    both = evidence_of({"series": {"loss": BAD_LOSS, "lr": DEAD}})
    assert judge(rule("seed_wide"), both).strength == "probable"


def test_clear_needs_a_judged_sign_that_acquits(rule):
    only_loss = evidence_of({"series": {"loss": "decay(2, 1, 100)"}})
    assert judge(rule(), only_loss).outcome == "clear"
    verdict = judge(rule(acquits="false"), only_loss)
    assert (verdict.outcome, verdict.missing) == ("not_judged", ("series:lr:points>=10",))


def test_missing_is_listed_even_when_clear(rule):
    verdict = judge(rule(), evidence_of({"series": {"loss": "decay(2, 1, 100)"}}))
    assert verdict.missing == ("series:lr:points>=10",)
    assert verdict.judged_signs == ("left_best_level",)


def test_onset_is_the_earliest_hit_and_knows_the_last_good_step(rule):
    loss = judge(rule(), evidence_of({"series": {"loss": BAD_LOSS}}))
    assert loss.onset is not None
    assert loss.onset_after == loss.onset - 1
    assert loss.texts().what == f"From step {loss.onset}."
    both = judge(rule(), evidence_of({"series": {"loss": BAD_LOSS, "lr": DEAD}}))
    assert {h.onset for h in both.holdings} == {1, loss.onset}
    assert (both.onset, both.onset_after) == (1, None)


LOOK_ALIKE = """
[[look_alike]]
case = "GF11"
tell = "No gradient was ever finite."
unless = { check = "gradient_nonfinite_from_start" }
"""


def test_a_look_alike_that_holds_refutes(rule):
    verdict = judge(rule(extra=LOOK_ALIKE), evidence_of({"series": {"loss": BAD_LOSS, "grad_norm": "nan*100"}}))
    assert (verdict.outcome, [a.case for a in verdict.refuted_by]) == ("clear", ["GF11"])


def test_a_look_alike_that_cannot_be_judged_is_not_excluded(rule):
    verdict = judge(rule(extra=LOOK_ALIKE), evidence_of({"series": {"loss": BAD_LOSS}}))
    assert (verdict.outcome, [a.case for a in verdict.not_excluded]) == ("fired", ["GF11"])


def test_a_look_alike_that_does_not_hold_changes_nothing(rule):
    verdict = judge(rule(extra=LOOK_ALIKE), evidence_of({"series": {"loss": BAD_LOSS, "grad_norm": "1*100"}}))
    assert (verdict.outcome, verdict.refuted_by, verdict.not_excluded) == ("fired", (), ())


def test_the_catalogue_names_the_divergence_and_not_its_nan_as_the_primary_case():
    evidence = evidence_of(
        {"series": {"loss": "decay(4.2, 3.5, 40) ramp(3.5, 40, 30) nan*20", "grad_norm": "1*70 nan*20"}}
    )
    diagnosis = diagnose(evidence, load_rules())
    assert diagnosis.primary is not None
    assert (diagnosis.primary.rule.id, diagnosis.primary.variant) == ("GF05", "to-nonfinite")
    assert ("GF05", "GF11") in diagnosis.chain


def test_the_origin_comes_before_the_log_that_hides_it():
    evidence = evidence_of({"series": {"loss": "decay(2.3, 2, 40) 0*20", "grad_norm": "1*40 nan*20"}})
    diagnosis = diagnose(evidence, load_rules())
    assert diagnosis.primary is not None
    assert diagnosis.primary.rule.id == "GF11"
    assert ("GF11", "GF35") in diagnosis.chain


def test_a_cause_may_not_start_after_its_effect():
    rules = {r.id: r for r in load_rules()}
    early = judge(rules["GF11"], evidence_of({"series": {"loss": "3*10 nan*90"}}))
    late = judge(rules["GF12"], evidence_of({"series": {"loss_scale": "64*60 32 16 8 4 2 1 0.5*33"}}))
    assert (early.onset, late.onset) == (11, 61)
    assert not may_cause(late, early)
    later = judge(rules["GF11"], evidence_of({"series": {"loss": "3*65 nan*35"}}))
    assert may_cause(late, later)


def test_a_healthy_run_has_no_primary_case():
    series = {
        "loss": "decay(4.2, 2.9, 300) + noise(sd=0.05)",
        "lr": "cosine(peak=1e-3, warmup=20, steps=300)",
        "grad_norm": "1*300",
    }
    diagnosis = diagnose(evidence_of({"series": series}), load_rules())
    assert diagnosis.primary is None
    assert diagnosis.alarms == []
    assert sum(v.outcome == "clear" for v in diagnosis.verdicts) >= 4
