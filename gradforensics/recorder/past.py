"""The steps whose numbers arrive after the optimizer has stepped, and the states from which they can be reached."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from gradforensics.recorder.state import Anchors, State, affordable
from gradforensics.recorder.steps import StepRecord

_MOST_BATCHES = 1 << 30  # bytes of kept batches after which a newer state is copied, so that older ones can go


class Past:
    """A ring of finished steps. keep: a state is copied at least every so many steps."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.refused = False  # two copies of the state do not fit into host memory
        self.anchors = Anchors()
        self._ring: deque[StepRecord] = deque()
        self._waiting: deque[StepRecord] = deque()

    def before(self, step: int, state: Callable[[], State]) -> None:
        """Copy the state before `step` where one is due."""
        newest = self.anchors.newest
        since = [record for record in self._ring if record.step >= newest]
        due = newest < 0 or step - newest >= self.keep or sum(r.nbytes for r in since) > _MOST_BATCHES
        if self.refused or not due:
            return
        present = state()
        if newest < 0 and not affordable(present):
            self.refused = True
            return
        self.anchors.take(step, present)

    def add(self, record: StepRecord) -> None:
        """A finished step. What no kept state reaches any more is forgotten."""
        self._waiting.append(record)
        if not self.refused:
            self._ring.append(record)
        oldest = self.anchors.oldest()
        while self._ring and self._ring[0].step < oldest:
            self._ring.popleft()

    def arrived(self, *, wait: bool = False) -> Iterator[StepRecord]:
        """Steps whose numbers are here now, in order; all of them with `wait`.

        On the CPU numbers are never on their way; there they count as arrived one step later, as on a device.
        """
        self.anchors.poll()
        while self._waiting:
            first = self._waiting[0]
            if not wait and not (first.reading is None or first.reading.ready(later=len(self._waiting) > 1)):
                return
            first.settle()  # raises where the device has failed: then it goes on waiting
            self._waiting.popleft()
            yield first

    def rescue(self, step: int, current: StepRecord | None) -> tuple[State, list[StepRecord]] | None:
        """After the device has failed: a state and the steps as in `chain`, as far as the host has them."""
        found = self.chain(step, current, settled=True)
        for record in found[1] if found is not None else ():
            record.forget_the_device()
        return found

    def survived(self) -> list[StepRecord]:
        """After the device has failed: the steps whose numbers had arrived, in order; the others stay."""
        found = []
        while self._waiting and (self._waiting[0].reading is None or self._waiting[0].reading.survived()):
            found.append(self._waiting.popleft())
            found[-1].settle()
        return found

    @property
    def oldest(self) -> StepRecord | None:
        """The first step whose numbers have not arrived."""
        return self._waiting[0] if self._waiting else None

    def chain(
        self, step: int, current: StepRecord | None = None, *, settled: bool = False
    ) -> tuple[State, list[StepRecord]] | None:
        """A state and the steps from it to `step`, None where the way is not whole. current: the step that runs.

        settled: only from states whose copy is known to be complete, without asking the device.
        """
        anchor = self.anchors.reaching(step, settled=settled)
        if anchor is None or anchor.state is None:
            return None
        records = [*self._ring, *([current] if current is not None else [])]
        steps = [record for record in records if anchor.step <= record.step <= step]
        whole = [record.step for record in steps] == list(range(anchor.step, step + 1))
        return (anchor.state, steps) if whole and all(record.micros for record in steps) else None
