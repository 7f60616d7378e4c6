"""A pickle machine that can only build data: no import, no call, no attribute of anything that the file names.

Every operation costs an estimate of the memory that it makes Python allocate; a pickle that would need more than its
budget of memory or of CPU time is refused. Opcodes and their meaning: the comments of CPython's pickletools.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gradforensics.untrusted.files import Opened, RefusedError
from gradforensics.untrusted.inert import (
    CALLS,
    Buildable,
    Global,
    Record,
    Tensor,
    call,
    copied,
    describe,
    safe_key,
    width,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one pickle may cost. memory: estimated bytes of everything it builds; seconds: of CPU time."""

    memory: int = 160 << 20
    seconds: float = 4.0


ORDINARY = Limits()
NESTED = "torch.storage._load_from_bytes"  # how a tensor stands in a pickle that torch.save did not write
_GETATTR = ("builtins.getattr", "__builtin__.getattr")
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
TAKEN_APART = frozenset((NESTED, *_GETATTR))  # calls that are not counted where the machine can see what they lead to
_CHUNK = 1 << 18
_CLOCK_EVERY = 1 << 11
_MAX_NAME = 4096
_MAX_DIGITS = 4000
_MAX_LONG = 8192
_MAX_MARKS = 100_000
_MAX_NAMES = 20_000
_LARGE_TEXT = 1 << 16
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


@dataclass(slots=True)
class Use:
    """How a pickle uses a name that loading it would import. called: also by setting state or attributes."""

    times_called: int = 0
    arguments: str = ""


@dataclass(slots=True)
class Loaded:
    """The value of a pickle, the byte behind its end, and every name in it that is none of plain data."""

    value: Any
    end: int
    uses: dict[str, Use] = field(default_factory=dict)


