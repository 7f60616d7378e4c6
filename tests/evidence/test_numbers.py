"""Every spelling of a number ends up as the right kind."""

import math

import pytest

from gradforensics.evidence.numbers import clock_seconds, parse_number, rounded_to, scalar, text_resolution, whole
from gradforensics.tables import series_frame


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("nan", "nan"), ("NaN", "nan"), ("NAN", "nan"), ("-nan", "nan"), ("+nan", "nan"), ("1.#QNAN", "nan"),
        ("-1.#IND", "nan"), ("-nan(ind)", "nan"), ("inf", "posinf"), ("Infinity", "posinf"), ("+inf", "posinf"),
        ("1e999", "posinf"), ("-inf", "neginf"), ("-Infinity", "neginf"), ("-1e999", "neginf"), ("", "missing"),
        ("None", "missing"), ("null", "missing"), ("N/A", "missing"), ("NA", "missing"), ("-", "missing"),
        ("-0.0", "finite"), ("1e-7", "finite"), (" 3.5 ", "finite"), ("tensor(2.5, device='cuda:0')", "finite"),
        ("np.float64(nan)", "nan"), ("tensor(inf)", "posinf"),
    ],
)  # fmt: skip
def test_spellings(text, kind):
    assert series_frame({}, [parse_number(text)])["kind"].to_list() == [kind]


@pytest.mark.parametrize("text", ["abc", "1_000", "1.2.3", "0x10", "tensor", "nano", "--1", "2024-01-01"])
def test_no_numbers(text):
    with pytest.raises(ValueError):  # noqa: PT011  float() words it
        parse_number(text)


def test_minus_zero_keeps_its_sign():
    found = parse_number("-0.0")
    assert found is not None
    assert math.copysign(1, found) == -1


@pytest.mark.parametrize("value", [True, [], {}, "x" * 100])
def test_json_values_that_are_no_numbers(value):
    with pytest.raises(ValueError):  # noqa: PT011  float() words it
        scalar(value)


def test_huge_integers_are_infinite():
    assert scalar(10**400) == math.inf
    assert scalar(-(10**400)) == -math.inf


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:01:48", 108),
        ("3 days, 17:51:32", 323492),
        ("1 day, 1:13:27", 90807),
        ("02:30", 150),
        ("12", None),
        ("a:b", None),
    ],
)
def test_clock(text, seconds):
    assert clock_seconds(text) == seconds


@pytest.mark.parametrize(
    ("texts", "resolution"),
    [
        (["0.0000", "2.3100"], 1e-4), (["2.3", "2.31"], 1e-2), (["3e-4"], 0), (["65536"], 0), (["0.1234567890123"], 0),
        (["nan", "0.50"], 1e-2), (["-inf", "inf"], 0),
    ],
)  # fmt: skip
def test_resolution(texts, resolution):
    assert text_resolution(texts) == pytest.approx(resolution)


def test_rounded_to():
    assert rounded_to([0.1234] * 8, 4)
    assert not rounded_to([0.1234] * 7, 4)
    assert not rounded_to([0.5] * 20, 4)
    assert not rounded_to([0.1234] * 20 + [0.12345], 4)
    assert rounded_to([0.1234] * 8 + [None, math.nan], 4)


@pytest.mark.parametrize(
    ("value", "number"), [(3.0, 3), (3.5, None), (math.nan, None), (1e300, None), (None, None), (-0.0, 0)]
)
def test_whole(value, number):
    assert whole(value) == number
