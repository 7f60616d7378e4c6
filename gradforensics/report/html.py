"""The report as one HTML page: no network, complete without scripts and without style sheets, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gradforensics.report import svg
from gradforensics.report.bracket_pieces import BracketPieces
from gradforensics.report.charts import Chart
from gradforensics.report.checkpoint_pieces import CheckpointPieces
from gradforensics.report.data_pieces import DataPieces
from gradforensics.report.model import Report
from gradforensics.report.pieces import Pieces, tag, visible
from gradforensics.report.replay_pieces import ReplayPieces
from gradforensics.report.words import Words, ordered_chain, shorten

_TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> Markup:
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704  # a file of this package


@cache
def _policy() -> str:
    """The page's own content security policy: nothing is loaded, and no script or style but ours is obeyed."""
    digests = [
        base64.b64encode(hashlib.sha256(_asset(n).encode()).digest()).decode() for n in ("report.css", "report.js")
    ]
    return "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'".format(*digests)


def render(report: Report) -> str:
    """The whole page."""
    words = Words(report.language)
    pieces = Pieces(words)
    drawn = 0

    def draw(charts: tuple[Chart, ...]) -> Markup:
        nonlocal drawn
        figures = []
        for chart in charts:
            drawn += 1
            drawing = Markup(svg.draw(chart, words, f"c{drawn}"))  # noqa: S704  # svg escapes every text that it draws
            figures.append(tag("figure", drawing))
        return Markup("").join(figures)

    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            w=words,
            p=pieces,
            c=CheckpointPieces(pieces),
            b=BracketPieces(pieces),
            r=ReplayPieces(pieces),
            d=DataPieces(pieces),
            draw=draw,
            ordered_chain=ordered_chain,
            title=shorten(_title(report, words), 200),
            html_language="zh-CN" if report.language == "zh" else "en",
            policy=Markup(_policy()),  # noqa: S704  # our own text; quotes must stay quotes
            style=_asset("report.css"),
            script=_asset("report.js"),
        )
    )


def _title(report: Report, words: Words) -> str:
    if len(report.runs) != 1:
        return f"{words('report')}: {words.count('runs_n', len(report.runs))}"
    run = report.runs[0]
    return (
        f"{run.name}: {run.primary.rule} {run.primary.slug}"
        if run.primary
        else f"{run.name}: {words.count('alarms_n', 0)}"
    )
