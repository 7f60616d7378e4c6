"""Progress bars of a console log: where they stand, and which of their states are progress."""

from __future__ import annotations

_MOST = 16  # totals of bars that are remembered


class Bars:
    """The last state of every bar, known by its total.

    A bar is drawn once more when it closes, below the traceback or the closing words that end the training: after such
    an event only a bar that moves on is progress. `line` is that of the last progress.
    """

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.line: int | None = None
        self._event: int | None = None
        self._floors: dict[int, int] = {}

    def draw(self, number: int, done: int, total: int, event: int | None) -> None:
        """A state on line `number`; `event` is the line of the last event that ends a training."""
        if self.states.get(total) != done and self.moves(done, total, event):
            self.line = number
        if len(self.states) > _MOST:
            self.states.clear()
        self.states[total] = done

    def moves(self, done: int, total: int, event: int | None) -> bool:
        """Whether a state is progress and not the last one, drawn again after the event."""
        if event is None or event < (self.line or 0):
            return True
        if event != self._event:
            self._event, self._floors = event, {}
        floor = self._floors[total] = min(done, self._floors.get(total, done))
        return done > floor + 1
