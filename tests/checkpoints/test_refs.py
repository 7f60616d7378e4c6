from contextlib import closing, contextmanager

import numpy as np
import pytest

from gradforensics.checkpoints.refs import KeptOpen, Run, TensorRef, blocks, pieces, read, strided
from gradforensics.untrusted.files import Memory, RefusedError

NUMBERS = np.arange(24, dtype=np.float32)


class Watched(Memory):
    """A file that tells when it is opened and closed."""

    log: list[str] = []  # noqa: RUF012  emptied by each test that looks at it

    @contextmanager
    def open(self):
        self.log.append(f"open {self.name}")
        with super().open() as opened:
            yield opened
        self.log.append(f"close {self.name}")


def elements(runs, size, **more):
    return [block.view(np.float32).tolist() for block in blocks(runs, 4, np.empty(4 * size, np.uint8), **more)]


def test_blocks_are_full_but_for_the_last_whatever_the_runs():
    a, b = Memory("a", NUMBERS.tobytes()), Memory("b", NUMBERS[::-1].tobytes())
    runs = (Run(a, 0, 5), Run(b, 8, 2), Run(a, 40, 4, 3))
    assert elements(runs, 4) == [[0, 1, 2, 3], [4, 21, 20, 10], [13, 16, 19]]


def test_pieces_are_cut_at_the_same_indices_for_any_runs():
    file = Memory("a", NUMBERS.tobytes())
    one = TensorRef("float32", (24,), (Run(file, 0, 24),))
    two = TensorRef("float32", (24,), (Run(file, 0, 5), Run(file, 20, 19)))
    for ref in (one, two):
        found = [(piece.first, [n for block in elements(piece.runs, 24) for n in block]) for piece in pieces(ref, 7)]
        assert found == [(first, list(range(first, min(first + 7, 24)))) for first in (0, 7, 14, 21)]


def test_a_file_stays_open_until_another_is_used_or_all_is_done():
    Watched.log.clear()
    a, b = Watched("a", NUMBERS.tobytes()), Watched("b", NUMBERS.tobytes())
    with closing(KeptOpen()) as opening:
        for file in (a, a, b, b):
            assert elements((Run(file, 0, 2),), 2, opening=opening) == [[0, 1]]
        assert Watched.log == ["open a", "close a", "open b"]
    assert Watched.log == ["open a", "close a", "open b", "close b"]


def test_a_file_that_cannot_be_opened_is_tried_again_at_its_next_use():
    class Broken(Watched):
        def open(self):
            raise OSError("gone")

    a, broken = Watched("a", NUMBERS.tobytes()), Broken("b", b"")
    with closing(KeptOpen()) as opening:
        for _ in range(2):
            with pytest.raises(OSError, match="gone"):
                elements((Run(broken, 0, 2),), 2, opening=opening)
            assert elements((Run(a, 0, 2),), 2, opening=opening) == [[0, 1]]


def test_what_is_not_there_is_refused():
    file = Memory("a", NUMBERS.tobytes())
    for run in (Run(file, 0, 25), Run(file, 96, 1), Run(file, 0, 9, 3)):
        with pytest.raises(RefusedError):
            elements((run,), 32)


def test_a_strided_view_is_what_numpy_makes_of_the_strides():
    file = Memory("a", NUMBERS.tobytes())
    for shape, stride in (
        ((4, 6), (6, 1)),
        ((6, 4), (1, 6)),
        ((2, 3, 2), (12, 4, 2)),
        ((3, 5), (0, 1)),
        ((0, 3), (3, 1)),
    ):
        ref = strided(file, 0, "float32", shape, stride)
        view = np.lib.stride_tricks.as_strided(NUMBERS, shape, tuple(4 * step for step in stride))
        kept = view if ref.order is None else view.transpose(ref.order)
        assert ref.stored * ref.repeat == view.size
        distinct = kept[:1] if 0 in stride else kept
        assert read(ref).view(np.float32).tolist() == distinct.reshape(-1).tolist()
