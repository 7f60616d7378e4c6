"""Pieces of Markdown show the texts that they were made of, and nothing else happens."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gradforensics.report.markdown import block, code, code_cell, prose, table, within
from gradforensics.report.words import printable
from tests.report.hostile import HOSTILE

LINKING = re.compile(r"(?<![\w`])@\w|#\d|\bGH-\d|https?://|\bwww\.|\b(mailto|xmpp):\w", re.IGNORECASE)
"""What GitHub turns into a link, a mention or a reference where it stands outside of code."""


def tokens(markdown: str) -> list[Token]:
    return list(_flat(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)))


def _flat(those: list[Token]) -> Iterator[Token]:
    for one in those:
        yield one
        yield from _flat(one.children or [])


def shown(markdown: str) -> str:
    """The text that a reader sees."""
    seen = [
        t.content for t in tokens(markdown) if t.type in ("text", "code_inline", "fence", "html_inline", "html_block")
    ]
    return "".join(seen).replace("\u200b", "")


def kinds(markdown: str) -> set[str]:
    return {t.type for t in tokens(markdown)}


def flat(text: str) -> str:
    return " ".join(printable(text).split())


@pytest.mark.parametrize("text", HOSTILE)
def test_prose_shows_its_text_and_nothing_else(text: str) -> None:
    made = prose(text, 10_000)
    assert shown(made) == flat(text)
    assert kinds(made) <= {"paragraph_open", "inline", "text", "paragraph_close"}
    assert not LINKING.search(made)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_code_span_holds_any_text(text: str) -> None:
    made = code(text, 10_000)
    assert shown(made) == flat(text)
    assert kinds(made) == {"paragraph_open", "inline", "code_inline", "paragraph_close"}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_stays_a_cell(text: str) -> None:
    made = table(["a", "b"], [[code_cell(text, 10_000), prose(text, 10_000)], ["next", "row"]])
    cells = [t for t in tokens(made) if t.type == "td_open"]
    spans = [t.content for t in tokens(made) if t.type == "code_inline"]
    assert len(cells) == 4
    assert len(spans) == 1
    assert re.sub(r"\\+\|", "|", spans[0]) == re.sub(r"\\+\|", "|", flat(text))
    assert {"link_open", "image", "html_inline", "strong_open"}.isdisjoint(kinds(made))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_block_holds_any_text(text: str) -> None:
    assert kinds(block(text, "sh", 10_000)) == {"fence"}


def test_texts_are_bounded() -> None:
    assert len(prose("a" * 5000, 100)) == len(code("a" * 5000, 98)) == 100
    assert code("") == ""


def test_blocks_are_cut_where_they_no_longer_fit() -> None:
    blocks = ["head", "x" * 50, "y" * 50]
    assert within(blocks, 1000, "cut") == f"head\n\n{'x' * 50}\n\n{'y' * 50}\n"
    short = within(blocks, 100, "cut")
    assert short == f"head\n\n{'x' * 50}\n\ncut\n"
    assert all(len(within(blocks, limit, "cut")) <= limit for limit in range(20, 130))
