"""Messages that other parts make as English sentences -> both languages.

As with gettext, the English text is the key: an entry is the sentence with placeholders, `{name}` for any text of one
line, `{name:d}` for a number. What stands in a placeholder is translated too where it is such a message itself. A
message that joins several ("...; ...", "... . ...") is translated where every part is known. Anything else is left in
English: text of the evidence is nobody's message.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gradforensics.languages import Text
from gradforensics.report.messages import checkpoints, checks, conclusions, pickles, reading, replays

CATALOGUE: Mapping[str, str] = {
    **reading.ENTRIES,
    **checkpoints.ENTRIES,
    **pickles.ENTRIES,
    **checks.ENTRIES,
    **replays.ENTRIES,
    **conclusions.ENTRIES,
}
"""English -> Chinese, placeholders with the same names in both."""

PLACEHOLDER = re.compile(r"\{(\w+)(:d)?\}")
_NUMBER = r"[-+]?(?:[\d,]*\.?\d+(?:e[-+]?\d+)?%?|nan|inf)"
_WORD = re.compile(r"\w+")
# How messages are joined, and how their translations are; a wider joint before a narrower one.
_JOINTS = ((". ", "。"), ("; ", "；"), (", ", "，"), (" and ", "和"))
_LONGEST = 4000  # letters; no message is longer, evidence may be
_DEEPEST = 6  # messages within messages


class _Template(NamedTuple):
    """A compiled entry. letters: of its text outside of placeholders: of several that match, the longest tells most."""

    pattern: re.Pattern[str]
    zh: str
    letters: int


@functools.lru_cache(maxsize=4096)
def message(english: str) -> Text:
    """A message in both languages; without Chinese where the catalogue has none."""
    if len(english) > _LONGEST:
        return Text(english)
    return Text(english, _translated(english, _DEEPEST) or "")


def _translated(english: str, depth: int) -> str | None:
    if depth == 0:
        return None
    stop = english.endswith(".") and not english.endswith("...")
    text = english[:-1] if stop else english
    found = CATALOGUE.get(text) or CATALOGUE.get(_other_case(text)) or _joined(text, depth) or _filled(text, depth)
    return f"{found}。" if found and stop else found


def _other_case(text: str) -> str:
    """The text with its first letter small instead of capital, or capital: sentences are made of messages."""
    return text[:1].swapcase() + text[1:]


def _joined(text: str, depth: int) -> str | None:
    """The parts of a text, translated, where each is known."""
    for joint, chinese in _JOINTS:
        if joint in text:
            parts = [_translated(part, depth - 1) if part else None for part in text.split(joint)]
            told = [part for part in parts if part]
            if len(told) == len(parts):
                return chinese.join(told)
    return None


def _filled(text: str, depth: int) -> str | None:
    """The text by the entry that tells most of it."""
    matches = ((one, match) for one in _candidates(text) if (match := one.pattern.fullmatch(text)))
    best = max(matches, key=lambda found: found[0].letters, default=None)
    if best is None:
        return None
    template, match = best
    values = {name: _translated(value, depth - 1) or value for name, value in match.groupdict().items()}
    return PLACEHOLDER.sub(lambda place: values[place[1]], template.zh)


def _candidates(text: str) -> Iterator[_Template]:
    """The templates whose words all stand in the text: only they are worth compiling."""
    by_word = _index()
    words = {word.lower(): None for word in _WORD.findall(text)}
    for word in words:
        yield from (_compiled(one) for one, needed in by_word.get(word, ()) if needed <= words.keys())


@functools.cache
def _index() -> Mapping[str, Sequence[tuple[str, frozenset[str]]]]:
    """The entries with placeholders and their words, each by that one which is the rarest in the catalogue."""
    templates = {english: _words(english) for english in CATALOGUE if PLACEHOLDER.search(english)}
    counts: dict[str, int] = {}
    for words in templates.values():
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    found: dict[str, list[tuple[str, frozenset[str]]]] = {}
    for english, words in templates.items():
        rarest = min(words, key=lambda word: (counts[word], word))
        found.setdefault(rarest, []).append((english, frozenset(words)))
    return found


def _words(template: str) -> list[str]:
    """The whole words outside of placeholders, in small letters."""
    apart = PLACEHOLDER.sub("\0", template)
    return [m[0].lower() for m in _WORD.finditer(apart) if "\0" not in apart[max(0, m.start() - 1) : m.end() + 1]]


@functools.cache
def _compiled(english: str) -> _Template:
    pieces: list[str] = []
    at = letters = 0
    for place in PLACEHOLDER.finditer(english):
        pieces.append(_literal(english[at : place.start()], first=at == 0))
        pieces.append(f"(?P<{place[1]}>{_NUMBER if place[2] else '.*?'})")
        letters += place.start() - at
        at = place.end()
    pieces.append(_literal(english[at:], first=at == 0))
    return _Template(re.compile("".join(pieces)), CATALOGUE[english], letters + len(english) - at)


def _literal(text: str, *, first: bool) -> str:
    """Text as a pattern; the first letter of a message may be a small or a capital one."""
    if first and text[:1].isalpha():
        return f"[{text[0].lower()}{text[0].upper()}]{re.escape(text[1:])}"
    return re.escape(text)
