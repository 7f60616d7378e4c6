"""A comparison of two runs as one HTML page: the frame, the style and the policy are those of the report."""

from __future__ import annotations

from markupsafe import Markup

from gradforensics.report.charts import Chart
from gradforensics.report.circumstances_pieces import CircumstancePieces
from gradforensics.report.comparison.model import Comparison, paths
from gradforensics.report.comparison.pieces import ContrastPieces
from gradforensics.report.figures import Figures
from gradforensics.report.html import frame, template
from gradforensics.report.markup import PageWords
from gradforensics.report.pieces import Pieces
from gradforensics.report.words import Words, shorten


def render(found: Comparison) -> str:
    """The whole page."""
    words, plain = PageWords(found.language), Words(found.language)
    figures = Figures(words)

    def draw(charts: tuple[Chart, ...]) -> Markup:
        return Markup("").join(figures.figure(chart, f"c{i}") for i, chart in enumerate(charts, 1))

    title = f"{plain('comparison')}: {' / '.join(paths((found.here, found.there)))}"
    return template("compare.html", found.language).render(
        report=found,
        found=found.contrast,
        w=words,
        p=Pieces(words),
        m=CircumstancePieces(words),
        x=ContrastPieces(words),
        draw=draw,
        tools=figures.tools(),
        title=shorten(title, 200),
        **frame(found.language),
    )
