"""The opcodes of pickle, protocols 0 to 5, as operations of the machine.

What each does: the comments of CPython's pickletools. None imports, calls or sets anything that the file names.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from gradforensics.untrusted.files import RefusedError
from gradforensics.untrusted.inert import Record, safe_key
from gradforensics.untrusted.machine import Machine, Operation, Stop

_MAX_DIGITS = 4000
_MAX_LONG = 8192
_MAX_MARKS = 100_000
_ESCAPE = re.compile(rb"""\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|[\\'"abfnrtv])""")
_ESCAPES = {
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}

OPERATIONS: list[Operation | None] = [None] * 256
COST = [0] * 256


def _operation(code: bytes, cost: int = 8) -> Callable[[Operation], Operation]:
    """Register the function for an opcode; cost: estimated bytes that it allocates, beside what it adds itself."""

    def register(function: Operation) -> Operation:
        OPERATIONS[code[0]] = function
        COST[code[0]] = cost
        return function

    return register


# -- plain values -----------------------------------------------------------------------------------------------------


@_operation(b"N")
def _none(m: Machine) -> None:
    m.push(None)


@_operation(b"\x88")
def _true(m: Machine) -> None:
    m.push(True)


@_operation(b"\x89")
def _false(m: Machine) -> None:
    m.push(False)


@_operation(b"K")
def _int1(m: Machine) -> None:
    m.push(m.feed.byte())


@_operation(b"M", 40)
def _int2(m: Machine) -> None:
    m.push(int.from_bytes(m.feed.take(2), "little"))


@_operation(b"J", 40)
def _int4(m: Machine) -> None:
    m.push(int.from_bytes(m.feed.take(4), "little", signed=True))


@_operation(b"\x8a", 80)
def _long1(m: Machine) -> None:
    size = m.feed.byte()
    m.spend(size)
    m.push(int.from_bytes(m.feed.take(size), "little", signed=True))


@_operation(b"\x8b", 80)
def _long4(m: Machine) -> None:
    size = int.from_bytes(m.feed.take(4), "little", signed=True)
    if not 0 <= size <= _MAX_LONG:
        raise RefusedError(f"an integer of {size} bytes")
    m.spend(size)
    m.push(int.from_bytes(m.feed.take(size), "little", signed=True))


@_operation(b"I", 40)
def _int_text(m: Machine) -> None:
    text = m.feed.line()
    m.push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else _digits(m, text))


@_operation(b"L", 40)
def _long_text(m: Machine) -> None:
    m.push(_digits(m, m.feed.line().removesuffix(b"L")))


