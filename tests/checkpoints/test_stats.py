"""Every measure against the slow obvious computation in float64 on the whole tensor."""

import math
import zlib
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradforensics.checkpoints import refs, stats
from gradforensics.checkpoints.numbers import FORMATS, decode
from gradforensics.checkpoints.refs import Run, TensorRef, strided
from gradforensics.checkpoints.stats import Part, Stats, Workspace, layout
from gradforensics.untrusted.files import Memory, RefusedError

LAST = 1e-320  # float64 has no digits left there
FLOAT_BITS = {"float64": np.uint64, "float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}


def tensor(array, dtype=None, shape=None, **more):
    """A tensor of the array's bytes in memory, in two runs."""
    array = np.ascontiguousarray(array)
    dtype = dtype or str(array.dtype)
    shape = array.shape if shape is None else shape
    file, size = Memory("m", array.tobytes()), TensorRef(dtype, shape, ()).itemsize
    count = array.nbytes // size
    half = count // 3
    runs = tuple(run for run in (Run(file, 0, half), Run(file, half * size, count - half)) if run.count)
    return TensorRef(dtype, shape, runs, **more)


def measured(array, dtype=None, shape=None, **more):
    return stats.stats(tensor(array, dtype, shape, **more))


@contextmanager
def blocks_of(nbytes):
    """Small blocks, so that small tensors have many."""
    with mock.patch.object(stats, "BLOCK_BYTES", nbytes):
        yield


def decoded(array, dtype):
    form = FORMATS[dtype]
    raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return decode(raw, form, np.empty(raw.size * 8, np.uint8)).astype(np.float64)


def norm(x):
    """sqrt(sum x^2) without overflow, exactly rounded sums."""
    largest = float(np.abs(x).max(initial=0.0))
    if largest == 0.0:
        return 0.0
    power = 2.0 ** -math.frexp(largest)[1] if largest > 1e-300 else 2.0**1000
    return math.sqrt(math.fsum((x * power) ** 2)) / power


def check(found, array, dtype=None, shape=None):
    """Compare with the oracle; the tolerances are the specification's."""
    dtype = dtype or str(array.dtype)
    shape = array.shape if shape is None else shape
    with np.errstate(all="ignore"):
        check_values(found, decoded(array, dtype), dtype, shape)
    assert found.fingerprint == f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"
    assert found.count == math.prod(shape)


def check_values(found, x, dtype, shape):
    form = FORMATS[dtype]
    finite = x[np.isfinite(x)]
    assert found.measured
    assert found.nan == np.isnan(x).sum()
    assert found.posinf == (x == math.inf).sum()
    assert found.neginf == (x == -math.inf).sum()
    assert found.zero == (x == 0.0).sum()
    assert found.one == (x == 1.0).sum()
    smallest = smallest_normal(dtype)
    assert found.subnormal == ((np.abs(x) < smallest) & (x != 0.0)).sum()
    if not finite.size:
        assert (found.min, found.max, found.mean, found.std, found.l2) == (None,) * 5
    else:
        assert found.min == finite.min()
        assert found.max == finite.max()
        root = math.sqrt(finite.size)
        mean = math.fsum(finite / finite.size)
        rms = norm(finite / root)
        assert abs(found.mean - mean) <= 1e-6 * rms + LAST
        assert found.l2 == pytest.approx(norm(finite), rel=1e-5, abs=LAST)
        # the last term is what float64 itself cannot tell
        centred = norm((finite / 2 - mean / 2) / root) * 2
        assert abs(found.std - centred) <= 1e-5 * centred + 1e-14 * rms + LAST
    check_rows(found, x, shape, form)


def check_rows(found, x, shape, form):
    names = (found.row_l2_min, found.row_l2_max, found.row_l2_max_index, found.zero_rows)
    columns = shape[1] * form.parts if len(shape) == 2 else 0
    if len(shape) != 2 or shape[1] < 2 or columns > stats.BLOCK_BYTES // form.work.itemsize:
        assert names == (None,) * 4
        return
    rows = x.reshape(-1, columns)
    norms = {index: norm(row) for index, row in enumerate(rows) if np.isfinite(row).all()}
    assert found.zero_rows == sum(value == 0.0 for value in norms.values())
    if not norms:
        assert names[:3] == (None, None, None)
        return
    assert found.row_l2_min == pytest.approx(min(norms.values()), rel=1e-5, abs=LAST)
    assert found.row_l2_max == pytest.approx(max(norms.values()), rel=1e-5, abs=LAST)
    assert norms[found.row_l2_max_index] == pytest.approx(max(norms.values()), rel=1e-5, abs=LAST)


def smallest_normal(dtype):
    import torch

    part = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    kind = getattr(torch, part)
    return torch.finfo(kind).smallest_normal if kind.is_floating_point else 0.0


RANDOM = np.random.default_rng(7)
MILLION = 1_000_003


def normal(*shape, spread=1.0, mean=0.0, dtype=np.float32):
    return (mean + spread * RANDOM.standard_normal(shape)).astype(dtype)


def with_at(array, index, value):
    array = array.copy()
    array.reshape(-1)[index] = value
    return array


CASES = {
    "weights": normal(300, 1027, spread=0.02),
    "a matrix of long rows": normal(7, 100_003),
    "a matrix of rows longer than a block": normal(2, 300_001),
    "a matrix of short rows": normal(90_003, 3),
    "one column": normal(1000, 1),
    "one row": normal(1, 1000),
    "no row": normal(0, 5),
    "no column": normal(5, 0),
    "empty": normal(0),
    "0-d": np.array(-2.5, np.float32),
    "0-d NaN": np.array(math.nan, np.float32),
    "three dimensions": normal(3, 4, 5),
    "all NaN": np.full((300, 1000), math.nan, np.float32),
    "all infinite": np.array([math.inf, -math.inf, math.inf], np.float32),
    "zeros": np.zeros((100, 100), np.float32),
    "signed zeros": np.array([[0.0, -0.0], [-0.0, -0.0], [1.0, -0.0]], np.float32),
    "ones": np.ones(MILLION, np.float32),
    "a constant that is no binary fraction": np.full(MILLION, 0.1, np.float32),
    "a constant and zeros": np.tile(np.array([0.1, 0.0], np.float32), MILLION // 2),
    "uniform": RANDOM.random(MILLION).astype(np.float32),
    "near the largest float32": (3.4e38 * RANDOM.uniform(-1, 1, (100, 1000))).astype(np.float32),
    "near the largest float64": 1.7e308 * RANDOM.uniform(-1, 1, (2, 3)),
    "squares that overflow float64": 1e200 * RANDOM.standard_normal((100, 1000)),
    "opposite extremes of float64": np.array([1.7e308, -1.7e308]),
    "subnormal float32": (1e-40 * RANDOM.standard_normal((100, 1000))).astype(np.float32),
    "subnormal float64": 1e-310 * RANDOM.standard_normal((10, 100)),
    "the smallest float64": np.array([5e-324, 0.0, -5e-324]),
    "second moments whose squares vanish": (1e-25 * RANDOM.standard_normal((512, 1000)) ** 2).astype(np.float32),
    "second moments of any size": (10 ** RANDOM.uniform(-37, -5, (512, 1000))).astype(np.float32),
    "faint rows among others": (10 ** RANDOM.uniform(-40, 0, (512, 1)) * normal(512, 300)).astype(np.float32),
    "gains": normal(MILLION, mean=1.0, spread=1e-6),
    "gains, one of them off by a rounding": with_at(np.ones(MILLION, np.float32), 5, 1 + 2.0**-23),
    "a constant, one off by a rounding": with_at(np.full(MILLION, 0.1, np.float32), 5, np.float32(0.1) + 2.0**-27),
    "float64 gains": normal(100_000, mean=1.0, spread=1e-9, dtype=np.float64),
    "a mean large against the spread": normal(MILLION, mean=1e4, spread=1e-2),
    "tiny numbers close together": normal(MILLION, mean=1e-20, spread=1e-25),
    "blocks of different means": np.repeat(np.array([1, -1000, 1e-3, 30], np.float32), 300_000),
    "one outlier": with_at(normal(1024, 1000, spread=1e-8), 777_777, 3e30),
    "one NaN": with_at(normal(1024, 1000), 777_777, math.nan),
    "one infinity in a constant": with_at(np.ones((1024, 1000), np.float32), 777_777, -math.inf),
    "NaN with a payload and a sign": np.array([0xFFC12345, 0x7F800001, 0xFF800001, 0x3F800000], np.uint32).view("f4"),
    "half precision": normal(512, 1000, dtype=np.float16),
    "half precision, subnormal": normal(512, 1000, spread=1e-5, dtype=np.float16),
    "half precision, largest": with_at(normal(512, 1000, dtype=np.float16), 5, 65504),
    "half precision, infinite": with_at(normal(512, 1000, dtype=np.float16), 5, -math.inf),
    "int64": RANDOM.integers(-(2**63), 2**63, 100_000),
    "uint64": RANDOM.integers(0, 2**64, (100, 100), np.uint64),
    "counters": np.arange(1000, dtype=np.int64),
    "int32": RANDOM.integers(-3, 3, (1000, 100), np.int32),
    "uint8": RANDOM.integers(0, 256, (1000, 100), np.uint8),
    "bool": RANDOM.integers(0, 2, (1000, 100)).astype(np.bool_),
}


@pytest.mark.parametrize("name", CASES)
def test_hand_made_tensors_agree_with_the_oracle(name):
    array = CASES[name]
    check(measured(array), array)


@pytest.mark.parametrize("name", ["one NaN", "faint rows among others", "half precision, infinite", "gains", "weights"])
def test_small_blocks_give_the_same(name):
    array = CASES[name].reshape(-1)[:200_000]
    shape = (50, 4000) if array.size == 200_000 and CASES[name].ndim == 2 else array.shape
    with blocks_of(16384):
        check(measured(array, shape=shape), array, shape=shape)


@pytest.mark.parametrize("dtype", sorted(name for name in FORMATS if "float" in name or "complex" in name))
@pytest.mark.parametrize("shape", [(1000,), (20, 50), (500, 2)])
def test_any_bits_of_any_float_type_agree_with_the_oracle(dtype, shape):
    itemsize = TensorRef(dtype, (), ()).itemsize
    raw = np.random.default_rng(3).integers(0, 256, 1000 * itemsize, np.uint8)
    with blocks_of(1024):
        check(measured(raw, dtype, shape), raw, dtype, shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e8m0fnu"])
def test_the_bytes_that_torch_writes_are_measured_as_torch_sees_them(dtype):
    import torch

    torch.manual_seed(0)
    made = (torch.randn(64, 96).abs() + 0.1).to(getattr(torch, dtype))
    raw = made.view(torch.uint8).numpy()
    found = measured(raw, dtype, (64, 96))
    wide = made.to(torch.float32).double()
    assert found.min == wide.min()
    assert found.max == wide.max()
    assert found.l2 == pytest.approx(wide.norm().item(), rel=1e-6)
    assert found.mean == pytest.approx(wide.mean().item(), rel=1e-6)
    assert found.std == pytest.approx(wide.std(correction=0).item(), rel=1e-6)
    assert found.row_l2_max == pytest.approx(wide.norm(dim=1).max().item(), rel=1e-6)
    assert found.row_l2_max_index == wide.norm(dim=1).argmax()


@st.composite
def arrays(draw):
    """Bit patterns, or numbers about one magnitude and mean, as a vector or a matrix, and a size of blocks."""
    dtype = draw(st.sampled_from(sorted(FLOAT_BITS)))
    shape = draw(st.one_of(st.tuples(st.integers(0, 90)), st.tuples(st.integers(0, 12), st.integers(0, 12))))
    if draw(st.booleans()):
        array = draw(hnp.arrays(FLOAT_BITS[dtype], shape))
    else:
        mean, spread = draw(st.floats(-1e3, 1e3)), 10.0 ** draw(st.integers(-30, 30))
        parts = draw(hnp.arrays(np.float64, shape, elements=st.floats(-1, 1)))
        bits = FLOAT_BITS["float32" if dtype == "bfloat16" else dtype]
        with np.errstate(over="ignore"):
            numbers = (mean + spread * parts).astype(f"f{np.dtype(bits).itemsize}")
        array = numbers.view(bits)
        if dtype == "bfloat16":
            array = (array >> 16).astype(np.uint16)
    return dtype, array, draw(st.sampled_from([32, 64, 256, 1 << 20]))


@given(arrays())
@settings(max_examples=300, deadline=None)
def test_any_tensor_agrees_with_the_oracle_whatever_the_blocks(case):
    dtype, array, block = case
    with blocks_of(block):
        check(measured(array, dtype), array, dtype)


@given(hnp.arrays(np.float32, st.integers(1, 60)), st.data())
@settings(max_examples=100, deadline=None)
def test_parts_add_up_to_the_whole(array, data):
    cut = data.draw(st.integers(1, array.size))
    ref, workspace, total = tensor(array), Workspace(), Part()
    for first in range(0, array.size, cut):
        raw = array[first : first + cut].view(np.uint8)
        total.add(stats.measure(ref, raw, first, zlib.crc32(raw), workspace))
    check(stats.finish(ref, total), array)


# -- rows ----------------------------------------------------------------------------------------------------------


def test_the_first_of_equal_rows_is_named_wherever_the_blocks_end():
    array = np.ones((1000, 32), np.float32)
    array[[421, 422, 900]] = 2.0
    array[[3, 700]] = 0.0
    for block in (128, 4096, 1 << 20):
        with blocks_of(block):
            found = measured(array)
        assert (found.row_l2_max_index, found.zero_rows) == (421, 2)
        assert found.row_l2_max == pytest.approx(2 * math.sqrt(32))
        assert found.row_l2_min == 0.0


def test_rows_with_a_nan_count_neither_as_extreme_nor_as_zero():
    array = np.array([[math.nan, 0.0], [3.0, 4.0], [math.inf, 1.0], [0.0, 0.0], [1.0, 0.0]], np.float32)
    found = measured(array)
    assert (found.row_l2_min, found.row_l2_max, found.row_l2_max_index, found.zero_rows) == (0.0, 5.0, 1, 1)


def test_a_row_whose_squares_vanish_beside_large_ones_is_not_zero():
    found = measured(np.array([[1e-30, 0.0], [1e10, 0.0], [0.0, 0.0]], np.float32)[:2])
    assert found.zero_rows == 0
    assert found.row_l2_min == pytest.approx(1e-30)


def test_a_transposed_or_expanded_matrix_has_no_row_norms():
    file = Memory("m", np.arange(12, dtype=np.float32).tobytes())
    transposed = stats.stats(strided(file, 0, "float32", (4, 3), (1, 4)))
    expanded = stats.stats(strided(file, 0, "float32", (5, 12), (0, 1)))
    assert transposed.row_l2_max is None
    assert transposed.max == 11.0
    assert expanded.zero_rows is None


# -- what is counted ---------------------------------------------------------------------------------------------------


def test_an_expanded_tensor_counts_each_element_as_often_as_it_stands():
    array = np.array([3.0, 4.0, math.nan, 0.0, 1.0], np.float32)
    once, often = measured(array), measured(array, shape=(7, 5), repeat=7)
    assert (often.count, often.nan, often.zero, often.one) == (35, 7, 7, 7)
    assert often.l2 == pytest.approx(math.sqrt(7 * 26))
    assert (often.mean, often.std, often.fingerprint) == (once.mean, once.std, once.fingerprint)


def test_complex_elements_count_once_and_their_parts_each():
    found = measured(np.array([3 + 4j, complex(math.nan, 1), 0j], np.complex64))
    assert (found.count, found.nan, found.zero, found.one) == (3, 1, 2, 1)
    assert (found.min, found.max) == (0.0, 4.0)
    assert found.l2 == pytest.approx(math.sqrt(26))


@pytest.mark.parametrize("dtype", ["qint8", "qint32", "quint4x2", "float4_e2m1fn_x2"])
def test_quantised_and_packed_types_have_a_fingerprint_and_no_values(dtype):
    raw = np.arange(240, dtype=np.uint8)
    count = 240 // TensorRef(dtype, (), ()).itemsize
    found = measured(raw, dtype, (count,))
    assert found == Stats(count, f"{zlib.crc32(raw.tobytes()):08x}")
    assert not found.measured
    assert found.nan is None


def test_every_second_element_of_a_storage_is_measured_without_the_others():
    numbers = np.arange(20, dtype=np.float32)
    found = stats.stats(strided(Memory("m", numbers.tobytes()), 4, "float32", (5, 2), (4, 2)))
    taken = numbers[1:].reshape(-1)[np.array([[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]])]
    assert (found.min, found.max) == (1.0, 19.0)
    assert found.fingerprint == f"{zlib.crc32(taken.tobytes()):08x}"
    assert found.row_l2_max_index == 4


def test_elements_far_apart_are_read_a_few_at_a_time(monkeypatch):
    numbers = np.arange(10_000, dtype=np.float32)
    ref = strided(Memory("m", numbers.tobytes()), 0, "float32", (100,), (100,))
    expected = stats.stats(ref)
    for span in (1, 999, 4000):
        monkeypatch.setattr(refs, "_SPAN", span)
        assert stats.stats(ref) == expected
    assert expected.fingerprint == f"{zlib.crc32(numbers[::100].tobytes()):08x}"


def test_a_file_that_is_too_short_is_refused():
    ref = TensorRef("float32", (100,), (Run(Memory("m", bytes(396)), 0, 100),))
    with pytest.raises(RefusedError, match="396 bytes"):
        stats.stats(ref)


def test_blocks_hold_whole_rows():
    ref = TensorRef("bfloat16", (10, 1000), ())
    assert layout(ref).columns == 1000
    assert layout(ref).elements % 1000 == 0
    assert layout(TensorRef("complex64", (10, 1000), ())) == (stats.BLOCK_BYTES // 8 // 1000 * 1000, 2000)
