"""The report as JUnit XML: a test suite for each run, a test case for each rule.

failure: what fails the analysis (proven or probable, at or above --fail-on). skipped: what was not judged, with what
was missing, and what the ignore file silences, with the reason. system-out: weaker and ignored findings.

Texts are in the language of the report; types and names of signs are keys, the same in every language. Elements and
attributes are those that GitLab and Jenkins read: testsuite name, tests, failures, errors, skipped, time; testcase
classname, name, time; failure message, type; skipped message. GitLab shows the content of failure and skipped, and of
several test cases with one classname and name only the first, so the run is part of the classname.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET  # only written here, never parsed

from gradforensics.report.model import Report, RunReport, VerdictRow
from gradforensics.report.need_words import needs_in_words
from gradforensics.report.words import Words, place, printable, shorten

_LONGEST = 4000  # characters of a text
_HITS = 20


def render(report: Report) -> str:
    """The report as XML text: well-formed, whatever the evidence wrote."""
    root = ET.Element("testsuites", name=report.tool)
    words = Words(report.language)
    for run in report.runs:
        suite = ET.SubElement(root, "testsuite", name=_legal(run.name))
        for verdict in run.verdicts:
            _case(suite, report, run, verdict, words)
        _count(suite)
    _count(root)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, report: Report, run: RunReport, verdict: VerdictRow, words: Words) -> None:
    title = verdict.title.in_(words.language)
    name = _legal(f"{verdict.rule} {verdict.slug}: {title}")
    case = ET.SubElement(suite, "testcase", classname=_legal(f"{run.name}.{verdict.family}"), name=name, time="0")
    if verdict.ignored:
        _told(case, "skipped", f"{words('ignored')}: {verdict.ignored}")
    elif verdict.outcome == "not_judged":
        needs = needs_in_words(gap.need for gap in verdict.missing).in_(words.language)
        advice = "\n".join(dict.fromkeys(gap.advice.in_(words.language) for gap in verdict.missing if gap.advice.en))
        told = f"{words('not_judged')}. {words('missing')}: {needs}" if verdict.testable else words("no_test")
        _told(case, "skipped", told, advice)
    elif report.fails(verdict):
        kind = f"{verdict.severity} {verdict.strength}"
        _told(case, "failure", verdict.what.in_(words.language) or title, _details(verdict, words), kind)
    if verdict.outcome == "fired" and not report.fails(verdict):
        weight = f"{verdict.severity} {words(verdict.strength or 'suspect')}"
        out = ET.SubElement(case, "system-out")
        out.text = _legal(f"{weight}: {verdict.what.in_(words.language)}\n{_details(verdict, words)}")


def _told(case: ET.Element, element: str, message: str, body: str = "", kind: str = "") -> None:
    """An element whose message stands in the attribute and in the content: readers show one or the other."""
    made = ET.SubElement(case, element, message=_legal(shorten(message, 500)))
    if kind:
        made.set("type", kind)
    made.text = _legal("\n".join(filter(None, (message, body))))


def _details(verdict: VerdictRow, words: Words) -> str:
    """Onset, evidence, fix and how to verify, one a line."""
    lines = [f"{words('onset')}: {words.onset(verdict)}"]
    for hit in verdict.hits[:_HITS]:
        where = place(hit.source, hit.line)
        step = "" if hit.step is None else words("step_n", n=hit.step)
        lines.append(" ".join(filter(None, (f"{where}:" if where else "", hit.sign.replace("_", " "), step))))
        lines += [f"  {hit.excerpt}"] if hit.excerpt else []
    lines += [f"{words('fix')}: {fix.in_(words.language)}" for fix in verdict.fix]
    verify = verdict.verify.in_(words.language)
    lines += [f"{words('verify')}: {verify}"] if verify else []
    return "\n".join(lines)


def _count(element: ET.Element) -> None:
    cases = list(element.iter("testcase"))
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": 0,
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    for key, value in counts.items():
        element.set(key, str(value))
    element.set("time", "0")


def _legal(text: str) -> str:
    """The text without the characters that XML cannot hold: they are spelled out."""
    return shorten(printable(text), _LONGEST)
