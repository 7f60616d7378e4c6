"""The languages of a report, and a text in both of them (a leaf)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

Language: TypeAlias = Literal["en", "zh"]

LANGUAGES: tuple[Language, ...] = ("en", "zh")


class Text(NamedTuple):
    """One text in English and in Chinese; `zh` is empty where there is no translation."""

    en: str
    zh: str = ""

    def in_(self, language: Language) -> str:
        """The text in a language: English where there is no translation."""
        return (self.zh or self.en) if language == "zh" else self.en


NOTHING = Text("")


def both(told: Callable[[Language], str]) -> Text:
    """The text that a function tells in each language."""
    return Text(told("en"), told("zh"))
