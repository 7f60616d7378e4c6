"""The report as one HTML page: no network, complete without scripts and without style sheets, everything escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from gradforensics.languages import Language, Text
from gradforensics.report import palette
from gradforensics.report.bracket_pieces import BracketPieces
from gradforensics.report.catalogue_pieces import CataloguePieces
from gradforensics.report.chain_svg import ChainDrawing
from gradforensics.report.charts import Chart
from gradforensics.report.checkpoint_pieces import CheckpointPieces
from gradforensics.report.circumstances_pieces import CircumstancePieces
from gradforensics.report.comparison.pieces import ContrastPieces
from gradforensics.report.data_block import data_block
from gradforensics.report.data_pieces import DataPieces
from gradforensics.report.figures import Figures
from gradforensics.report.heatmap_pieces import HeatmapPieces
from gradforensics.report.markup import PageWords, visible
from gradforensics.report.model import Report
from gradforensics.report.overview_pieces import OverviewPieces
from gradforensics.report.pieces import Pieces
from gradforensics.report.rank_pieces import RankPieces
from gradforensics.report.replay_pieces import ReplayPieces
from gradforensics.report.screen_pieces import ScreenPieces
from gradforensics.report.sections import sections
from gradforensics.report.words import Words, ordered_chain, shorten

_TEMPLATES = Path(__file__).parent / "templates"


# joined in this order; page.css and page.js come last and may rely on the others
_STYLES = (
    "charts.css", "chain.css", "findings.css", "comparison.css", "heatmaps.css", "ranks.css",
    "page.css", "sections.css", "print.css",
)  # fmt: skip
_SCRIPTS = ("charts.js", "filter.js", "page.js")


@cache
def _environment(first: Language) -> Environment:
    """The templates of a page whose reader sees one language first."""
    words = PageWords(first)

    def finalize(value: Any) -> Any:
        return words.text(value) if isinstance(value, Text) else visible(value)

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        optimized=False,  # no constants to fold here: looking for them costs more than it saves
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _assets(*names: str) -> Markup:
    texts = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)
    return Markup("".join(texts))  # noqa: S704  # files of this package


@cache
def _style() -> Markup:
    return Markup(palette.style()) + _assets(*_STYLES)  # noqa: S704  # our own text


@cache
def _script() -> Markup:
    return _assets(*_SCRIPTS)


@cache
def _policy() -> str:
    """The page's own content security policy: nothing is loaded, and no script or style but ours is obeyed."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (_style(), _script())]
    return "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'".format(*digests)


def frame(first: Language) -> dict[str, str]:
    """What every page of ours holds, whatever it shows."""
    return {
        "html_language": "zh-CN" if first == "zh" else "en",
        "policy": Markup(_policy()),  # noqa: S704  # our own text; quotes must stay quotes
        "style": _style(),
        "script": _script(),
    }


def template(name: str, first: Language) -> Template:
    """A template of a page whose reader sees one language first."""
    return _environment(first).get_template(name)


def render(report: Report) -> str:
    """The whole page."""
    words = PageWords(report.language)
    plain = Words(report.language)
    figures = Figures(words)
    drawn = 0

    def draw(charts: tuple[Chart, ...]) -> Markup:
        nonlocal drawn
        drawn += len(charts)
        return Markup("").join(figures.figure(chart, f"c{drawn - i}") for i, chart in enumerate(charts))

    return (
        _environment(report.language)
        .get_template("report.html")
        .render(
            report=report,
            w=words,
            p=Pieces(words),
            s=ScreenPieces(words),
            c=CheckpointPieces(words),
            b=BracketPieces(words),
            r=ReplayPieces(words),
            d=DataPieces(words),
            h=HeatmapPieces(words),
            n=RankPieces(words),
            k=CataloguePieces(words),
            m=CircumstancePieces(words),
            o=OverviewPieces(words),
            embedded=data_block(report),
            x=ContrastPieces(words),
            draw=draw,
            tools=figures.tools(),
            chain=lambda run, anchor: ChainDrawing(words, run, anchor).svg(),
            sections=sections,
            ordered_chain=ordered_chain,
            title=shorten(_title(report, plain), 200),
            **frame(report.language),
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
