"""The report as JSON, schema version 1 (schema.json beside this file). Additions keep the version."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from gradforensics.languages import Language, Text
from gradforensics.report.comparison.contrast_data import contrast_data
from gradforensics.report.heatmaps import Grid
from gradforensics.report.messages import message
from gradforensics.report.model import Compared, Report, RunReport, VerdictRow
from gradforensics.report.replays import ReplayRow, ResultRow

SCHEMA = 1


def plain(value: Any) -> Any:
    """A value as JSON can hold it: non-finite numbers become "nan", "inf" or "-inf", unknown objects their text.

    A fact in words is the English one in every language: programs compare it.
    """
    if isinstance(value, Text):
        return value.en
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return str(value)


def data(report: Report) -> dict[str, Any]:
    """The report as plain lists, dictionaries, strings and numbers."""
    return {
        "schema": SCHEMA,
        "tool": report.tool,
        "made": None if report.made is None else asdict(report.made),
        "runs": [_run(run, report.language) for run in report.runs],
        "sources": [said(asdict(source), report.language, "remark") for source in report.sources],
    }


def render(report: Report) -> str:
    """The report as JSON text."""
    return text_of(data(report))


def text_of(plain_data: Any) -> str:
    """Plain data as JSON text."""
    text = json.dumps(plain_data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate becomes its own JSON escape, \\udc80


def _run(run: RunReport, language: Language) -> dict[str, Any]:
    return {
        "name": run.name,
        "path": run.path,
        "steps": None if run.steps is None else list(run.steps),
        "attempts": run.attempts,
        "ending": said(asdict(run.ending), language, "text"),
        "primary": None if run.primary is None else run.primary.rule,
        "chain": [list(edge) for edge in run.chain],
        "last_good_checkpoint": run.last_good_checkpoint,
        "verdicts": [_verdict(v, language) for v in run.verdicts],
        "series": [plain(asdict(row)) for row in run.series],
        "settings": [plain(asdict(row)) for row in run.settings],
        "notices": [said(asdict(notice), language, "text") for notice in run.notices],
        "events": [plain(asdict(event)) for event in run.events],
        "environment": [asdict(fact) for fact in run.environment],
        "baselines": list(run.baselines),
        "compared": None if run.compared is None else _compared(run.compared),
        "checkpoints": None
        if run.checkpoints is None
        else [said(plain(asdict(row)), language, "naming") for row in run.checkpoints.rows],
        "bracket": None if run.bracket is None else plain(asdict(run.bracket)),
        "heatmaps": None if run.heatmaps is None else _grid(run.heatmaps, "checkpoints"),
        "gradient_norms": None if run.gradient_norms is None else _grid(run.gradient_norms, "steps"),
        "ranks": None if run.ranks is None else plain(asdict(run.ranks)),
        "drain": [plain(asdict(node)) for node in run.drain],
        "pair": None if run.pair is None else plain({**asdict(run.pair), "advice": run.pair.advice.in_(language)}),
        "replays": [_replay(replay, language) for replay in run.replays],
        "data": None if run.data is None else [said(plain(asdict(row)), language, "unit", "text") for row in run.data],
        "calls": [asdict(call) for call in run.checkpoints.calls] if run.checkpoints else [],
    }


def _grid(grid: Grid, columns: str) -> dict[str, Any]:
    """A grid with its columns under their own name; values with six digits, since there are thousands."""
    return {
        "layers": list(grid.layers),
        columns: [asdict(column) for column in grid.columns],
        "values": {name: [[_short(value) for value in row] for row in rows] for name, rows in grid.values.items()},
        "layers_of": grid.layers_of,
        f"{columns}_of": grid.columns_of,
        "last_good": grid.last_good,
        "first_bad": grid.first_bad,
    }


def _short(value: float | None) -> Any:
    return plain(float(f"{value:.6g}") if isinstance(value, float) else value)


def _compared(compared: Compared) -> dict[str, Any]:
    differences = [asdict(one) for one in compared.differences]
    known = {"name": compared.name, "path": compared.path, "differences": differences, "sibling": compared.sibling}
    further = {} if compared.contrast is None else contrast_data(compared.contrast)
    found: dict[str, Any] = plain({**known, **further})
    return found


def said(row: dict[str, Any], language: Language, *keys: str) -> dict[str, Any]:
    """A row with its messages in the language of the report; text of the evidence stays as it is."""
    return row | {key: message(row[key]).in_(language) for key in keys if row[key]}


def _replay(replay: ReplayRow, language: Language) -> dict[str, Any]:
    row: dict[str, Any] = plain(asdict(replay))
    row["notices"] = [message(notice).in_(language) for notice in replay.notices]
    row["results"] = [_result(one, language) for one in replay.results]
    return row


def _result(result: ResultRow, language: Language) -> dict[str, Any]:
    return said(plain(asdict(result)), language, "question", "changed", "result", "conclusion")


def _verdict(verdict: VerdictRow, language: Language) -> dict[str, Any]:
    return {
        "rule": verdict.rule,
        "slug": verdict.slug,
        "family": verdict.family,
        "title": verdict.title.in_(language),
        "outcome": verdict.outcome,
        "variant": verdict.variant,
        "severity": verdict.severity,
        "strength": verdict.strength,
        "alarm": verdict.alarm,
        "onset": verdict.onset,
        "onset_after": verdict.onset_after,
        "what": verdict.what.in_(language),
        "why": verdict.why.in_(language),
        "fix": [fix.in_(language) for fix in verdict.fix],
        "code": [{"framework": one.framework, "code": one.text} for one in verdict.code],
        "verify": verdict.verify.in_(language),
        "hits": [plain(asdict(hit)) for hit in verdict.hits],
        "refuted_by": [one.case for one in verdict.refuted_by],
        "not_excluded": [one.case for one in verdict.not_excluded],
        "missing": [gap.key(language) for gap in verdict.missing],
        "testable": verdict.testable,
        "verified": [_result(one, language) for one in verdict.verified],
        "replayed": list(verdict.replayed),
        "ignored": verdict.ignored or None,
    }
