"""The report as SARIF 2.1.0: one run of the tool, a result for each finding, regions that point at lines of the logs.

Level: error for S1 and S2 that are proven or probable (the alarms, and findings of that weight that are ignored);
warning for S1 and S2 that are only suspect and for S3 that is proven or probable; note for the rest. A result without a
line points at the file as a whole. URIs are relative to the folder that was analysed (uriBaseId EVIDENCE). Fingerprints
stand for rule, run and sign, not for lines, so that a finding keeps its identity while the log grows. Messages are in
the language of the report; names of signs, and the needs in the properties, are keys and the same in every language.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from gradforensics import __version__
from gradforensics.diagnosis.rules import Severity
from gradforensics.report.as_json import plain, text_of
from gradforensics.report.markdown import prose
from gradforensics.report.messages import message
from gradforensics.report.model import HitRow, Report, RuleRow, RunReport, VerdictRow
from gradforensics.report.words import Words, printable, shorten
from gradforensics.tables import Notice, Source

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "EVIDENCE"
NO_TEXT = frozenset({"tensorboard", "wandb-log", "mlflow-database"})
"""The readers whose sources have records instead of lines of text."""

_RELATED, _NOTICES, _LONGEST = 50, 500, 4000  # places and notices of one result or run, characters of a text
_DESCRIPTION = 1000  # characters of a description that GitHub shows
_PLACEHOLDER = re.compile(r"\{(\w+)(?::[^}]*)?\}")


def render(report: Report) -> str:
    """The report as JSON text."""
    return text_of(plain(_Log(report).data()))


class _Log:
    """Makes the SARIF log of one report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.words = Words(report.language)
        self.index = {rule.rule: i for i, rule in enumerate(report.rules)}
        self.binary = {s.path for s in report.sources if s.reader in NO_TEXT or s.path.endswith(".gz")}

    def data(self) -> dict[str, Any]:
        """The log; what tells our files from others stands near its start."""
        report = self.report
        driver = {
            "name": "gradforensics",
            "fullName": report.tool,
            "semanticVersion": __version__,
            "language": "zh-CN" if report.language == "zh" else "en",
            "rules": [self.rule(rule) for rule in report.rules],
        }
        run = {
            "tool": {"driver": driver},
            "columnKind": "unicodeCodePoints",
            "originalUriBaseIds": {BASE: {"description": _message(self.words("analysed_folder"))}},
            "invocations": [
                {
                    "executionSuccessful": True,
                    "exitCode": report.exit_code,
                    "toolExecutionNotifications": [n for one in report.runs for n in self.notifications(one)],
                }
            ],
            "artifacts": _distinct(_artifact(source) for source in report.sources),
            "results": [self.result(one, verdict) for one in report.runs for verdict in one.findings],
            "properties": {"notJudged": {one.name: self.not_judged(one) for one in report.runs}},
        }
        return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}

    def rule(self, rule: RuleRow) -> dict[str, Any]:
        """One rule of the catalogue."""
        language = self.words.language
        fixes = [_PLACEHOLDER.sub(r"<\1>", fix.in_(language)) for fix in rule.fix]
        parts = [
            ("why", [rule.why.in_(language)]),
            ("fix", fixes),
            ("false_alarms", [text.in_(language) for text in rule.false_alarms]),
            ("references", list(rule.references)),
        ]
        known = [(self.words(key), [t for t in texts if t]) for key, texts in parts if any(texts)]
        command = f"gradforensics rules show {rule.rule}"
        plain_text = "\n".join(f"{head}\n" + "\n".join(f"- {t}" for t in texts) for head, texts in known)
        rich = "\n\n".join(f"**{head}**\n\n" + "\n".join(f"- {prose(t)}" for t in texts) for head, texts in known)
        return {
            "id": rule.rule,
            "name": "".join(part.capitalize() for part in rule.slug.split("-")),
            "shortDescription": _message(shorten(rule.title.in_(language), _DESCRIPTION)),
            "fullDescription": _message(shorten(rule.why.in_(language) or rule.title.in_(language), _DESCRIPTION)),
            "help": {
                **_message(f"{plain_text}\n{command}"),
                "markdown": _braced(f"{rich}\n\n`{command}`"),
            },
            "defaultConfiguration": {"level": _level(rule.severity, "probable")},
            "properties": {"tags": [rule.family], "severity": rule.severity},
        }

    def result(self, run: RunReport, verdict: VerdictRow) -> dict[str, Any]:
        """One finding."""
        words = self.words
        what = verdict.what.in_(words.language) or verdict.title.in_(words.language)
        placed = [hit for hit in verdict.hits if hit.source]
        first = next((hit for hit in placed if hit.step == verdict.onset), placed[0] if placed else None)
        others = [hit for hit in placed if hit is not first]
        fix = [f"{words('fix')}: {verdict.fix[0].in_(words.language)}"] if verdict.fix else []
        head = f"{run.name}: {what} ({verdict.severity}, {words(verdict.strength or 'suspect')})"
        fingerprint = _fingerprint(run, verdict)
        result: dict[str, Any] = {
            "ruleId": verdict.rule,
            "level": _level(verdict.severity, verdict.strength),
            "message": _message("\n".join([head, f"{words('onset')}: {words.onset(verdict)}", *fix])),
            "locations": [self.location(first)] if first else self.somewhere(run),
            "relatedLocations": [
                {**self.location(hit), "id": n, "message": _message(self.told(hit))}
                for n, hit in enumerate(others[:_RELATED], 1)
            ],
            "partialFingerprints": {
                "gradforensics/v1": fingerprint,
                "primaryLocationLineHash": f"{fingerprint[:16]}:1",
            },
            "properties": {
                "run": run.name,
                "severity": verdict.severity,
                "strength": verdict.strength,
                "alarm": verdict.alarm,
                "onset": verdict.onset,
                "onsetAfter": verdict.onset_after,
                "variant": verdict.variant,
                "primary": verdict is run.primary,
            },
        }
        if verdict.rule in self.index:
            result["ruleIndex"] = self.index[verdict.rule]
        if verdict.ignored:
            result["suppressions"] = [
                {"kind": "external", "status": "accepted", "justification": _clean(verdict.ignored)}
            ]
        return result

    def told(self, hit: HitRow) -> str:
        """A hit in a few words."""
        step = "" if hit.step is None else self.words("step_n", n=hit.step)
        named = hit.series or hit.tensor or ""
        return ", ".join(filter(None, (hit.sign.replace("_", " "), named, step)))

    def location(self, hit: HitRow) -> dict[str, Any]:
        """Where a hit stands: file, and line where the file is text."""
        place = self.physical(hit.source or "", hit.line)
        if hit.excerpt and "region" in place:
            place["region"]["snippet"] = {"text": _clean(hit.excerpt)}
        return {"physicalLocation": place}

    def somewhere(self, run: RunReport) -> list[dict[str, Any]]:
        """The file that a finding without a place is about best: without any, some consumers drop a result."""
        named = (run.series[0].source if run.series else None, run.ending.source)
        source = next((one for one in named if one), self.report.sources[0].path if self.report.sources else None)
        return [] if source is None else [{"physicalLocation": self.physical(source, None)}]

    def physical(self, source: str, line: int | None) -> dict[str, Any]:
        """A file, and a line where it is text."""
        region = {"region": {"startLine": line}} if line and line > 0 and source not in self.binary else {}
        return {"artifactLocation": {"uri": _uri(source), "uriBaseId": BASE}, **region}

    def not_judged(self, run: RunReport) -> dict[str, list[str]]:
        """The rules that were not judged, and what each of them lacked."""
        return {one.rule: [gap.key(self.words.language) for gap in one.missing] for one in run.having("not_judged")}

    def notifications(self, run: RunReport) -> Iterator[dict[str, Any]]:
        """What was not judged, and the readers' remarks."""
        blind = run.having("not_judged")
        if blind:
            told = self.words("not_judged_n", n=len(blind), rules=self.words.count("rules", len(run.verdicts)))
            yield {"level": "note", "message": _message(f"{run.name}: {told}")}
        for notice in run.notices[:_NOTICES]:
            yield self.notification(notice)
        if len(run.notices) > _NOTICES:
            told = self.words("notice_more", n=len(run.notices) - _NOTICES)
            yield {"level": "note", "message": _message(f"{run.name}: {told}")}

    def notification(self, notice: Notice) -> dict[str, Any]:
        """One remark on a file."""
        text = message(notice.text).in_(self.words.language)
        found: dict[str, Any] = {"level": "note", "message": _message(f"{notice.source}: {text}")}
        if any(source.path == notice.source for source in self.report.sources):
            found["locations"] = [{"physicalLocation": self.physical(notice.source, notice.line)}]
        return found


