"""A comparison of two runs as one HTML page: the frame, the style and the policy are those of the report."""

from __future__ import annotations

from markupsafe import Markup

from gradforensics.report import svg
from gradforensics.report.charts import Chart
from gradforensics.report.comparison.model import Comparison, paths
from gradforensics.report.comparison.pieces import ContrastPieces
from gradforensics.report.html import frame, template
from gradforensics.report.markup import PageWords, tag
from gradforensics.report.pieces import Pieces
from gradforensics.report.words import Words, shorten


def render(found: Comparison) -> str:
    """The whole page."""
    words, plain = PageWords(found.language), Words(found.language)

    def draw(charts: tuple[Chart, ...]) -> Markup:
        drawings = (Markup(svg.draw(one, plain, f"c{i}")) for i, one in enumerate(charts, 1))  # noqa: S704  # escaped
        return Markup("").join(tag("figure", drawing) for drawing in drawings)

    title = f"{plain('comparison')}: {' / '.join(paths((found.here, found.there)))}"
    return template("compare.html", found.language).render(
        report=found,
        found=found.contrast,
        w=words,
        p=Pieces(words),
        k=ContrastPieces(words),
        draw=draw,
        title=shorten(title, 200),
        **frame(found.language),
    )
