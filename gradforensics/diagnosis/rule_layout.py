"""Where the parts of a rule file stand: complaints name lines."""

from __future__ import annotations

import re
from pathlib import Path

from gradforensics.errors import RuleError

_HEADER = re.compile(r"\[\[?([^\]\n]+)\]")


class Layout:
    """Where the tables of a rule file stand: the line of a header, and the lines of a table."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._spans: dict[str, list[range]] = {}
        name, first, quoted = "", 1, False
        for number, line in enumerate(self.lines, 1):
            if not quoted and (found := _HEADER.match(line)):
                self._spans.setdefault(name, []).append(range(first, number))
                name, first = found[1].strip(), number
            quoted ^= line.count('"""') % 2 == 1
        self._spans.setdefault(name, []).append(range(first, len(self.lines) + 1))

    def span(self, table: str = "", index: int = 0) -> range:
        """The lines of the index-th table of this name ("" is the head of the file); the whole file where none is."""
        spans = self._spans.get(table, [])
        return spans[index] if index < len(spans) else range(1, len(self.lines) + 1)

    def line(self, needle: str, table: str = "", index: int = 0) -> int:
        """The line of a table that holds `needle`, preferably as its key; else the first line of the table."""
        span = self.span(table, index)
        key = re.compile(rf"\s*\"?{re.escape(needle)}\"?\s*=") if needle else None
        rows = [(n, self.lines[n - 1]) for n in span] if needle else []
        exact = next((n for n, row in rows if key is not None and key.match(row)), None)
        return exact or next((n for n, row in rows if needle in row), None) or max(span.start, 1)

    def near(self, needle: str, table: str = "", index: int = 0) -> int | None:
        """The line of a table that holds `needle`, else the first of the file that does; None where none does."""
        for span in (self.span(table, index), range(1, len(self.lines) + 1)):
            for n in span:
                if needle and needle in self.lines[n - 1]:
                    return n
        return None


def complaint(path: Path, text: str, needle: str = "", table: str = "", index: int = 0) -> RuleError:
    """A complaint about a rule file that could be read, at the line of a table that `needle` names."""
    return RuleError(path, text, Layout(path.read_text(encoding="utf-8")).line(needle, table, index))
