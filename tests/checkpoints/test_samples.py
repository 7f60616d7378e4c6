"""Numbers of small tensors and samples of large ones, against numpy."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.checkpoints.refs import Lost, Run, TensorRef
from gradforensics.checkpoints.samples import elements, sample, scalar
from gradforensics.untrusted.files import Memory, RefusedError


def tensor(array, cuts=(), **more):
    """The array in runs that begin at `cuts`."""
    flat, file = array.reshape(-1), Memory("m", array.tobytes())
    edges = [0, *sorted(cuts), flat.size]
    runs = tuple(Run(file, a * array.itemsize, b - a) for a, b in pairwise(edges) if b > a)
    return TensorRef(str(array.dtype), array.shape, runs, **more)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int8", "uint8", "bool"])
def test_elements_are_those_of_numpy(dtype):
    array = np.array([[0, 1, 2], [3, 5, 7]], dtype)

    assert elements(tensor(array)).tolist() == array.reshape(-1).astype(float).tolist()


def test_elements_of_other_types_are_refused():
    with pytest.raises(RefusedError, match="complex64"):
        elements(tensor(np.zeros(3, "complex64")))


def test_scalars_are_numbers_and_tensors_of_one_element():
    assert scalar(3) == 3.0
    assert scalar(tensor(np.float32(0.5).reshape(()))) == 0.5
    assert scalar(tensor(np.array([[7]], "int64"))) == 7.0


@pytest.mark.parametrize(
    "value",
    [
        None, True, "3", [3], 10**400, Lost("float32", (), "cut"), tensor(np.zeros(2, "float32")),
        tensor(np.zeros((), "complex64")), TensorRef("float32", (), (Run(Memory("m", b""), 0, 1),)),
    ],
)  # fmt: skip
def test_anything_else_is_no_scalar(value):
    assert scalar(value) is None


@given(st.integers(1, 3000), st.integers(8, 400), st.sets(st.integers(0, 3000), max_size=5))
def test_samples_hold_the_same_indices_wherever_the_elements_lie(count, most, cuts):
    array = np.arange(count, dtype="int32")

    whole, torn = sample(tensor(array), most), sample(tensor(array, {cut for cut in cuts if cut < count}), most)

    assert whole is not None
    assert torn is not None
    assert whole.tolist() == torn.tolist()
    assert 0 < len(whole) <= max(most, 8)
    assert count > most or whole.tolist() == array.tolist()
    assert np.all(np.diff(whole) > 0)


def test_samples_of_large_tensors_come_from_all_over():
    found = sample(tensor(np.arange(100_000, dtype="int32")), 800)

    assert found is not None
    assert len(found) == 800
    assert set(found // 12_500) == set(range(8))


def test_tensors_that_are_not_in_row_major_order_or_cut_have_no_sample():
    array = np.zeros((4, 5), "float32")

    assert sample(tensor(array, order=(1, 0)), 8) is None
    assert sample(TensorRef("float32", (4, 5), tensor(array[0]).runs, repeat=4), 8) is None
    assert sample(TensorRef("float32", (9, 9), (Run(Memory("m", array.tobytes()), 0, 81),)), 100) is None
    assert sample(TensorRef("float32", (0, 9), ()), 100) is None