class _Feed:
    """The bytes of the pickle, read in chunks from a position on."""

    def __init__(self, opened: Opened, start: int, end: int) -> None:
        self._opened, self._next, self._end = opened, start, end
        self._data, self._at = b"", 0

    @property
    def position(self) -> int:
        return self._next - len(self._data) + self._at

    def _fill(self, count: int) -> None:
        left = len(self._data) - self._at
        if count - left > self._end - self._next:
            raise RefusedError(f"the pickle breaks off at byte {self._end}")
        size = min(max(count - left, _CHUNK), self._end - self._next)
        self._data = self._data[self._at :] + self._opened.read(self._next, size)
        self._next, self._at = self._next + size, 0

    def byte(self) -> int:
        if self._at >= len(self._data):
            self._fill(1)
        self._at += 1
        return self._data[self._at - 1]

    def take(self, count: int) -> bytes:
        if count > _CHUNK:  # past the buffer, so that no second copy is made
            start = self.position
            if count > self._end - start:
                raise RefusedError(f"the pickle breaks off at byte {self._end}")
            self._data, self._at, self._next = b"", 0, start + count
            return self._opened.read(start, count)
        if self._at + count > len(self._data):
            self._fill(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def line(self) -> bytes:
        while (found := self._data.find(b"\n", self._at, self._at + _MAX_NAME)) < 0:
            have = len(self._data) - self._at
            if have >= _MAX_NAME:
                raise RefusedError("a line in a pickle that is longer than a name can be")
            self._fill(have + 1)
        return self.take(found + 1 - self._at)[:-1]

    def left(self) -> int:
        return self._end - self.position


_Operation = Callable[["_Machine"], None]
_OPERATIONS: list[_Operation | None] = [None] * 256
_COST = [0] * 256


def _operation(code: bytes, cost: int = 8) -> Callable[[_Operation], _Operation]:
    """Register the function for an opcode; cost: estimated bytes that it allocates, beside what it adds itself."""

    def register(function: _Operation) -> _Operation:
        _OPERATIONS[code[0]] = function
        _COST[code[0]] = cost
        return function

    return register


class _Stop(Exception):  # noqa: N818  no error: how the STOP opcode leaves the loop
    pass


class _Machine:
    def __init__(
        self,
        feed: _Feed,
        limits: Limits,
        persistent: Callable[[Any], Any] | None,
        nested: Callable[[bytes], Loaded] | None,
    ) -> None:
        self.feed, self.limits, self.persistent, self.nested = feed, limits, persistent, nested
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.globals: dict[tuple[str, str], Global] = {}
        self.uses: dict[str, Use] = {}
        self.budget = limits.memory

    def run(self) -> Any:
        self.deadline = time.thread_time() + self.limits.seconds
        byte, operations, cost = self.feed.byte, _OPERATIONS, _COST
        try:
            while True:
                for _ in range(_CLOCK_EVERY):
                    code = byte()
                    operation = operations[code]
                    if operation is None:
                        raise RefusedError(f"{code:#04x} at byte {self.feed.position - 1} is no pickle opcode")
                    self.budget -= cost[code]
                    operation(self)
                    if self.budget < 0:
                        self.spend(0)
                self.check_time()
        except _Stop:
            return self.pop()
        except (UnicodeDecodeError, ValueError, struct.error, OverflowError) as error:
            at = self.feed.position
            raise RefusedError(f"no valid pickle at byte {at} ({type(error).__name__})") from None

    def check_time(self) -> None:
        if time.thread_time() > self.deadline:
            raise RefusedError(f"the pickle takes more than {self.limits.seconds:g} s of computing time")

    # -- what the operations use --------------------------------------------------------------------------------------

    def spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise RefusedError(f"the pickle would need more than {self.limits.memory >> 20} MB of memory")

    def reserve(self, size: int) -> None:
        """What is needed for a moment only must fit into the budget too."""
        self.spend(size)
        self.budget += size

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or (self.marks and len(self.stack) <= self.marks[-1]):
            raise RefusedError("a pickle that takes from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack:
            raise RefusedError("a pickle that takes from an empty stack")
        return self.stack[-1]

    def pop_mark(self) -> list[Any]:
        if not self.marks:
            raise RefusedError("a pickle that takes up to a mark where none is")
        start = self.marks.pop()
        self.reserve(16 * (len(self.stack) - start))
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def raw(self, size: int) -> bytes:
        if size > self.feed.left():
            raise RefusedError(f"a text of {size} bytes where {self.feed.left()} are left")
        self.spend(size)
        return self.feed.take(size)

    def text(self, size: int, encoding: str = "utf-8", errors: str = "surrogatepass") -> str:
        if size > self.feed.left():
            raise RefusedError(f"a text of {size} bytes where {self.feed.left()} are left")
        if size > _LARGE_TEXT:
            self.reserve(5 * size)  # its bytes, and 4 bytes for each where one character needs them
        return self.decoded(self.feed.take(size), encoding, errors)

    def decoded(self, raw: bytes, encoding: str, errors: str = "strict") -> str:
        value = raw.decode(encoding, errors)
        self.spend(width(value))
        return value

    def remember(self, index: int) -> None:
        self.memo[index] = self.top()

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise RefusedError("a pickle that recalls what it never stored")
        self.push(self.memo[index])

    def named(self, module: Any, name: Any) -> Global:
        if not isinstance(module, str) or not isinstance(name, str) or len(module) + len(name) > _MAX_NAME:
            raise RefusedError("an import whose name is no text")
        known = self.globals.get((module, name))
        if known is None:
            if len(self.globals) >= _MAX_NAMES:
                raise RefusedError(f"a pickle that imports more than {_MAX_NAMES} names")
            path = f"{module}.{name}"
            self.spend(700 + 2 * width(path))
            known = self.globals[module, name] = Global(module, name)
            self.uses.setdefault(path, Use())
        return known

    def called(self, function: Any, args: Any) -> Any:
        if not isinstance(args, tuple):
            raise RefusedError("a call whose arguments are no tuple")
        if not isinstance(function, Global):
            return Record(function, args)
        path = function.path
        if path == NESTED and self.nested is not None and len(args) == 1 and isinstance(args[0], bytes):
            return self.inner(self.nested(args[0]))
        if path in _GETATTR and len(args) == 2 and isinstance(args[0], Global) and isinstance(args[1], str):
            return self.named(args[0].module, f"{args[0].name}.{args[1]}")  # how a nested class or an enum is pickled
        self.note(function, args)
        if path == _FROM_TYPE and len(args) > 2 and isinstance(args[0], Global) and isinstance(args[2], tuple):
            self.note(args[0], args[2])  # it would call its first argument
        if path in CALLS and not path.startswith("torch._"):  # the builders of tensors copy nothing
            self.spend(copied(args))
        return call(function, args)

    def inner(self, loaded: Loaded) -> Any:
        """The value of a pickle inside of this one, whose names count as names of this one."""
        self.check_time()
        for name, use in loaded.uses.items():
            known = self.uses.setdefault(name, Use())
            known.arguments = known.arguments if known.times_called else use.arguments
            known.times_called += use.times_called
            self.spend(700)
        return loaded.value

    def note(self, function: Global, args: Any) -> None:
        use = self.uses[function.path]
        use.times_called += 1
        if use.times_called == 1:
            use.arguments = describe(args)
            self.spend(width(use.arguments))

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if len(items) % 2:
            raise RefusedError("a dictionary with a key and no value")
        self.spend(50 * len(items))
        if isinstance(target, dict):
            for i in range(0, len(items), 2):
                target[safe_key(items[i])] = items[i + 1]
        elif isinstance(target, Record):
            target.pairs += zip(items[::2], items[1::2], strict=True)
        else:
            raise RefusedError(f"a key and value for a {type(target).__name__}")

    def append(self, items: list[Any]) -> None:
        target = self.top()
        self.spend(2 * len(items))  # its slot was paid for when it was pushed
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Record):
            target.items += items
        else:
            raise RefusedError(f"an item for a {type(target).__name__}")

    def add(self, items: list[Any]) -> None:
        target = self.top()
        self.spend(80 * len(items))
        if isinstance(target, set):
            target.update(safe_key(item) for item in items)
        elif isinstance(target, Record):
            target.items += items
        else:
            raise RefusedError(f"a member for a {type(target).__name__}")

    def build(self, state: Any) -> None:
        target = self.top()
        if isinstance(target, Buildable):
            self.spend(copied(state))
            target.build(state)
        elif isinstance(target, Record):
            target.state = state
        elif isinstance(target, Global):
            setter = self.named(target.module, f"{target.name}.__setstate__")  # attributes of a class or function
            self.note(setter, tuple(state) if isinstance(state, dict) else (state,))
        elif not isinstance(target, (dict, Tensor, set, str)):
            raise RefusedError(f"a state for a {type(target).__name__}")

    def persist(self, identifier: Any) -> Any:
        return (
            Record(Global("", "persistent id"), (identifier,))
            if self.persistent is None
            else self.persistent(identifier)
        )


# -- plain values -----------------------------------------------------------------------------------------------------


@_operation(b"N")
def _none(m: _Machine) -> None:
    m.push(None)


@_operation(b"\x88")
def _true(m: _Machine) -> None:
    m.push(True)


@_operation(b"\x89")
def _false(m: _Machine) -> None:
    m.push(False)


@_operation(b"K")
def _int1(m: _Machine) -> None:
    m.push(m.feed.byte())


@_operation(b"M", 40)
def _int2(m: _Machine) -> None:
    m.push(int.from_bytes(m.feed.take(2), "little"))


@_operation(b"J", 40)
def _int4(m: _Machine) -> None:
    m.push(int.from_bytes(m.feed.take(4), "little", signed=True))


@_operation(b"\x8a", 80)
def _long1(m: _Machine) -> None:
    size = m.feed.byte()
    m.spend(size)
    m.push(int.from_bytes(m.feed.take(size), "little", signed=True))


@_operation(b"\x8b", 80)
def _long4(m: _Machine) -> None:
    size = int.from_bytes(m.feed.take(4), "little", signed=True)
    if not 0 <= size <= _MAX_LONG:
        raise RefusedError(f"an integer of {size} bytes")
    m.spend(size)
    m.push(int.from_bytes(m.feed.take(size), "little", signed=True))


@_operation(b"I", 40)
def _int_text(m: _Machine) -> None:
    text = m.feed.line()
    m.push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else _digits(m, text))


