"""What calls become: data for the few builders that are known, records for the rest, and no key that collides."""

import math
from typing import Any

import numpy as np
import pytest

from gradforensics.untrusted.files import RefusedError
from gradforensics.untrusted.inert import (
    CALLS,
    Array,
    Global,
    Record,
    Storage,
    Tensor,
    TupleKey,
    call,
    copied,
    describe,
    dtype_of,
    make_tensor,
    safe_key,
    whole_numbers,
    width,
)


def called(path, *args):
    module, _, name = path.rpartition(".")
    return call(Global(module, name), args)


def storage(elements=12, dtype="float32", size=4):
    return Storage("0", dtype, elements * size, "cpu", offset=0)


def test_an_unknown_call_is_a_record_of_it():
    made = called("package.module.Class", 1, "a")
    assert isinstance(made, Record)
    assert (made.path, made.args, made.state) == ("package.module.Class", (1, "a"), None)


@pytest.mark.parametrize(
    ("path", "args", "expected"),
    [
        ("collections.OrderedDict", (), {}),
        ("collections.OrderedDict", ([["a", 1], ["b", 2]],), {"a": 1, "b": 2}),
        ("collections.Counter", ({"a": 2},), {"a": 2}),
        ("collections.defaultdict", (Global("builtins", "list"),), {}),
        ("builtins.set", ([1, 2],), {1, 2}),
        ("__builtin__.set", ([1, 2],), {1, 2}),
        ("builtins.frozenset", ((1,),), {1}),
        ("builtins.list", ((1, 2),), [1, 2]),
        ("builtins.tuple", ([1, 2],), (1, 2)),
        ("builtins.dict", ({"a": 1},), {"a": 1}),
        ("builtins.complex", (1.0, 2.0), 1 + 2j),
        ("builtins.bytes", (), b""),
        ("builtins.bytearray", (b"ab",), b"ab"),
        ("builtins.bytearray", ("\xff", "latin-1"), b"\xff"),
        ("_codecs.encode", ("\xe9", "latin1"), b"\xe9"),
        ("pathlib.PosixPath", ("/", "a", "b"), "/a/b"),
        ("torch.Size", ([2, 3],), (2, 3)),
        ("torch.device", ("cuda", 1), "cuda:1"),
        ("torch.serialization._get_layout", ("torch.strided",), "torch.strided"),
    ],
)
def test_builders_of_plain_data_are_carried_out(path, args, expected):
    assert called(path, *args) == expected


@pytest.mark.parametrize("path", sorted(CALLS))
@pytest.mark.parametrize(
    "args",
    [(), (None,), ("a",), (1, 2, 3, 4), ([],), ({},), (b"",), (math.inf, "x"), ((), (), (), ()), ([[]], 1, "a", b"")],
)
def test_a_builder_with_strange_arguments_answers_or_refuses(path, args):
    try:
        called(path, *args)
    except RefusedError as error:
        assert str(error)  # noqa: PT017  either outcome is right, another exception is not


def test_a_tensor_lies_inside_of_its_storage():
    made = make_tensor(storage(), 2, (2, 3), (3, 1))
    assert (made.dtype, made.offset, made.shape, made.stride) == ("float32", 2, (2, 3), (3, 1))
    assert make_tensor(storage(), 11, (1,), (5,)).shape == (1,)
    assert make_tensor(storage(0), 0, (0, 7), (7, 1)).shape == (0, 7)
    with pytest.raises(RefusedError, match="needs 52 bytes of a storage of 48"):
        make_tensor(storage(), 7, (2, 3), (3, 1))
    with pytest.raises(RefusedError, match="needs"):
        make_tensor(storage(), 0, (2**61, 2**61), (0, 1))


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((-1,), (1,), 0),
        ((1,), (-1,), 0),
        ((1,), (1,), -1),
        ((1,), (1,), 1 << 62),
        ((1,), (1,), 1.5),
        ((1, 1), (1,), 0),
        ((1.0,), (1,), 0),
        ((True,), (1,), 0),
        ("1", (1,), 0),
        ((1,) * 65, (1,) * 65, 0),
        ((1 << 62,), (0,), 0),
    ],
)
def test_a_tensor_with_impossible_numbers_is_refused(size, stride, offset):
    with pytest.raises(RefusedError):
        make_tensor(storage(), offset, size, stride)


