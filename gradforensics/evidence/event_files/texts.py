"""Settings that a run logged as texts: JSON or YAML, tables in Markdown, or one text per setting."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradforensics.evidence import names, settings
from gradforensics.tables import Setting

_BUDGET = 16 << 20  # bytes of all texts that are kept
_LONGEST = 2 << 20
_SUFFIX = "/text_summary"  # what torch puts behind every tag
_SHORT = 200  # a text that is one setting is no longer than this
_FEWEST = 2  # known settings among those that stand alone
_YAML_BUDGET = 128 << 10  # bytes: reading YAML takes long
_NAME = re.compile(r"[A-Za-z_]\w*$")
_RULE = re.compile(r"[\s:|-]+$")
_KEY = re.compile(r"[\w.-]+:(?:\s|$)")
_FURTHER = re.compile(r"[\w.-]+:(?:\s|$)|[\s#-]|$")  # how a line of YAML behind the first key begins


class Texts:
    """The last text of every tag, where it may hold settings."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._bytes = 0
        self._read: set[str] = set()
        self._yaml_left = _YAML_BUDGET

    def add(self, tag: bytes, parts: Sequence[bytes]) -> None:
        """Take one text summary, which may be a table of texts."""
        name = tag.decode("utf-8", "replace")
        self._counts[name] = self._counts.get(name, 0) + 1
        size = sum(map(len, parts))
        known = len(self._kept.get(name, ""))
        if len(parts) == 1 and size <= _LONGEST and self._bytes + size - known <= _BUDGET:
            self._bytes += size - known
            self._kept[name] = parts[0].decode("utf-8", "replace")

    def settings(self, source: str) -> list[Setting]:
        """The settings in all texts. source: the file."""
        found: list[Setting] = []
        alone: dict[str, str] = {}
        for tag, text in self._kept.items():
            name, bare = tag.removesuffix(_SUFFIX), _bare(text)
            if _NAME.match(name) and "\n" not in bare and len(bare) <= _SHORT and not bare.startswith(("{", "|")):
                alone[tag] = bare
                continue
            stated = self._stated(bare, source)
            if stated:
                found += stated
                self._read.add(tag)
        # Megatron-LM logs every argument as a text of its own
        if sum(names.is_setting(tag.removesuffix(_SUFFIX)) for tag in alone) >= _FEWEST:
            given = [(tag.removesuffix(_SUFFIX), settings.parse_value(text), source) for tag, text in alone.items()]
            found += settings.from_checkpoint(given)
            self._read.update(alone)
        return found

    def _stated(self, text: str, source: str) -> list[Setting]:
        if text.startswith("|"):
            return _table(text, source)
        if not text.startswith("{"):
            if len(text) > self._yaml_left or not _may_be_yaml(text):
                return []
            self._yaml_left -= len(text)
        return settings.from_text(text, source)

    def notices(self) -> list[str]:
        """How many texts are no settings; ask for the settings first."""
        left = {tag: count for tag, count in self._counts.items() if tag not in self._read}
        if not left:
            return []
        count = sum(left.values())
        were = "1 text summary was" if count == 1 else f"{count} text summaries were"
        return [f'{were} not read as settings (first: tag "{next(iter(left))}")']


def _bare(text: str) -> str:
    """The text without what makes it stand as code on a page."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```") and "\n" in bare:
        bare = bare.partition("\n")[2][:-3]
    return bare.removeprefix("<pre>").removesuffix("</pre>").strip()


def _may_be_yaml(text: str) -> bool:
    """Whether a text has the lines of a mapping: samples of prose are no settings."""
    lines = text.splitlines()
    return len(lines) > 1 and _KEY.match(lines[0]) is not None and all(map(_FURTHER.match, lines))


def _table(text: str, source: str) -> list[Setting]:
    """The settings in a Markdown table of two columns, as CleanRL and others write it; none where few are known."""
    rows = list(_rows(text))
    if sum(names.is_setting(name) for name, _ in rows) < _FEWEST:
        return []
    return settings.from_checkpoint((name, settings.parse_value(value), source) for name, value in rows)


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines()[1 : settings.LEAF_LIMIT]:  # the first is the header
        cells = line.strip().strip("|").split("|")
        if len(cells) == 2 and not _RULE.match(line):
            yield cells[0].strip(), cells[1].strip()