def _level(severity: Severity | None, strength: str | None) -> str:
    sure = strength in ("proven", "probable")
    if severity in ("S1", "S2"):
        return "error" if sure else "warning"
    return "warning" if severity == "S3" and sure else "note"


def _fingerprint(run: RunReport, verdict: VerdictRow) -> str:
    sign = verdict.hits[0].sign if verdict.hits else ""
    named = "\0".join((verdict.rule, verdict.variant or "", run.name, sign))
    return hashlib.sha256(_bytes(named)).hexdigest()


def _artifact(source: Source) -> dict[str, Any]:
    found: dict[str, Any] = {"location": {"uri": _uri(source.path), "uriBaseId": BASE}, "length": source.bytes}
    if source.sha256:
        found["hashes"] = {"sha-256": source.sha256}
    if source.reader:
        found["properties"] = {"reader": source.reader}
    return found


def _distinct(artifacts: Iterator[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Each once: the list of artifacts is a set."""
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for artifact in artifacts:
        if (text := repr(artifact)) not in seen:
            seen.add(text)
            found.append(artifact)
    return found


def _uri(path: str) -> str:
    """A relative URI reference: percent-encoded, without a scheme or an upper folder."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..", ".")]
    return "/".join(quote(_bytes(part), safe="") for part in parts) or "."


def _bytes(name: str) -> bytes:
    """The bytes of a name as the file system has them, where it is one that a file system could have."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace")


def _message(text: str) -> dict[str, str]:
    """A plain message: its braces doubled, as single ones are placeholders, and its links broken."""
    return {"text": _braced(_clean(text).replace("](", "] ("))}


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _clean(text: str) -> str:
    return shorten(printable(text), _LONGEST)
