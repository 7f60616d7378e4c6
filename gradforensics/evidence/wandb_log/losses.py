"""What is missing in a log: every gap with the number of the records that were lost in it."""

from __future__ import annotations

from collections.abc import Iterator

from gradforensics.evidence.wandb_log.framing import Gap

_TOLD = 20  # places that get a notice of their own


class Losses:
    """Follows the numbers that W&B gives its records (1, 2, 3 ...), and the gaps between them."""

    def __init__(self) -> None:
        self._last = 0
        self._read = 0
        self._gaps: list[Gap] = []
        self._notices: list[str] = []
        self._more = 0
        self._back = 0
        self._broken = 0

    def gap(self, gap: Gap) -> None:
        """Bytes that are no record."""
        self._gaps.append(gap)

    def record(self, number: int, offset: int) -> None:
        """A record that was read; number: its own, 0 where it has none."""
        self._read += 1
        if self._gaps:
            self._close(max(number - self._last - 1, 0) if number > self._last else None)
        elif number > self._last + 1:
            count = number - self._last - 1
            which = f"records {self._last + 1} to {number - 1} are" if count > 1 else f"record {number - 1} is"
            self._say(f"{which} missing before byte offset {offset}: {_records(count)} lost")
        elif 0 < number <= self._last:
            self._back += 1
            if self._back == 1:
                self._say(f"record {number} follows record {self._last} at byte offset {offset}: spliced or repeated")
        self._last = number or self._last + 1

    def broken(self, number: int, offset: int, why: str) -> None:
        """A record with a right checksum that holds no message."""
        self._broken += 1
        if self._broken == 1:
            self._say(f"record {number} at byte offset {offset} could not be read: {why}")

    def notices(self) -> Iterator[str]:
        """After the last record."""
        if self._gaps:
            self._close(None)
        yield from self._notices
        if self._more:
            yield f"{self._more} more places at which records are missing"
        if self._broken > 1:
            yield f"{self._broken} records in all could not be read, though their checksums are right"
        if not self._read:
            yield "no record could be read"

    def _close(self, lost: int | None) -> None:
        first, gaps, self._gaps = self._gaps[0], self._gaps, []
        size = sum(gap.bytes for gap in gaps)
        if lost is None:
            count = "how many records were lost is unknown"
        elif lost:
            count = f"{_records(lost)} lost"
        else:
            count = "no record was lost"
        self._say(f"record {self._last + 1} at byte offset {first.offset}: {first.text} ({size} bytes): {count}")

    def _say(self, text: str) -> None:
        if len(self._notices) < _TOLD:
            self._notices.append(text)
        else:
            self._more += 1


def _records(count: int) -> str:
    return "1 record was" if count == 1 else f"{count} records were"
