"""What many lines say, kept in few large arrays: many small ones would hold their memory to the end."""

from __future__ import annotations

import numpy as np

from gradforensics.evidence.console.templates import Block

_FIRST = 1024


class Growing:
    """An array to whose end others are appended."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._data = np.empty(_FIRST, dtype=dtype)
        self.size = 0

    def extend(self, values: np.ndarray) -> None:
        """Append (m,) values."""
        end = self.size + len(values)
        if end > len(self._data):
            grown = np.empty(max(end, len(self._data) * 3 // 2), dtype=self._data.dtype)
            grown[: self.size] = self._data[: self.size]
            self._data = grown
        self._data[self.size : end] = values
        self.size = end

    def array(self) -> np.ndarray:
        """What was appended."""
        return self._data[: self.size]


class Bulk:
    """The lines of all templates whose values have the same names and whose other facts are the same."""

    def __init__(self, first: Block) -> None:
        self._first = first
        self._places = {
            name: Growing(np.float64) for name in ("steps", "epochs", "times") if getattr(first, name) is not None
        }
        self._values = {tag: Growing(np.float64) for tag in first.values}
        self.lines = Growing(np.uint32)

    @staticmethod
    def key(block: Block) -> tuple[object, ...]:
        """What lines must share to be kept together."""
        said = block.said
        place = (said.step if block.steps is None else "each", said.epoch if block.epochs is None else "each")
        facts = (
            said.phase,
            said.total,
            said.epochs,
            said.bare,
            said.quoted,
            block.rank,
            block.task,
            block.times is None,
        )
        return (*facts, *place, *block.values)

    def add(self, block: Block) -> None:
        """Append the lines of a block."""
        self.lines.extend(block.lines)
        for name, growing in self._places.items():
            growing.extend(getattr(block, name))
        for tag, growing in self._values.items():
            growing.extend(block.values[tag])

    def block(self) -> Block:
        """All lines as one block, which takes the arrays over."""
        first, places = self._first, {name: growing.array() for name, growing in self._places.items()}
        values = {tag: growing.array() for tag, growing in self._values.items()}
        self._values = {}
        return Block(
            said=first.said,
            rank=first.rank,
            lines=self.lines.array(),
            steps=places.get("steps"),
            epochs=places.get("epochs"),
            times=places.get("times"),
            values=values,
            task=first.task,
        )
