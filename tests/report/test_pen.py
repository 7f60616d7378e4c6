"""Tables and texts for a terminal."""

from __future__ import annotations

import pytest

from gradforensics.report.pen import Column, Pen, middle
from gradforensics.report.words import Words, columns, compact, counted, magnitude, share

HEADS = (Column("name", numeric=False), Column("low", 1), Column("must"), Column("high", 2, numeric=False))


def table(width: int, *rows: tuple[str, ...], color: bool = False) -> list[str]:
    pen = Pen(color=color, width=width, words=Words("en"))
    pen.table(HEADS, rows)
    return pen.lines


def test_columns_are_aligned() -> None:
    assert table(80, ("a", "1", "22", "x"), ("layer", "333", "4", "yy")) == [
        "  name   low  must  high",
        "  a        1    22  x",
        "  layer  333     4  yy",
    ]


def test_the_name_is_shortened_before_columns_are_left_out() -> None:
    row = ("model.layers.17.self_attn.q_proj.weight", "1", "2", "3")
    assert table(44, row) == [
        "  name                       low  must  high",
        "  model.la…tn.q_proj.weight    1     2  3",
    ]


@pytest.mark.parametrize(
    ("cell", "heads"),
    [("1", ["name", "low", "must", "high"]), ("9" * 10, ["name", "must", "high"]), ("9" * 20, ["name", "must"])],
)
def test_the_least_important_column_goes_first(cell: str, heads: list[str]) -> None:
    assert table(44, ("n" * 30, "1", cell, cell))[0].split() == heads


def test_cells_are_harmless_and_colours_ours() -> None:
    pen = Pen(color=True, width=80, words=Words("en"))
    pen.table((Column("name"), Column("bad")), [("a\x1b[2J\n", ("5", "red"))])
    assert pen.lines[1] == "  a\\x1b[2J   \x1b[31;1m  5\x1b[0m"


def test_wide_characters_count_twice() -> None:
    first, second = table(80, ("漢字", "1", "2", "3"), ("abcd", "1", "2", "3"))[1:]
    assert columns(first) == columns(second)


@pytest.mark.parametrize("text", ["model.layers.17.self_attn.q_proj.weight", "漢字" * 20, "a" * 100, "a漢" * 30])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 33])
def test_the_middle_is_left_out(text: str, width: int) -> None:
    short = middle(text, width)
    assert columns(short) <= width
    head, tail = short.split("…")
    assert text.startswith(head)
    assert text.endswith(tail)


def test_short_texts_stay() -> None:
    assert middle("weight", 6) == "weight"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 10, "0%"), (0, 0, "0%"), (10, 10, "100%"), (1, 8, "12.5%"), (1, 10**6, "<0.1%"),
        (10**6 - 1, 10**6, ">99.9%"),
    ],
)  # fmt: skip
def test_shares_claim_all_and_nothing_only_where_they_are(part: int, whole: int, text: str) -> None:
    assert share(part, whole) == text


def test_numbers_are_short() -> None:
    assert [compact(v) for v in (None, float("nan"), float("-inf"), 1234.5, 1e-40)] == [
        "",
        "NaN",
        "-inf",
        "1.23e+03",
        "1e-40",
    ]
    assert [magnitude(n) for n in (0, 999, 1000, 4_200_000, 3 * 10**12)] == ["0 ", "999 ", "1 k", "4.2 M", "3 T"]
    assert [counted(n, "tensor") for n in (0, 1, 1200)] == ["0 tensors", "1 tensor", "1,200 tensors"]
