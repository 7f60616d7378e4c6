"""What is known about a run when its data are audited, and what the tokenizer adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol


class Coder(Protocol):
    """A tokenizer: texts to ids."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, with the special tokens that the tokenizer adds by itself."""


@dataclass(frozen=True, slots=True)
class Known:
    """Settings of a run that an audit refers to; None and empty sets where they are not known.

    vocabulary: rows of the embedding; pads, ends: ids of the padding and end-of-sequence tokens; longest: tokens at
    which samples are cut; tokenizer_size: ids that the tokenizer can give.
    """

    vocabulary: int | None = None
    pads: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    longest: int | None = None
    tokenizer_size: int | None = None

    def with_tokenizer(
        self, size: int, pads: frozenset[int], ends: frozenset[int], longest: int | None = None
    ) -> Known:
        """The same, with what the tokenizer's files say where the run's own settings are silent."""
        return replace(
            self,
            tokenizer_size=size,
            pads=self.pads or pads,
            ends=self.ends or ends,
            longest=self.longest or longest,
        )