def test_a_parameter_is_its_tensor():
    tensor = make_tensor(storage(), 0, (12,), (1,))
    assert called("torch._utils._rebuild_parameter", tensor, True, {}) is tensor
    assert tensor.requires_grad


def test_a_subclass_of_a_tensor_tells_its_name():
    inner: tuple[Any, ...] = (storage(), 0, (3,), (1,), False, {})
    rebuild, kind = Global("torch._utils", "_rebuild_tensor_v2"), Global("package", "Subclass")
    made = called("torch._tensor._rebuild_from_type_v2", rebuild, kind, inner, {})
    assert isinstance(made, Tensor)
    assert made.wrapped == "package.Subclass"


def test_nothing_but_a_tensor_is_built_for_a_subclass():
    made = called("torch._tensor._rebuild_from_type_v2", Global("builtins", "list"), Global("a", "B"), ([1],), None)
    assert isinstance(made, Record)


def test_a_typed_tensor_has_the_type_of_its_arguments():
    raw = Storage("0", "uint8", 16, "cpu", offset=0)
    made = called("torch._utils._rebuild_tensor_v3", raw, 0, (8,), (1,), False, {}, Global("torch", "uint16"))
    assert made.dtype == "uint16"
    assert dtype_of(Global("torch", "float")) == "float32"
    assert dtype_of(Global("numpy", "float32")) is None


def test_an_array_is_a_tensor_in_memory():
    data = np.arange(6, dtype=np.int16).reshape(2, 3)
    array = Array("int16", (2, 3), np.asfortranarray(data).tobytes(order="F"), fortran=True)
    tensor = array.tensor("test")
    assert (tensor.shape, tensor.stride, tensor.storage.nbytes) == ((2, 3), (1, 2), 12)


def test_the_attributes_of_a_record_are_those_of_its_state():
    cls = Global("a", "B")
    assert Record(cls, state={"x": 1}).get("x") == 1
    assert dict(Record(cls, state=({"x": 1}, {"y": 2})).attributes()) == {"x": 1, "y": 2}
    assert dict(Record(cls, state=(None, {"y": 2})).attributes()) == {"y": 2}
    assert dict(Record(cls, state=[1]).attributes()) == {}
    assert Record(Record(cls)).path == ""


@pytest.mark.parametrize("key", ["a", b"a", 1, 1.5, None, True, (1, "a"), Global("a", "b"), Record(Global("a", "b"))])
def test_ordinary_keys_are_keys(key):
    assert safe_key(key) == key
    assert {safe_key(key): 1}[safe_key(key)] == 1


@pytest.mark.parametrize(
    "key",
    [[], {}, set(), frozenset(), ((1,),), (1,) * 65, ("a" * 5000,), 1 << 60, -(1 << 61), 1j, Array(), storage()],
    ids=str,
)
def test_keys_whose_hash_could_be_chosen_or_costs_much_are_refused(key):
    with pytest.raises(RefusedError):
        safe_key(key)


def test_tuples_as_keys_are_equal_and_distinct_as_tuples_are():
    assert TupleKey((1, "a")) == TupleKey((1, "a"))
    assert TupleKey((1, "a")) != TupleKey((1, "b"))
    assert {TupleKey((1, "a")): 1} == {TupleKey((1, "a")): 1}
    # equal hashes of the parts do not make equal hashes of the tuples
    assert len({hash(TupleKey((n * (2**61 - 1),))) for n in range(1, 100)}) == 99


def test_whole_numbers_take_a_size_in_any_form():
    assert whole_numbers((1, 2), "size") == (1, 2)
    assert whole_numbers([1, 2], "size") == (1, 2)
    assert whole_numbers(Record(Global("torch", "Size"), ((3,),)), "size") == (3,)


def test_arguments_are_described_shortly_and_without_following_them():
    laughs: tuple[Any, ...] = ("lol",)
    for _ in range(100):
        laughs = (laughs,) * 10
    assert describe(["a", 1, None, b"x", 1.5, Global("os", "system"), Record(Global("m", "f")), [1], laughs]) == (
        "'a', 1, None, b'x', 1.5, os.system, m.f(...), list, tuple"
    )
    assert describe([1 << 70]) == "a huge integer"
    assert len(describe(["a" * 1000] * 1000)) < 300


def test_estimates_count_bytes_and_items():
    assert width("abc") == 3
    assert width("ab\u20ac") == 3 * 4 + 32
    assert copied(("abc", b"12", [1, 2], 5)) == 3 + 2 + 200
