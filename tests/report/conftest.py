"""Diagnoses made by hand: the report is tested apart from readers, checks and the catalogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Holding, Verdict
from gradforensics.diagnosis.rules import LookAlike, Rule, Sign, Test, Texts
from gradforensics.diagnosis.vocabulary import Answer, Hit, check
from gradforensics.languages import Text
from gradforensics.report.build import build
from gradforensics.report.model import Report
from gradforensics.tables import (
    Ending,
    Event,
    Evidence,
    Notice,
    Phase,
    SeriesFrame,
    SeriesKey,
    Setting,
    Source,
    StepUnit,
    series_frame,
)


@check(needs=["series:loss"])
def a_check(_evidence: Evidence) -> Answer:
    return []


class Maker:
    """Builds evidence, rules and verdicts with as little ceremony as possible."""

    def series(
        self,
        evidence: Evidence,
        name: str,
        values: Sequence[float | None],
        *,
        steps: Sequence[int] | None = None,
        phase: Phase = "train",
        tag: str | None = None,
        source: str = "log.jsonl",
        step_unit: StepUnit = "step",
        **columns: Sequence[Any],
    ) -> None:
        steps = list(range(1, len(values) + 1)) if steps is None else steps
        frame = series_frame({"step": steps, "line": list(range(1, len(values) + 1)), **columns}, values)
        evidence.frames[SeriesKey(evidence.name, phase, name, tag or name, source)] = SeriesFrame(frame, step_unit)

    def rule(
        self, rule: str, *, slug: str = "a-fault", family: str = "numerics", signs: int = 1, **changes: Any
    ) -> Rule:
        texts = changes.pop("texts", None) or {
            ("en", None): Texts(
                f"Title of {rule}",
                "What of {run}: from step {onset}",
                f"Why of {rule}",
                (f"Fix of {rule}", "Second fix"),
            ),
            ("zh", None): Texts(
                f"{rule} 的标题", "自第 {onset} 步起", f"{rule} 的原因", (f"{rule} 的修复", "另一修复")
            ),
        }
        made = tuple(Sign(f"sign_{i}", Test(a_check, {}), "probable") for i in range(signs))
        made_rule = Rule(
            id=rule, slug=slug, family=family, severity="S1", path=Path("made.toml"), texts=texts, signs=made
        )
        return replace(made_rule, **{"verify": Text("gradforensics analyze {run} --set onset={onset}"), **changes})

    def fired(self, rule: Rule, hits: Sequence[Hit], *, run: str = "run", **changes: Any) -> Verdict:
        onset, after = (hits[0].step, hits[0].after) if hits else (None, None)
        verdict = Verdict(
            rule,
            "fired",
            severity="S1",
            strength="probable",
            onset=onset,
            onset_after=after,
            holdings=(Holding(rule.signs[0], tuple(hits)),),
            facts={"run": run, "onset": onset},
        )
        return replace(verdict, **changes)


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def sick(maker: Maker) -> Diagnosis:
    """A run that diverges after step 115, goes NaN at step 200 and restarts at step 100."""
    evidence = Evidence("runs/exp-7")
    steps = list(range(5, 305, 5))
    loss: list[float | None] = [
        round(2 - 0.005 * s if s <= 115 else 1.4 + 0.05 * (s - 115), 3) if s < 200 else math.nan for s in steps
    ]
    maker.series(evidence, "loss", loss, steps=steps, attempt=[0 if s < 100 else 1 for s in steps])
    maker.series(evidence, "loss", [2.1, 1.9, 2.6], steps=[50, 100, 150], phase="eval", tag="eval_loss")
    maker.series(evidence, "grad_norm", [0.5 if s < 115 else 5000.0 for s in steps], steps=steps)
    maker.series(evidence, "lr", [1e-4] * len(steps), steps=steps, tag="learning_rate")
    evidence.settings = [
        Setting("learning_rate", "lr", 1e-4, "config.yaml", 3),
        Setting("learning_rate", "learning_rate", 2e-4, "train.log", 1, "runtime"),
        Setting("betas", "betas", [0.9, 0.95], "config.yaml", 4),
    ]
    evidence.events = [Event("exception", "RuntimeError: loss is nan", "train.log", 412)]
    evidence.ending = Ending("exception", "RuntimeError: loss is nan", "train.log", 412)
    evidence.notices = [Notice("log.jsonl", 60, "the last line is torn")]
    first = maker.fired(
        maker.rule(
            "GF05",
            slug="lr-too-high",
            family="learning-rate",
            leads_to=("GF11",),
            false_alarms=(Text("A warm restart."),),
        ),
        [
            Hit(120, 115, "loss", "loss", 1.65, "log.jsonl", 24, None, {"best": 1.425}),
            Hit(125, 120, "loss", "loss", 1.9, "log.jsonl", 25),
        ],
        run=evidence.name,
        not_excluded=(LookAlike("GF17", Text("The batch at the onset repeats.", "起始处的批次重复出现。")),),
        missing=("travels",),
    )
    second = maker.fired(
        maker.rule("GF11", slug="nonfinite-origin"),
        [Hit(200, 195, "loss", "loss", math.nan, "train.log", 412)],
        run=evidence.name,
        strength="proven",
    )
    weak = maker.fired(
        maker.rule("GF12", slug="fp16-range"),
        [Hit(None, series="lr")],
        severity="S3",
        strength="suspect",
        run=evidence.name,
    )
    clear = Verdict(
        maker.rule("GF06", slug="lr-too-low", family="learning-rate"), "clear", judged_signs=("sign_0",),
        refuted_by=(LookAlike("GF05", Text("The loss moved.")),),
    )  # fmt: skip
    blind = Verdict(
        maker.rule("GF20", slug="overfit-or-forget", family="recipe"), "not_judged", missing=("series:eval/accuracy",)
    )
    untested = Verdict(
        maker.rule("GF27", slug="memory-growth", family="platform", signs=0), "not_judged", missing=("events:kernel",)
    )
    return Diagnosis(evidence, (first, clear, second, weak, blind, untested), first, (("GF05", "GF11"),))


@pytest.fixture
def healthy(maker: Maker) -> Diagnosis:
    """A run with a falling loss, one rule clear and one not judged."""
    evidence = Evidence("healthy")
    maker.series(evidence, "loss", [2.0 / (1 + 0.1 * i) for i in range(60)])
    evidence.ending = Ending("completed", "", "log.jsonl", 60)
    clear = Verdict(maker.rule("GF05", slug="lr-too-high"), "clear", judged_signs=("sign_0",))
    blind = Verdict(maker.rule("GF12", slug="fp16-range"), "not_judged", missing=("series:loss_scale",))
    return Diagnosis(evidence, (clear, blind))


@pytest.fixture
def sources() -> list[Source]:
    return [
        Source("log.jsonl", 11779, "ab" * 32, "json-lines"),
        Source("model.bin", 1 << 33, None, None, "too large to hash"),
    ]


@pytest.fixture
def report(sick: Diagnosis, sources: list[Source]) -> Report:
    return build([sick], sources)
