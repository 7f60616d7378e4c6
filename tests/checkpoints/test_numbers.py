import math

import numpy as np
import pytest

from gradforensics.checkpoints.numbers import FORMATS, decode
from gradforensics.untrusted.dtypes import ITEMSIZE

MEASURED = sorted(FORMATS)


def decoded(raw: bytes, dtype: str) -> np.ndarray:
    form = FORMATS[dtype]
    stored = np.frombuffer(raw, np.uint8)
    return decode(stored, form, np.empty(stored.size // form.stored.itemsize * form.work.itemsize, np.uint8))


def every_pattern(itemsize: int) -> bytes:
    """Every value of one or two bytes; of wider types 64 Ki random ones with the corners of float32 and float64."""
    if itemsize <= 2:
        return np.arange(256**itemsize, dtype=f"u{itemsize}").tobytes()
    corners = np.array([0, 1, 0x7F800000, 0xFF800000, 0x7FC00001, 0x80000000, 0x00800000, 0x007FFFFF], np.uint32)
    return np.concatenate([corners, np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32)]).tobytes()


@pytest.mark.parametrize("dtype", [name for name in MEASURED if not name.startswith("complex")])
def test_every_bit_pattern_has_the_value_that_torch_gives_it(dtype):
    import torch

    raw = every_pattern(ITEMSIZE[dtype])
    kind = getattr(torch, dtype)
    if dtype == "bool":
        raw = bytes([0, 1, 1, 0])
    expected = torch.frombuffer(bytearray(raw), dtype=kind)
    wide = torch.float64 if FORMATS[dtype].work == np.float64 else torch.float32
    np.testing.assert_array_equal(decoded(raw, dtype), expected.to(wide).numpy())


@pytest.mark.parametrize(
    ("dtype", "half"), [("complex128", "float64"), ("complex64", "float32"), ("complex32", "float16")]
)
def test_a_complex_number_is_its_two_parts(dtype, half):
    raw = every_pattern(ITEMSIZE[half])
    np.testing.assert_array_equal(decoded(raw, dtype), decoded(raw, half))
    assert FORMATS[dtype].parts == 2


def test_half_precision_without_infinities_takes_the_fast_way_to_the_same_values():
    finite = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = finite[np.isfinite(finite)]
    np.testing.assert_array_equal(decoded(finite.tobytes(), "float16"), finite.astype(np.float32))


@pytest.mark.parametrize("dtype", MEASURED)
def test_the_bit_constants_agree_with_the_values(dtype):
    form = FORMATS[dtype]
    bits = form.bits
    patterns = np.array([bits.infinite, bits.normal, bits.one, bits.sign], bits.unsigned).tobytes()
    infinite, normal, one, zero = decoded(patterns, dtype) if form.ordered else np.frombuffer(patterns, form.work)
    assert infinite == math.inf
    assert one == 1.0
    assert zero == 0.0
    assert math.copysign(1.0, zero) == -1.0
    if dtype in ("float16", "bfloat16", "float32", "float64") or dtype.startswith("float8"):
        import torch

        assert normal == torch.finfo(getattr(torch, dtype)).smallest_normal
    assert bits.signed.itemsize == bits.unsigned.itemsize


def test_types_whose_scales_lie_elsewhere_have_no_values():
    assert set(ITEMSIZE) - set(FORMATS) == {"float4_e2m1fn_x2", "qint32", "qint8", "quint8", "quint4x2", "quint2x4"}
