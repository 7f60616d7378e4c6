"""The report's section on replays: what it shows of them, where verified fixes stand, and that nothing is markup."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics import experiment_rows
from gradforensics.diagnosis import rules
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Holding
from gradforensics.diagnosis.rules import Sign
from gradforensics.diagnosis.vocabulary import Answer, Check, check
from gradforensics.experiment_rows import Located
from gradforensics.experiments import Code, Outcome, Quantity, Replay, Result
from gradforensics.report import FORMATS, replay_pieces
from gradforensics.report.build import build
from gradforensics.report.terminal import render as summary
from gradforensics.tables import Replayed
from tests.report.page import page_of

HOSTILE = "<b onmouseover=alert(1)>\x1b[2J"


@check(needs=["experiments:precision"])
def precision_check(_evidence: object) -> Answer:
    return []


@check(needs=["experiments:severed"])
def severed_check(_evidence: object) -> Answer:
    return []


def line(experiment: str, outcome: Outcome, changed: str, result: str, conclusion: str, *rest: Quantity) -> Result:
    return Result(experiment, 120, f"Question of {experiment}?", changed, result, conclusion, outcome, rest)


RESULTS = (
    line("reproduce", "clean", "nothing", "three times the same", "It comes back.", Quantity("loss", math.nan)),
    line("anomaly", "fault", "nothing", "softmax gives NaN", "blocks.3.attn makes the first NaN."),
    line("precision", "fault", "float16 -> float32", "fails in float16", "Only float16 fails."),
    line("precision", "verified", "autocast float16 -> float32", "loss nan -> 2.31", "It is gone in float32."),
    line("batch", "verified", "sample 5 left out", "loss nan -> 2.40", "Sample 5 carries it."),
    line("padding", "not-run", "", "", "The budget of 20 steps was spent."),
    line("content", "failed", "", "", "It ran into the time limit."),
)


def with_replay(diagnosis: Diagnosis, results: tuple[Result, ...] = RESULTS, **changes: Any) -> Diagnosis:
    """The diagnosis with one replay directory in its evidence."""
    code = [Code("train.py", "build", "ab" * 32, "--program")]
    fields = {"code": code, "environment": {"torch": "2.13.0"}, "notices": ["rolled forward"], "finished": True}
    replay = Replay("gradforensics 0.1.0", "exp-7", 120, "cpu", "capsule-00000120", **{**fields, **changes})
    replay.results = list(results)
    lines = tuple(range(1, len(results) + 1))
    diagnosis.evidence.replays = [Replayed("replays/r120", replay, lines)]
    located = (Located(r, "replays/r120/experiments.jsonl", n) for n, r in enumerate(results, 1))
    diagnosis.evidence._cache.clear()  # of another table, where a test makes two
    diagnosis.evidence.tables["experiments"] = experiment_rows.frame(located)
    return diagnosis


def resting_on(diagnosis: Diagnosis, rule: str, test: Check) -> Diagnosis:
    """The diagnosis with a verdict of which every sign reads the experiment of `test`, at the replayed step."""
    sign = Sign("a_replayed_sign", rules.Test(test, {}), "proven")

    def changed(verdict: Any) -> Any:
        if verdict.rule.id != rule:
            return verdict
        holdings = tuple(Holding(sign, tuple(replace(hit, step=120) for hit in h.hits)) for h in verdict.holdings)
        made = replace(verdict.rule, signs=(sign,))
        judged = replace(verdict, rule=made, holdings=holdings, judged_signs=(sign.name,), missing=())
        return replace(judged, onset=120, onset_after=119)

    verdicts = tuple(changed(v) for v in diagnosis.verdicts)
    primary = diagnosis.primary and next(v for v in verdicts if v.rule.id == diagnosis.primary.rule.id)
    return replace(diagnosis, verdicts=verdicts, primary=primary)


def test_a_verified_fix_stands_with_the_finding_of_its_experiment_else_with_the_primary_case(sick: Diagnosis) -> None:
    (run,) = build([resting_on(with_replay(sick), "GF11", precision_check)], []).runs
    fixes = {v.rule: [one.changed for one in v.verified] for v in run.findings}
    assert fixes == {"GF05": ["sample 5 left out"], "GF11": ["autocast float16 -> float32"], "GF12": []}


def test_a_fix_by_another_program_stands_with_the_finding_of_the_experiment_that_it_repeated(sick: Diagnosis) -> None:
    fix = line("fix", "verified", "the other program", "gone", "Gone.", Quantity("experiment", text="precision"))
    (run,) = build([resting_on(with_replay(sick, (fix,)), "GF11", precision_check)], []).runs
    assert [v.rule for v in run.findings if v.verified] == ["GF11"]


def test_a_fix_stands_with_no_finding_that_began_after_its_step_or_that_rests_on_other_experiments(
    sick: Diagnosis,
) -> None:
    def owners(diagnosis: Diagnosis) -> list[str]:
        (run,) = build([diagnosis], []).runs
        return [v.rule for v in run.findings if v.verified]

    cure, sample = RESULTS[3], RESULTS[4]
    resting = resting_on(with_replay(sick, (cure, sample)), "GF11", precision_check)
    assert owners(resting) == ["GF05", "GF11"]
    later = replace(resting, verdicts=tuple(replace(v, onset_after=121) for v in resting.verdicts))
    assert resting.primary is not None
    assert owners(replace(later, primary=replace(resting.primary, onset_after=121))) == []
    assert owners(resting_on(with_replay(sick, (replace(cure, step=130),)), "GF11", precision_check)) == []


def test_the_page_shows_question_change_result_and_conclusion(sick: Diagnosis) -> None:
    page = page_of(build([with_replay(sick)], []))
    section = page[page.index("<h2>Replay</h2>") :]
    for told in (
        "Step 120", "capsule-00000120", "train.py:build", "abababababab", "--program", "Question of precision?",
        "float16 -&gt; float32", "loss nan -&gt; 2.31", "It is gone in float32.", "rolled forward", "2.13.0",
        "The budget of 20 steps was spent.", "It ran into the time limit.",
    ):  # fmt: skip
        assert told in section
    assert section.count("Question of precision?") == 1
    assert (
        section.index("Conclusion") < section.index("Not run, or broken off, and why") < section.index("budget of 20")
    )
    assert ">verified<" in page[: page.index("<h2>Replay</h2>")]  # in the finding as well


def test_an_unfinished_replay_without_results_says_so(sick: Diagnosis) -> None:
    page = page_of(build([with_replay(sick, (), finished=False)], []))
    assert "did not come to its end" in page
    assert "The replay left no result." in page
    assert "<h2>Replay</h2>" not in page_of(build([replace(sick, evidence=replace(sick.evidence, replays=[]))], []))


def test_hostile_texts_are_no_markup(sick: Diagnosis) -> None:
    results = tuple(
        Result("anomaly", 120, HOSTILE, HOSTILE, HOSTILE, HOSTILE, outcome)
        for outcome in ("fault", "verified", "failed")
    )
    code = [Code(HOSTILE, HOSTILE, HOSTILE, HOSTILE)]
    fields: dict[str, Any] = {
        "code": code,
        "environment": {HOSTILE: HOSTILE},
        "notices": [HOSTILE],
        "run": HOSTILE,
        "state": HOSTILE,
    }
    diagnosis = with_replay(sick, results)
    replay = replace(diagnosis.evidence.replays[0].replay, **fields)
    diagnosis.evidence.replays = [replace(diagnosis.evidence.replays[0], replay=replay, folder=HOSTILE)]
    report = build([diagnosis], [])
    page = page_of(report)
    assert "<b onmouseover" not in page
    assert "\x1b" not in page
    assert "\x1b" not in summary(report, color=False, width=100)


def test_many_results_are_cut_on_the_page_and_whole_in_the_json(
    sick: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_pieces, "RESULTS", 2)
    report = build([with_replay(sick)], [])
    page = page_of(report)
    assert "3 more are in the JSON report." in page
    assert "It is gone in float32." not in page[page.index("<h2>Replay</h2>") :]
    data = json.loads(FORMATS["json"](report))
    assert len(data["runs"][0]["replays"][0]["results"]) == len(RESULTS)


def test_the_json_keeps_its_schema(sick: Diagnosis) -> None:
    schema = json.loads((files("gradforensics.report") / "schema.json").read_text("utf-8"))
    data = json.loads(FORMATS["json"](build([resting_on(with_replay(sick), "GF11", precision_check)], [])))
    jsonschema.Draft202012Validator(schema).validate(data)
    (replay,) = data["runs"][0]["replays"]
    assert (replay["folder"], replay["step"], replay["finished"]) == ("replays/r120", 120, True)
    first = replay["results"][0]
    assert first["quantities"] == [{"name": "loss", "value": "nan", "unit": "", "variation": "", "text": ""}]
    verdict = next(v for v in data["runs"][0]["verdicts"] if v["rule"] == "GF11")
    assert [one["line"] for one in verdict["verified"]] == [4]
    assert verdict["replayed"] == [120]


def test_the_terminal_tells_the_first_bad_value_and_the_first_verified_fix(sick: Diagnosis) -> None:
    text = summary(build([with_replay(sick)], []), color=False, width=120)
    assert "  replay      step 120: softmax gives NaN. blocks.3.attn makes the first NaN.\n" in text
    assert "  verified    autocast float16 -> float32: loss nan -> 2.31\n" in text
    clean = (line("severed", "clean", "nothing", "", ""), line("padding", "inconclusive", "nothing", "", ""))
    text = summary(build([with_replay(sick, clean)], []), color=False, width=120)
    assert "  replay      step 120: no fault found (1 clean, 1 without an answer)\n" in text
    assert "  verified" not in text


def test_of_several_replays_the_terminal_tells_the_one_of_the_onset(sick: Diagnosis) -> None:
    diagnosis = with_replay(sick)
    early = replace(diagnosis.evidence.replays[0].replay, step=20)
    diagnosis.evidence.replays.insert(0, replace(diagnosis.evidence.replays[0], replay=early))
    assert diagnosis.primary is not None
    primary = replace(diagnosis.primary, onset=120)
    verdicts = tuple(primary if v.rule.id == primary.rule.id else v for v in diagnosis.verdicts)
    text = summary(build([replace(diagnosis, primary=primary, verdicts=verdicts)], []), color=False, width=120)
    assert "  replay      step 120: softmax" in text


def test_long_words_break_on_the_page(sick: Diagnosis) -> None:
    page = page_of(build([with_replay(sick)], []))
    assert "code,p,li,dd,.fact{overflow-wrap:anywhere}" in page  # else one of them widens the whole page
    assert ".replay td{overflow-wrap:anywhere}" in page


def test_the_terminal_claims_no_more_than_was_answered(sick: Diagnosis) -> None:
    def told(*results: Result) -> str:
        return summary(build([with_replay(sick, results)], []), color=False, width=160)

    silent = (line("severed", "failed", "", "", ""), line("padding", "inconclusive", "nothing", "", ""))
    assert "  replay      step 120: no experiment gave an answer (2 tried)\n" in told(*silent)
    fails = line("precision", "unverified", "float16 -> float32", "NaN in both", "It fails in every precision.")
    assert "  replay      step 120: NaN in both. It fails in every precision.\n" in told(fails, *silent)


def test_clear_and_not_judged_say_that_one_step_was_looked_at(sick: Diagnosis) -> None:
    results = (line("severed", "clean", "nothing", "", ""),)
    clear, silent = "clear at the replayed step 120", "the replay of step 120 found nothing"
    for rule, told in (("GF06", clear), ("GF20", silent)):
        page = page_of(build([resting_on(with_replay(sick, results), rule, severed_check)], []))
        assert told in page
    answered = (line("severed", "fault", "nothing", "", ""), line("severed", "unverified", "", "", ""))
    for other in (answered[:1], answered[1:], (*results, answered[0])):
        for rule in ("GF06", "GF20"):
            page = page_of(build([resting_on(with_replay(sick, other), rule, severed_check)], []))
            assert clear not in page
            assert silent not in page


def test_what_a_log_acquits_is_not_said_to_be_clear_at_the_replayed_step_only(sick: Diagnosis) -> None:
    made = resting_on(with_replay(sick, (line("severed", "clean", "nothing", "", ""),)), "GF06", severed_check)

    def beside_a_log(verdict: Any) -> Any:
        if verdict.rule.id != "GF06":
            return verdict
        logged = Sign("a_logged_sign", rules.Test(check(needs=["series:loss"])(lambda _: []), {}), "proven")
        rule = replace(verdict.rule, signs=(*verdict.rule.signs, logged))
        return replace(verdict, rule=rule, judged_signs=(*verdict.judged_signs, logged.name))

    page = page_of(build([replace(made, verdicts=tuple(map(beside_a_log, made.verdicts)))], []))
    assert "clear at the replayed step" not in page
    assert "the replay of step 120 found nothing" in page


def test_an_experiment_that_ran_without_an_answer_is_not_advised_again(sick: Diagnosis) -> None:
    def advised(*results: Result) -> str:
        lacking = tuple(replace(v, missing=("experiments:padding",)) for v in sick.verdicts)
        (run,) = build([with_replay(replace(sick, verdicts=lacking), results)], []).runs
        return next(v for v in run.verdicts if v.rule == "GF20").missing[0].advice.en

    assert "--step 120 --experiment padding" in advised()
    assert advised(line("padding", "inconclusive", "nothing", "", "No sample has pads.")) == ""


def test_the_chinese_page_is_complete(sick: Diagnosis) -> None:
    page = page_of(build([with_replay(sick)], [], language="zh"))
    assert "重放" in page
    assert "已验证" in page
