"""What an audit measures: one quantity of one column, and the sample that shows it first or most."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 80  # characters of a text that the table quotes


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table `data`, without its file.

    value: the quantity in `unit`; count: samples (or, for characters and labels, how many of them) that it concerns;
    row, line: the first sample that shows it, or the one that shows it most; text: what stands there.
    """

    column: str
    quantity: str
    value: float
    unit: str
    count: int = 0
    row: int | None = None
    line: int | None = None
    text: str = ""


@dataclass(slots=True)
class Found:
    """Samples that show something: how many, and the first of them."""

    samples: int = 0
    total: int = 0
    row: int | None = None
    line: int | None = None
    text: str = ""

    def add(self, samples: int, total: int, first: tuple[int, int | None], text: str = "") -> None:
        """Count some samples, the first of which stands at (row, line)."""
        if not samples:
            return
        if not self.samples:
            (self.row, self.line), self.text = first, quoted(text)
        self.samples += samples
        self.total += total


def quoted(text: str) -> str:
    """The beginning of a text, with its invisible characters spelled out."""
    head = text[:SHOWN]
    told = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in head)
    return told + ("…" if len(text) > SHOWN else "")
