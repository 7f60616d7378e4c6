"""The pickle machine: plain values read back as they were, everything else as records, nothing beyond its budget."""

import argparse
import collections
import copy
import datetime as dt
import decimal
import http
import pickle
import struct
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradforensics.untrusted.files import Memory, RefusedError
from gradforensics.untrusted.inert import Array, Global, Record, TupleKey
from gradforensics.untrusted.pickles import Limits, load
from tests.untrusted.assembly import (
    BUILD,
    EMPTY_DICT,
    EMPTY_LIST,
    EMPTY_TUPLE,
    MARK,
    MEMOIZE,
    NONE,
    PERSID,
    POP,
    PROTO4,
    REDUCE,
    SETITEM,
    STOP,
    call,
    get,
    name,
    number,
    put,
    real,
    text,
    tupled,
    whole,
)

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def loaded(data, start=0, **options):
    memory = Memory("test", data)
    with memory.open() as opened:
        return load(opened, start, **options)


def value_of(data, **options):
    return loaded(data, **options).value


def plain(value):
    """A value with ordinary tuples for keys and members, as Python compares them."""
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return {plain(item) for item in value} if isinstance(value, (set, frozenset)) else value


small = st.integers(-(1 << 59), 1 << 59)
keys = st.one_of(st.text(), small, st.booleans(), st.none(), st.binary(), st.floats(allow_nan=False))
scalars = st.one_of(
    keys, st.integers(-(1 << 2000), 1 << 2000), st.complex_numbers(allow_nan=False), st.binary().map(bytearray)
)
hashable = st.one_of(keys, st.tuples(keys, keys))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner, inner, inner),
        st.dictionaries(hashable, inner),
        st.sets(hashable),
        st.frozensets(keys),
        st.dictionaries(keys, inner).map(collections.OrderedDict),
        st.dictionaries(keys, inner).map(lambda items: collections.defaultdict(list, items)),
        st.lists(keys).map(collections.Counter),
    ),
    max_leaves=20,
)


@given(value=values, protocol=st.sampled_from(PROTOCOLS))
@settings(max_examples=400, deadline=None)
def test_plain_values_read_back_equal(value, protocol):
    data = pickle.dumps(value, protocol)
    found = loaded(data)
    assert plain(found.value) == value
    assert found.end == len(data)


@given(text=st.text(st.characters(exclude_categories=())), protocol=st.sampled_from(PROTOCOLS))
def test_texts_read_back_with_halves_of_characters(text, protocol):
    assert value_of(pickle.dumps(text, protocol)) == text