@_operation(b"L", 40)
def _long_text(m: _Machine) -> None:
    m.push(_digits(m, m.feed.line().removesuffix(b"L")))


def _digits(m: _Machine, text: bytes) -> int:
    if len(text) > _MAX_DIGITS:
        raise RefusedError(f"an integer of {len(text)} digits")
    m.spend(len(text) // 2)
    return int(text)


@_operation(b"G", 40)
def _float8(m: _Machine) -> None:
    m.push(struct.unpack(">d", m.feed.take(8))[0])


@_operation(b"F", 40)
def _float_text(m: _Machine) -> None:
    m.push(float(m.feed.line()))


@_operation(b"X", 72)
def _unicode(m: _Machine) -> None:
    m.push(m.text(int.from_bytes(m.feed.take(4), "little")))


@_operation(b"\x8c", 72)
def _unicode_short(m: _Machine) -> None:
    m.push(m.text(m.feed.byte()))


@_operation(b"\x8d", 72)
def _unicode8(m: _Machine) -> None:
    m.push(m.text(int.from_bytes(m.feed.take(8), "little")))


@_operation(b"V", 72)
def _unicode_text(m: _Machine) -> None:
    m.push(m.decoded(m.feed.line(), "raw-unicode-escape"))


@_operation(b"S", 72)
def _string_text(m: _Machine) -> None:
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
def _string_short(m: _Machine) -> None:
    m.push(m.text(m.feed.byte(), "latin1", "strict"))


@_operation(b"T", 72)
def _string(m: _Machine) -> None:
    m.push(m.text(_length(m), "latin1", "strict"))


def _length(m: _Machine) -> int:
    size = int.from_bytes(m.feed.take(4), "little", signed=True)
    if size < 0:
        raise RefusedError("a text of negative length")
    return size


@_operation(b"C", 60)
def _bytes_short(m: _Machine) -> None:
    m.push(m.raw(m.feed.byte()))


@_operation(b"B", 60)
def _bytes(m: _Machine) -> None:
    m.push(m.raw(int.from_bytes(m.feed.take(4), "little")))


@_operation(b"\x8e", 60)
@_operation(b"\x96", 60)
def _bytes8(m: _Machine) -> None:
    m.push(m.raw(int.from_bytes(m.feed.take(8), "little")))


# -- containers -------------------------------------------------------------------------------------------------------


@_operation(b"(", 40)
def _mark(m: _Machine) -> None:
    if len(m.marks) >= _MAX_MARKS:
        raise RefusedError(f"more than {_MAX_MARKS} marks")
    m.marks.append(len(m.stack))


@_operation(b")")
def _empty_tuple(m: _Machine) -> None:
    m.push(())


@_operation(b"t", 60)
def _tuple(m: _Machine) -> None:
    m.push(tuple(m.pop_mark()))


@_operation(b"\x85", 64)
def _tuple1(m: _Machine) -> None:
    m.push((m.pop(),))


@_operation(b"\x86", 72)
def _tuple2(m: _Machine) -> None:
    second = m.pop()
    m.push((m.pop(), second))


@_operation(b"\x87", 80)
def _tuple3(m: _Machine) -> None:
    third, second = m.pop(), m.pop()
    m.push((m.pop(), second, third))


@_operation(b"]", 80)
def _empty_list(m: _Machine) -> None:
    m.push([])


@_operation(b"l", 80)
def _list(m: _Machine) -> None:
    m.push(m.pop_mark())


@_operation(b"}", 80)
def _empty_dict(m: _Machine) -> None:
    m.push({})


@_operation(b"d", 80)
def _dict(m: _Machine) -> None:
    items = m.pop_mark()
    m.push({})
    m.set_items(items)


@_operation(b"\x8f", 240)
def _empty_set(m: _Machine) -> None:
    m.push(set())


@_operation(b"\x91", 240)
def _frozenset(m: _Machine) -> None:
    items = m.pop_mark()
    m.spend(80 * len(items))
    m.push(frozenset(safe_key(item) for item in items))


@_operation(b"s")
def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    m.set_items([key, value])


@_operation(b"u")
def _set_items(m: _Machine) -> None:
    m.set_items(m.pop_mark())


@_operation(b"a")
def _append(m: _Machine) -> None:
    m.append([m.pop()])


@_operation(b"e")
def _appends(m: _Machine) -> None:
    m.append(m.pop_mark())


@_operation(b"\x90")
def _add_items(m: _Machine) -> None:
    m.add(m.pop_mark())


# -- names and calls, none of which is followed -----------------------------------------------------------------------


@_operation(b"c")
def _global(m: _Machine) -> None:
    m.push(m.named(m.feed.line().decode(), m.feed.line().decode()))


@_operation(b"\x93")
def _stack_global(m: _Machine) -> None:
    name, module = m.pop(), m.pop()
    m.push(m.named(module, name))


@_operation(b"R", 250)
def _reduce(m: _Machine) -> None:
    args, function = m.pop(), m.pop()
    m.push(m.called(function, args))


@_operation(b"\x81", 250)
def _new_object(m: _Machine) -> None:
    args, cls = m.pop(), m.pop()
    m.push(m.called(cls, args))


@_operation(b"\x92", 250)
def _new_object_ex(m: _Machine) -> None:
    keywords, args, cls = m.pop(), m.pop(), m.pop()
    made = m.called(cls, args)
    if isinstance(made, Record) and isinstance(keywords, dict):
        made.state = keywords
    m.push(made)


@_operation(b"i", 250)
def _instance(m: _Machine) -> None:
    function = m.named(m.feed.line().decode(), m.feed.line().decode())
    m.push(m.called(function, tuple(m.pop_mark())))


@_operation(b"o", 250)
def _object(m: _Machine) -> None:
    items = m.pop_mark()
    if not items:
        raise RefusedError("an object without a class")
    m.push(m.called(items[0], tuple(items[1:])))


@_operation(b"b")
def _build(m: _Machine) -> None:
    m.build(m.pop())


def _extension(m: _Machine, size: int) -> None:
    code = int.from_bytes(m.feed.take(size), "little")
    m.push(m.named("copyreg", f"extension.{code}"))


@_operation(b"\x82")
def _extension1(m: _Machine) -> None:
    _extension(m, 1)


@_operation(b"\x83")
def _extension2(m: _Machine) -> None:
    _extension(m, 2)


@_operation(b"\x84")
def _extension4(m: _Machine) -> None:
    _extension(m, 4)


@_operation(b"Q", 350)
def _persistent(m: _Machine) -> None:
    m.push(m.persist(m.pop()))


@_operation(b"P", 350)
def _persistent_text(m: _Machine) -> None:
    m.push(m.persist(m.feed.line().decode()))


# -- the memo, the stack, the frame of it all -------------------------------------------------------------------------


@_operation(b"q", 110)
def _put1(m: _Machine) -> None:
    m.remember(m.feed.byte())


@_operation(b"r", 110)
def _put4(m: _Machine) -> None:
    m.remember(int.from_bytes(m.feed.take(4), "little"))


@_operation(b"p", 110)
def _put_text(m: _Machine) -> None:
    m.remember(_memo_number(m))


@_operation(b"\x94", 110)
def _memoize(m: _Machine) -> None:
    m.remember(len(m.memo))


@_operation(b"h")
def _get1(m: _Machine) -> None:
    m.recall(m.feed.byte())


@_operation(b"j")
def _get4(m: _Machine) -> None:
    m.recall(int.from_bytes(m.feed.take(4), "little"))


@_operation(b"g")
def _get_text(m: _Machine) -> None:
    m.recall(_memo_number(m))


def _memo_number(m: _Machine) -> int:
    number = _digits(m, m.feed.line())
    if not 0 <= number < 1 << 32:
        raise RefusedError("a memo number out of range")
    return number


@_operation(b"0")
def _pop(m: _Machine) -> None:
    if m.marks and len(m.stack) == m.marks[-1]:
        m.marks.pop()
    else:
        m.pop()


@_operation(b"1")
def _pop_mark(m: _Machine) -> None:
    m.pop_mark()


@_operation(b"2")
def _duplicate(m: _Machine) -> None:
    m.push(m.top())


@_operation(b"\x80")
def _protocol(m: _Machine) -> None:
    number = m.feed.byte()
    if number > 5:
        raise RefusedError(f"pickle protocol {number} is unknown")


@_operation(b"\x95")
def _frame(m: _Machine) -> None:
    size = int.from_bytes(m.feed.take(8), "little")
    if size > m.feed.left():
        raise RefusedError(f"a frame of {size} bytes where {m.feed.left()} are left")


@_operation(b"\x97")
@_operation(b"\x98")
def _buffer(_: _Machine) -> None:
    raise RefusedError("a pickle whose buffers are kept outside of it")


@_operation(b".")
def _stop(_: _Machine) -> None:
    raise _Stop


def load(
    opened: Opened,
    start: int = 0,
    end: int | None = None,
    *,
    limits: Limits = ORDINARY,
    persistent: Callable[[Any], Any] | None = None,
    nested: Callable[[bytes], Loaded] | None = None,
) -> Loaded:
    """Read one pickle from byte `start` on, up to byte `end` at most, as data. Raises RefusedError.

    persistent: what a persistent id (torch's storages) becomes; without it a Record. nested: what the bytes of a
    storage inside of the pickle become; without it a Record.
    """
    feed = _Feed(opened, start, opened.size if end is None else end)
    machine = _Machine(feed, limits, persistent, nested)
    try:
        value = machine.run()
    except RefusedError as error:  # loading it would have carried out whatever stands before
        error.uses = {**error.uses, **machine.uses}
        raise
    return Loaded(value, feed.position, machine.uses)
