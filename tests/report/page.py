"""A page as one of its readers sees it: what the tests of the report look at."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from gradforensics.report.html import render
from gradforensics.report.model import Report

VOID = {"meta", "br", "link", "img", "hr", "input"}
_DATA = re.compile(r'<script type="application/json".*?</script>', re.DOTALL)
_OTHER = re.compile(r'<(t?span) lang="(en|zh)"[^>]*>([^<]*)</t?span>')


class Page(HTMLParser):
    """Parses a page, checks that its tags nest, keeps tags with attributes and the visible text."""

    def __init__(self, text: str, language: str = "en") -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(shown(text, language))
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script", "title"):
            self.words.append(data)


def shown(text: str, language: str = "en") -> str:
    """The markup of a page with the texts of one language only, those without the elements that tell it apart."""
    return _OTHER.sub(lambda m: m[3] if m[2] == language else "", text)


def page_of(report: Report) -> str:
    """The page of a report with the texts of the report's language only, without its embedded data."""
    return shown(_DATA.sub("", render(report)), report.language)
