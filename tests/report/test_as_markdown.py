"""The report as Markdown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.ignoring import Ignore, Ignores, ignoring
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.report import as_markdown
from gradforensics.report.as_markdown import LIMIT, render
from gradforensics.report.build import build
from gradforensics.report.model import TOOL, Report
from gradforensics.tables import Event, Evidence
from tests.report.conftest import Maker
from tests.report.hostile import HOSTILE
from tests.report.test_markdown import LINKING, kinds, tokens

SICK = f"""\
<!-- {TOOL} -->

## Probable: Title of GF05.

**GF05** lr-too-high · S1 run invalid or dead · probable

What of runs/exp-7: from step 120

- **Run**: `runs/exp-7`
- **Onset**: between step 115 (last good) and step 120
- **How it ended**: stopped by an exception: `RuntimeError: loss is nan` (`train.log:412`)
- **Record**: steps 5 to 300, 2 attempts

### Do next

Fix of GF05

Then verify:

```sh
gradforensics analyze runs/exp-7 --set onset=120
```

### Evidence

| Sign | Series | Step | Value | Where |
| --- | --- | --- | --- | --- |
| sign 0 (probable) | `loss` | 120 | 1.65 | `log.jsonl:24` |
| sign 0 (probable) | `loss` | 125 | 1.9 | `log.jsonl:25` |

### Look-alikes

- Not excluded: **GF17** : The batch at the onset repeats.

### Chain of consequences

- **GF05** lr-too-high (step 120) → **GF11** nonfinite-origin (step 200)

### Why

Why of GF05

### Further fixes

- Second fix

### When this is a false alarm

- A warm restart.

### Other findings

| Rule | Verdict | Onset | Title | Where |
| --- | --- | --- | --- | --- |
| **GF11** | S1 run invalid or dead · proven | between step 195 (last good) and step 200 | \
What of runs/exp-7: from step 200 | `train.log:412` |
| **GF12** | S3 waste · suspect | not tied to a step | What of runs/exp-7: from step unknown |  |

### 2 of 6 rules not judged (1 of them has no test in this version)

- Log accuracy of the evaluation. (Would help to judge GF20)

---

{TOOL} wrote this. One self-contained page with everything:

```sh
gradforensics analyze RUN_DIR -o gradforensics-report.html
```
"""


def test_a_sick_run(report: Report) -> None:
    assert render(report) == SICK


def test_the_language_is_that_of_the_report(sick: Diagnosis) -> None:
    text = render(build([sick], [], language="zh"))
    assert "## 很可能：GF05 的标题。" in text
    assert "### 下一步\n\nGF05 的修复\n" in text
    assert "Onset" not in text


def test_a_healthy_run_says_what_was_not_judged(healthy: Diagnosis) -> None:
    text = render(build([healthy], []))
    assert "## No alarm: 1 rule judged clear on this evidence, 1 not judged." in text
    assert "### 1 of 2 rules not judged\n" in text
    assert "Do next" not in text


def test_several_runs_are_a_table_and_a_section_for_each_with_an_alarm(sick: Diagnosis, healthy: Diagnosis) -> None:
    healthy.evidence.path, sick.evidence.path = "runs/healthy", "runs/my exp"
    text = render(build([healthy, sick], []))
    assert "## 2 runs: 2 alarms\n" in text
    assert text.index("| `runs/exp-7` | **GF05**") < text.index("| `healthy` | no alarm (1 clear, 1 not judged) |")
    assert "### `runs/exp-7`: Probable: Title of GF05." in text
    assert "`healthy`:" not in text
    assert "gradforensics analyze runs/healthy 'runs/my exp' -o" in text


def test_an_ignored_finding_is_shown_with_its_reason(sick: Diagnosis) -> None:
    (known,) = ignoring([sick], Ignores((Ignore("GF05", "meant | so"),)))
    text = render(build([known], []))
    assert text.startswith(f"<!-- {TOOL} -->\n\n## Proven: Title of GF11.")
    assert r"| **GF05** | S1 run invalid or dead · probable · ignored: meant \| so |" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_evidence_stays_text(maker: Maker, text: str) -> None:
    evidence = Evidence(text)
    maker.series(evidence, "loss", [1.0, math.nan])
    evidence.events = [Event("warning", text, text, 1)]
    evidence.ending = replace(evidence.ending, kind="exception", text=text, source=text, line=3)
    hit = Hit(2, 1, text, text, 1.0, text, 1, text, {"a": text})
    verdict = maker.fired(maker.rule("GF05"), [hit], run=text, variant=text)
    diagnosis = Diagnosis(evidence, (verdict,), verdict, (), text)
    clean, made = render(build([diagnosis], [])), render(build([replace(diagnosis)] * 2, []))
    for one in (clean, made):
        markup = {"link_open", "image", "html_inline", "em_open", "s_open", "blockquote_open", "code_block", "hr"}
        assert kinds(one) & markup <= {"hr"}
        assert [t.content for t in tokens(one) if t.type == "html_block"] == [f"<!-- {TOOL} -->\n"]
        assert not [t.content for t in tokens(one) if t.type == "text" and LINKING.search(t.content)]
        assert len(one) <= LIMIT


def test_what_does_not_fit_into_an_issue_is_cut_with_a_line_that_says_so(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_markdown, "LIMIT", 3_000)
    many = []
    for n in range(5):
        evidence = Evidence(f"run-{n}" + "x" * 100)
        maker.series(evidence, "loss", [1.0, 2.0])
        verdict = maker.fired(maker.rule("GF05"), [Hit(2, 1, "loss", source="log.txt", line=2)] * 20, run="r")
        many.append(Diagnosis(evidence, (verdict,), verdict))
    text = render(build(many, []))
    assert 2_000 < len(text) <= 3_000
    assert "Cut here: the rest did not fit into 3000 characters." in text[-200:]
    assert "\ufffd" not in text


def test_of_many_runs_the_gravest_are_told_and_the_others_counted(maker: Maker) -> None:
    many = []
    for n in range(5):
        verdict = maker.fired(maker.rule("GF05"), [Hit(2, 1, "loss")], severity="S1" if n == 4 else "S2")
        many.append(Diagnosis(Evidence(f"run-{n}"), (verdict,), verdict))
    text = render(build(many, []))
    assert text.index("### `run-4`") < text.index("### `run-0`")
    assert text.count("\n### ") == 3
    assert "The details of 2 more: analyze a folder alone" in text