@given(value=st.binary(), protocol=st.sampled_from(PROTOCOLS))
def test_bytes_and_bytearrays_become_bytes(value, protocol):
    assert value_of(pickle.dumps([value, bytearray(value)], protocol)) == [value, value]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_and_self_references_stay_what_they_are(protocol):
    shared = [1]
    ring: list[Any] = [shared, shared, {"shared": shared}]
    ring.append(ring)
    around: dict[str, Any] = {}
    around["self"] = (around, ring)
    found = value_of(pickle.dumps([ring, around], protocol))
    assert found[0][0] is found[0][1] is found[0][2]["shared"]
    assert found[0][3] is found[0]
    assert found[1]["self"][0] is found[1]
    assert found[1]["self"][1] is found[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", list("?bBhHiIqQefdFD"))
def test_numpy_arrays_and_scalars_keep_type_shape_and_bytes(kind, protocol):
    array = np.arange(12).reshape(3, 4).astype(kind)
    variants = [
        array,
        np.asfortranarray(array),
        array[:, ::2],
        array[0, 0:0],
        array[:1, :1].reshape(()),
        array.astype(array.dtype.newbyteorder(">")),
    ]
    found = value_of(pickle.dumps([variants, array[1, 2]], protocol))
    for expected, got in zip(variants, found[0], strict=True):
        assert isinstance(got, Array)
        back = np.frombuffer(got.data, got.dtype).reshape(got.shape, order="F" if got.fortran else "C")
        assert got.dtype == array.dtype.name
        np.testing.assert_array_equal(back, expected)
    assert found[1] == array[1, 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_without_numbers_hold_nothing(protocol):
    found = value_of(pickle.dumps([np.array(["a", {}], dtype=object), np.array(["ab"])], protocol))
    assert [(array.dtype, array.data) for array in found] == [("", b""), ("", b"")]


@dataclass
class Settings:
    rate: float
    names: list[str]


class Slotted:
    __slots__ = ("left", "right")
    left: int


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_become_records_with_their_attributes(protocol):
    found = value_of(pickle.dumps([argparse.Namespace(lr=0.1, seed=3), Settings(0.5, ["a"])], protocol))
    if protocol >= 2:  # before, the class is an argument of copyreg._reconstructor
        assert [record.path for record in found] == ["argparse.Namespace", f"{__name__}.Settings"]
    assert dict(found[0].attributes()) == {"lr": 0.1, "seed": 3}
    assert found[1].get("rate") == 0.5
    assert found[1].get("absent", 7) == 7


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_the_slots_of_an_object_are_attributes(protocol):
    value = Slotted()
    value.left = 1
    assert dict(value_of(pickle.dumps(value, protocol)).attributes()) == {"left": 1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_dates_decimals_and_members_of_enums_become_records(protocol):
    moment = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    found = value_of(pickle.dumps([moment, decimal.Decimal("1.5"), http.HTTPStatus.OK], protocol))
    assert [record.path for record in found[:2]] == ["datetime.datetime", "decimal.Decimal"]
    assert found[1].args == ("1.5",)
    member = found[2]
    # Python 3.11 pickles a member as the attribute of its class, other versions as a call with its value
    assert member == Global("http", "HTTPStatus.OK") or (member.path, member.args) == ("http.HTTPStatus", (200,))


def test_names_and_calls_are_noted_and_not_followed():
    found = loaded(whole(call(name("os", "system"), text("true")), POP, name("m", "unused"), POP, NONE))
    assert found.value is None
    assert (found.uses["os.system"].times_called, found.uses["os.system"].arguments) == (1, "'true'")
    assert found.uses["m.unused"].times_called == 0


def test_a_state_set_on_a_class_is_noted_as_a_call():
    found = loaded(whole(name("m", "Class"), EMPTY_DICT + text("attribute") + NONE + SETITEM, BUILD))
    assert found.value == Global("m", "Class")
    assert found.uses["m.Class.__setstate__"].arguments == "'attribute'"


def test_an_attribute_of_a_name_is_a_longer_name():
    found = loaded(whole(call(name("builtins", "getattr"), name("torch.distributed", "Shard"), text("State"))))
    assert found.value == Global("torch.distributed", "Shard.State")
    assert found.uses["builtins.getattr"].times_called == 0
    assert "torch.distributed.Shard.State" in found.uses


def test_an_attribute_of_anything_else_is_a_call():
    found = loaded(whole(call(name("builtins", "getattr"), call(name("m", "f")), text("g"))))
    assert isinstance(found.value, Record)
    assert found.uses["builtins.getattr"].times_called == 1


def test_the_names_before_a_break_are_told():
    with pytest.raises(RefusedError) as caught:
        loaded(b"\x80\x02" + call(name("os", "system"), text("true")) + b"\xff")
    assert caught.value.uses["os.system"].times_called == 1


def test_pickles_in_a_row_are_read_one_by_one():
    values: list[Any] = [[1], "é" * 300, {}]
    parts = [pickle.dumps(value, protocol) for protocol in PROTOCOLS for value in values]
    data = b"".join(parts)
    at = 0
    for part in parts:
        found = loaded(data, at)
        assert found.value == pickle.loads(part)
        at += len(part)
        assert found.end == at
    assert at == len(data)


def test_a_pickle_ends_where_it_is_told_to():
    data = pickle.dumps(list(range(1000)))
    with pytest.raises(RefusedError, match=r"breaks off at byte 50|left"):
        loaded(data, 0, end=50)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_cut_anywhere_is_refused(protocol):
    data = pickle.dumps({"a": [1, 2.5, "x", b"y", (None, True)], "b": np.arange(3)}, protocol)
    for end in range(len(data)):
        with pytest.raises(RefusedError):
            loaded(data[:end])


def test_large_texts_and_bytes_are_read_across_chunks():
    value = ["a" * 700_000, b"b" * 300_000, "é" * 400_000, *range(70_000), "c" * 262_144, b"d" * 262_145]
    for protocol in (2, 5):
        assert value_of(pickle.dumps(value, protocol)) == value


def test_persistent_ids_go_to_whoever_reads():
    assert value_of(whole(text("a") + PERSID), persistent=lambda key: f"<{key}>") == "<a>"
    assert value_of(whole(text("a") + PERSID)).args == ("a",)


def test_bytes_of_a_storage_go_to_whoever_reads_and_bring_their_names():
    inner = loaded(whole(call(name("m", "f"), text("x"))))
    data = whole(call(name("torch.storage", "_load_from_bytes"), b"C\x01s"))
    found = loaded(data, nested=lambda _: inner)
    assert found.value is inner.value
    assert found.uses["m.f"].arguments == "'x'"
    assert found.uses["torch.storage._load_from_bytes"].times_called == 0


def test_keys_are_safe_from_collisions():
    value = value_of(pickle.dumps({(1, "a"): 1, (2, "b"): 2}))
    assert all(type(key) is TupleKey for key in value)
    assert value[TupleKey((1, "a"))] == 1


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_a_pickle_that_needs_more_memory_than_allowed_is_refused():
    data = pickle.dumps(list(range(1000, 50_000)))
    with pytest.raises(RefusedError, match="more than 1 MB of memory"):
        loaded(data, limits=Limits(memory=1 << 20))
    assert len(value_of(data, limits=Limits(memory=8 << 20))) == 49_000


def test_a_pickle_that_takes_more_time_than_allowed_is_refused():
    with pytest.raises(RefusedError, match="more than 0 s of computing time"):
        loaded(whole(NONE * 10_000), limits=Limits(seconds=0))


def test_a_million_tensors_worth_of_state_is_within_the_ordinary_budget():
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "params": list(range(200_000))}
    state = {index: {"step": 1.0, "exp_avg": None, "exp_avg_sq": None} for index in range(30_000)}
    found = value_of(pickle.dumps({"state": state, "param_groups": [copy.copy(group) for _ in range(4)]}, 2))
    assert len(found["state"]) == 30_000


_RECORD = name("m", "f") + put(0) + POP
_TEXT = b"\x8c\x09"
FLOODS = {
    "none": NONE,
    "int of 4 bytes": number(1 << 20),
    "int of 2 bytes": b"M\x01\x02",
    "int of 8 bytes": b"\x8a\x08" + b"\x11" * 8,
    "int of 255 bytes": b"\x8a\xff" + b"\x11" * 255,
    "int of 8000 bytes": b"\x8b" + struct.pack("<i", 8000) + b"\x11" * 8000,
    "int as text": b"I1234567\n",
    "int of 4000 digits": b"I" + b"9" * 4000 + b"\n",
    "long as text": b"L1234567890123L\n",
    "float": real(1.5),
    "float as text": b"F1.5\n",
    "short text": text("abcdefgh"),
    "short wide text": text("abc\U0001f600"),
    "text of one wide character": text("a" * 100 + "\U0001f600"),
    "text of 100000": text("a" * 100_000),
    "wide text of 100000": text("a" * 100_000 + "\U0001f600"),
    "line of text": b"Vabcdefgh\n",
    "line of wide text": b"V" + b"a" * 300 + b"\\U0001f600\n",
    "quoted text": b"S'abcdefgh'\n",
    "old text": b"U\x08abcdefgh",
    "bytes": b"C\x08abcdefgh",
    "bytes of 100000": b"B" + struct.pack("<I", 100_000) + b"a" * 100_000,
    "empty list": EMPTY_LIST,
    "list of one": EMPTY_LIST + NONE + b"a",
    "list of five": EMPTY_LIST + MARK + NONE * 5 + b"e",
    "list from a mark": MARK + NONE * 5 + b"l",
    "empty dict": EMPTY_DICT,
    "dict of one": EMPTY_DICT + NONE + NONE + SETITEM,
    "dict from a mark": MARK + b"K\1NK\2NK\3N" + b"d",
    "empty set": b"\x8f",
    "set of one": b"\x8f" + MARK + NONE + b"\x90",
    "frozenset of one": MARK + NONE + b"\x91",
    "tuple of one": NONE + b"\x85",
    "tuple of two": NONE + NONE + b"\x86",
    "tuple of three": NONE + NONE + NONE + b"\x87",
    "tuple of ten": MARK + NONE * 10 + b"t",
    "record": get(0) + EMPTY_TUPLE + REDUCE,
    "record with an item": get(0) + EMPTY_TUPLE + REDUCE + NONE + b"a",
    "record with a pair": get(0) + EMPTY_TUPLE + REDUCE + NONE + NONE + SETITEM,
    "record with a state": get(0) + EMPTY_TUPLE + REDUCE + EMPTY_DICT + BUILD,
    "object": MARK + get(0) + b"o",
    "instance": MARK + b"im\nf\n",
    "call of a record": get(0) + EMPTY_TUPLE + REDUCE + EMPTY_TUPLE + REDUCE,
    "new object with keywords": get(0) + EMPTY_TUPLE + EMPTY_DICT + b"\x92",
    "persistent id": NONE + PERSID,
    "stored in the memo": NONE + MEMOIZE,
}  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
def test_what_an_operation_costs_is_no_less_than_what_it_takes(flood):
    budget = 1 << 20
    unit = FLOODS[flood]
    data = PROTO4 + _RECORD + unit * (4 * budget // max(len(unit) // 2, 8)) + STOP
    _costs_no_more_than(data, budget)


SERIES = {
    "names": lambda i: name("module", f"name{i}") + POP,
    "long names": lambda i: name("m" * 2000, f"{i}") + POP,
    "wide names": lambda i: text("\U0001f600" + "m" * 1000) + text(f"{i}") + b"\x93" + POP,
    "names called with wide text": lambda i: name("m", f"{i}") + get(1) + REDUCE + POP,
    "memo entries": lambda i: b"r" + struct.pack("<I", i),
    "entries of a dict": lambda i: number(1000 + i) + NONE + SETITEM,
    "tuples as keys": lambda i: number(1000 + i) + b"\x85" + NONE + SETITEM,
    "long tuples as keys": lambda i: tupled(NONE * 60, number(1000 + i)) + NONE + SETITEM,
    "members of a set": lambda i: MARK + number(1000 + i) + b"\x90",
}


@pytest.mark.parametrize("series", SERIES)
def test_what_a_growing_thing_costs_is_no_less_than_what_it_takes(series):
    budget = 1 << 20
    start = b"\x8f" if series == "members of a set" else EMPTY_DICT
    arguments = tupled(text("\U0001f600" * 100), text("a" * 400)) + put(1) + POP
    data = PROTO4 + arguments + start + b"".join(map(SERIES[series], range(21_000))) + STOP
    _costs_no_more_than(data, budget)


def _costs_no_more_than(data, budget):
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match=r"MB of memory|imports more than"):
            loaded(data, limits=Limits(budget, 60.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * budget + 600_000  # two chunks of the file come on top
