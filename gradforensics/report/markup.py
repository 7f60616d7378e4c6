"""Pieces of markup. Every text passes through `tag`, which escapes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup, escape

from gradforensics.languages import LANGUAGES, Language, Text, both
from gradforensics.report.messages import message
from gradforensics.report.model import RunReport, VerdictRow
from gradforensics.report.words import Words, place, printable, shorten


def visible(value: Any) -> Any:
    """What may be put into the page: text with its control characters spelled out; markup of our own as it is."""
    if value is None:
        return ""
    if isinstance(value, Text):
        raise TypeError("a text in two languages becomes markup through PageWords.text")
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def tag(name: str, *children: object, kind: str = "", **attributes: object) -> Markup:
    """An element with escaped children and attributes; `kind` is its class, `font_size` the attribute font-size."""
    given = {"class": kind, **attributes} if kind else attributes
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(value))}"'
        for key, value in given.items()
        if value is not None
    )
    inner = "".join(escape(visible(c)) for c in children)
    return Markup(f"<{name}{opening}>{inner}</{name}>")  # noqa: S704  # both parts are escaped just above


def soft(*children: object) -> Markup:
    """Secondary text."""
    return tag("span", *children, kind="soft")


def evidence(*children: object, name: str = "span", kind: str = "") -> Markup:
    """Names and words of the evidence or of a rule file, which no language translates."""
    return tag(name, *children, kind=kind, translate="no")


def joined(parts: Iterable[object], between: str = " ") -> Markup:
    """Parts escaped one by one and joined."""
    return escape(between).join(escape(visible(p)) for p in parts)


def where(source: str | None, line: int | None) -> Markup:
    """`source:line` as code; empty where no source is known."""
    return tag("code", shorten(place(source, line), 160), kind="where") if source else Markup("")


def chip(text: object, kind: str = "") -> Markup:
    """A short word in a frame."""
    return tag("span", text, kind=f"chip {kind}".strip())


def cell(value: object, kind: str = "") -> Markup:
    """A numeric table cell."""
    return tag("td", value, kind=f"n {kind}".strip())


class PageWords:
    """The labels of a page in both languages at once; `first` is the one that a reader sees without doing anything.

    plain: the words of that language alone; each: those of every language, in the order of LANGUAGES.

    The other one has the attribute `hidden`, which works without a style sheet; the page's language switch turns it
    over. A text that is the same in both languages, or has no translation, stands once.
    """

    def __init__(self, first: Language) -> None:
        self.first = first
        self._each = {language: Words(language) for language in LANGUAGES}
        self.plain, self.each = self._each[first], tuple(self._each.values())

    def of(self, told: Callable[[Words], str]) -> Markup:
        """What a function tells with the words of each language."""
        return self.text(self.told(told))

    def told(self, told: Callable[[Words], str]) -> Text:
        """The same as a text."""
        return both(lambda language: told(self._each[language]))

    def text(self, text: Text) -> Markup:
        """A text in both languages."""
        return self._both(text, "span", hidden="")

    def named(self, told: Text) -> Markup:
        """A text about the record, which is a name of the record where it is the same in both languages."""
        return evidence(told.en) if told.en and told.zh == told.en else self.text(told)

    def drawn(self, text: Text) -> Markup:
        """A text in both languages inside a <text> of a drawing."""
        return self._both(text, "tspan", display="none")

    def _both(self, text: Text, element: str, **unseen: str) -> Markup:
        if not text.zh or text.zh == text.en:
            return escape(visible(text.en))
        return Markup("").join(
            tag(element, text.in_(language), lang=language, **({} if language == self.first else unseen))
            for language in LANGUAGES
        )

    def message(self, english: str, limit: int) -> Markup:
        """A message that another part made as an English sentence, at most `limit` letters of it."""
        told = message(english)
        return (
            self.text(Text(shorten(told.en, limit), shorten(told.zh, limit)))
            if told.zh
            else evidence(shorten(english, limit))
        )

    def __call__(self, key: str, **facts: Any) -> Markup:
        """The label `key`, its placeholders filled in."""
        return self.of(lambda words: words(key, **facts))

    def count(self, key: str, n: int) -> Markup:
        """`{n} rules` with the singular where English has one."""
        return self.of(lambda words: words.count(key, n))

    def onset(self, verdict: VerdictRow) -> Markup:
        """The onset interval of a verdict in words."""
        return self.of(lambda words: words.onset(verdict))

    def headline(self, run: RunReport) -> Markup:
        """The verdict on a run in one sentence, with its strength in words."""
        return self.of(lambda words: words.headline(run))

    def clear_means(self, run: RunReport) -> Markup:
        """How many rules were judged, and what "clear" means."""
        return self.of(lambda words: words.clear_means(run))

    def steps(self, run: RunReport) -> Markup:
        """The steps that the record covers."""
        return self.of(lambda words: words.steps(run))

    def record(self, run: RunReport) -> Markup:
        """What the record covers: steps and attempts."""
        return self.of(lambda words: words.record(run))

    def checkpoint(self, path: str) -> Markup:
        """The path of a checkpoint in its run; that of the run's own folder in words."""
        return self("folder_itself") if path == "." else tag("code", shorten(path, 160))


class Tables:
    """Tables of one page. The pieces of its sections build on it."""

    def __init__(self, words: PageWords) -> None:
        self.words = words

    def table(self, heads: Sequence[str], rows: Iterable[Markup], numeric: Sequence[int] = ()) -> Markup:
        """A table whose heads are keys of the label table; a wide one scrolls, also from the keyboard."""
        cells = [
            tag("th", self.words(h), kind="n" if i in numeric else "", scope="col") if h else tag("td")
            for i, h in enumerate(heads)
        ]
        head = tag("thead", tag("tr", *cells)) if any(heads) else ""
        return tag("div", tag("table", head, tag("tbody", *rows)), kind="scroll", tabindex=0)

    def cut(self, total: int, shown: int, label: str = "more_rows") -> Markup:
        """A line that says how many rows were left out."""
        return tag("p", self.words(label, n=total - shown), kind="soft") if total > shown else Markup("")