def _digits(m: Machine, text: bytes) -> int:
    if len(text) > _MAX_DIGITS:
        raise RefusedError(f"an integer of {len(text)} digits")
    m.spend(len(text) // 2)
    return int(text)


@_operation(b"G", 40)
def _float8(m: Machine) -> None:
    m.push(struct.unpack(">d", m.feed.take(8))[0])


@_operation(b"F", 40)
def _float_text(m: Machine) -> None:
    m.push(float(m.feed.line()))


@_operation(b"X", 72)
def _unicode(m: Machine) -> None:
    m.push(m.text(int.from_bytes(m.feed.take(4), "little")))


@_operation(b"\x8c", 72)
def _unicode_short(m: Machine) -> None:
    m.push(m.text(m.feed.byte()))


@_operation(b"\x8d", 72)
def _unicode8(m: Machine) -> None:
    m.push(m.text(int.from_bytes(m.feed.take(8), "little")))


@_operation(b"V", 72)
def _unicode_text(m: Machine) -> None:
    m.push(m.decoded(m.feed.line(), "raw-unicode-escape"))


@_operation(b"S", 72)
def _string_text(m: Machine) -> None:
    line = m.feed.line()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise RefusedError("a text without its quotes")
    m.push(m.decoded(_ESCAPE.sub(_unescaped, line[1:-1]), "latin1"))


def _unescaped(found: re.Match[bytes]) -> bytes:
    """What one escape of Python's string literals stands for; a name could be hidden behind one."""
    code = found[1]
    if code[:1] == b"x":
        return bytes([int(code[1:], 16)])
    return bytes([int(code, 8) & 255]) if code.isdigit() else _ESCAPES[code]


@_operation(b"U", 72)
def _string_short(m: Machine) -> None:
    m.push(m.text(m.feed.byte(), "latin1", "strict"))


@_operation(b"T", 72)
def _string(m: Machine) -> None:
    m.push(m.text(_length(m), "latin1", "strict"))


def _length(m: Machine) -> int:
    size = int.from_bytes(m.feed.take(4), "little", signed=True)
    if size < 0:
        raise RefusedError("a text of negative length")
    return size


@_operation(b"C", 60)
def _bytes_short(m: Machine) -> None:
    m.push(m.raw(m.feed.byte()))


@_operation(b"B", 60)
def _bytes(m: Machine) -> None:
    m.push(m.raw(int.from_bytes(m.feed.take(4), "little")))


@_operation(b"\x8e", 60)
@_operation(b"\x96", 60)
def _bytes8(m: Machine) -> None:
    m.push(m.raw(int.from_bytes(m.feed.take(8), "little")))


# -- containers -------------------------------------------------------------------------------------------------------


@_operation(b"(", 40)
def _mark(m: Machine) -> None:
    if len(m.marks) >= _MAX_MARKS:
        raise RefusedError(f"more than {_MAX_MARKS} marks")
    m.marks.append(len(m.stack))


@_operation(b")")
def _empty_tuple(m: Machine) -> None:
    m.push(())


@_operation(b"t", 60)
def _tuple(m: Machine) -> None:
    m.push(tuple(m.pop_mark()))


@_operation(b"\x85", 64)
def _tuple1(m: Machine) -> None:
    m.push((m.pop(),))


@_operation(b"\x86", 72)
def _tuple2(m: Machine) -> None:
    second = m.pop()
    m.push((m.pop(), second))


@_operation(b"\x87", 80)
def _tuple3(m: Machine) -> None:
    third, second = m.pop(), m.pop()
    m.push((m.pop(), second, third))


@_operation(b"]", 80)
def _empty_list(m: Machine) -> None:
    m.push([])


@_operation(b"l", 80)
def _list(m: Machine) -> None:
    m.push(m.pop_mark())


@_operation(b"}", 80)
def _empty_dict(m: Machine) -> None:
    m.push({})


@_operation(b"d", 80)
def _dict(m: Machine) -> None:
    items = m.pop_mark()
    m.push({})
    m.set_items(items)


@_operation(b"\x8f", 240)
def _empty_set(m: Machine) -> None:
    m.push(set())


@_operation(b"\x91", 240)
def _frozenset(m: Machine) -> None:
    items = m.pop_mark()
    m.spend(80 * len(items))
    m.push(frozenset(safe_key(item) for item in items))


@_operation(b"s")
def _set_item(m: Machine) -> None:
    value, key = m.pop(), m.pop()
    m.set_items([key, value])


@_operation(b"u")
def _set_items(m: Machine) -> None:
    m.set_items(m.pop_mark())


@_operation(b"a")
def _append(m: Machine) -> None:
    m.append([m.pop()])


@_operation(b"e")
def _appends(m: Machine) -> None:
    m.append(m.pop_mark())


@_operation(b"\x90")
def _add_items(m: Machine) -> None:
    m.add(m.pop_mark())


# -- names and calls, none of which is followed -----------------------------------------------------------------------


@_operation(b"c")
def _global(m: Machine) -> None:
    m.push(m.named(m.feed.line().decode(), m.feed.line().decode()))


@_operation(b"\x93")
def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    m.push(m.named(module, name))


@_operation(b"R", 250)
def _reduce(m: Machine) -> None:
    args, function = m.pop(), m.pop()
    m.push(m.called(function, args))


@_operation(b"\x81", 250)
def _new_object(m: Machine) -> None:
    args, cls = m.pop(), m.pop()
    m.push(m.called(cls, args))


@_operation(b"\x92", 250)
def _new_object_ex(m: Machine) -> None:
    keywords, args, cls = m.pop(), m.pop(), m.pop()
    made = m.called(cls, args)
    if isinstance(made, Record) and isinstance(keywords, dict):
        made.state = keywords
    m.push(made)


@_operation(b"i", 250)
def _instance(m: Machine) -> None:
    function = m.named(m.feed.line().decode(), m.feed.line().decode())
    m.push(m.called(function, tuple(m.pop_mark())))


@_operation(b"o", 250)
def _object(m: Machine) -> None:
    items = m.pop_mark()
    if not items:
        raise RefusedError("an object without a class")
    m.push(m.called(items[0], tuple(items[1:])))


@_operation(b"b")
def _build(m: Machine) -> None:
    m.build(m.pop())


def _extension(m: Machine, size: int) -> None:
    code = int.from_bytes(m.feed.take(size), "little")
    m.push(m.named("copyreg", f"extension.{code}"))


@_operation(b"\x82")
def _extension1(m: Machine) -> None:
    _extension(m, 1)


@_operation(b"\x83")
def _extension2(m: Machine) -> None:
    _extension(m, 2)


@_operation(b"\x84")
def _extension4(m: Machine) -> None:
    _extension(m, 4)


@_operation(b"Q", 350)
def _persistent(m: Machine) -> None:
    m.push(m.persist(m.pop()))


@_operation(b"P", 350)
def _persistent_text(m: Machine) -> None:
    m.push(m.persist(m.feed.line().decode()))


# -- the memo, the stack, the frame of it all -------------------------------------------------------------------------


@_operation(b"q", 110)
def _put1(m: Machine) -> None:
    m.remember(m.feed.byte())


@_operation(b"r", 110)
def _put4(m: Machine) -> None:
    m.remember(int.from_bytes(m.feed.take(4), "little"))


@_operation(b"p", 110)
def _put_text(m: Machine) -> None:
    m.remember(_memo_number(m))


@_operation(b"\x94", 110)
def _memoize(m: Machine) -> None:
    m.remember(len(m.memo))


@_operation(b"h")
def _get1(m: Machine) -> None:
    m.recall(m.feed.byte())


@_operation(b"j")
def _get4(m: Machine) -> None:
    m.recall(int.from_bytes(m.feed.take(4), "little"))


@_operation(b"g")
def _get_text(m: Machine) -> None:
    m.recall(_memo_number(m))


def _memo_number(m: Machine) -> int:
    number = _digits(m, m.feed.line())
    if not 0 <= number < 1 << 32:
        raise RefusedError("a memo number out of range")
    return number


@_operation(b"0")
def _pop(m: Machine) -> None:
    if m.marks and len(m.stack) == m.marks[-1]:
        m.marks.pop()
    else:
        m.pop()


@_operation(b"1")
def _pop_mark(m: Machine) -> None:
    m.pop_mark()


@_operation(b"2")
def _duplicate(m: Machine) -> None:
    m.push(m.top())


@_operation(b"\x80")
def _protocol(m: Machine) -> None:
    number = m.feed.byte()
    if number > 5:
        raise RefusedError(f"pickle protocol {number} is unknown")


@_operation(b"\x95")
def _frame(m: Machine) -> None:
    size = int.from_bytes(m.feed.take(8), "little")
    if size > m.feed.left():
        raise RefusedError(f"a frame of {size} bytes where {m.feed.left()} are left")


@_operation(b"\x97")
@_operation(b"\x98")
def _buffer(_: Machine) -> None:
    raise RefusedError("a pickle whose buffers are kept outside of it")


@_operation(b".")
def _stop(_: Machine) -> None:
    raise Stop
