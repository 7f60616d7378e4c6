"""The state of the pickle machine, its budgets, and what its operations do with them; see `pickles`."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gradforensics.untrusted.files import DamagedError, Opened, RefusedError
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


@dataclass(frozen=True)
class Limits:
    """What one pickle may cost. memory: estimated bytes of everything it builds; seconds: of CPU time."""

    memory: int = 160 << 20
    seconds: float = 4.0

    @classmethod
    def for_size(cls, size: int) -> Limits:
        """For files of nothing but structure: what `size` bytes of real ones cost at most, and no less than usual.

        Measured: the .metadata of distributed checkpoints 36 estimated bytes and 0.5 us of CPU time per byte, dumps of
        the Flight Recorder 33 bytes.
        """
        return cls(max(cls.memory, 45 * size), max(cls.seconds, 1.5e-6 * size))


ORDINARY = Limits()
NESTED = "torch.storage._load_from_bytes"  # how a tensor stands in a pickle that torch.save did not write
_GETATTR = ("builtins.getattr", "__builtin__.getattr")
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
TAKEN_APART = frozenset((NESTED, *_GETATTR))  # calls that are not counted where the machine can see what they lead to
_CHUNK = 1 << 18
_CLOCK_EVERY = 1 << 11
_MAX_NAME = 4096
_MAX_NAMES = 20_000
_LARGE_TEXT = 1 << 16


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


class Feed:
    """The bytes of the pickle, read in chunks from a position on."""

    def __init__(self, opened: Opened, start: int, end: int) -> None:
        self._opened, self._next, self._end = opened, start, end
        self._data, self._at = b"", 0

    @property
    def position(self) -> int:
        """Byte of the file at which the next one is read."""
        return self._next - len(self._data) + self._at

    def _fill(self, count: int) -> None:
        left = len(self._data) - self._at
        if count - left > self._end - self._next:
            raise DamagedError("cut", f"the pickle breaks off at byte {self._end}")
        size = min(max(count - left, _CHUNK), self._end - self._next)
        self._data = self._data[self._at :] + self._opened.read(self._next, size)
        self._next, self._at = self._next + size, 0

    def byte(self) -> int:
        """The next byte."""
        if self._at >= len(self._data):
            self._fill(1)
        self._at += 1
        return self._data[self._at - 1]

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > _CHUNK:  # past the buffer, so that no second copy is made
            start = self.position
            if count > self._end - start:
                raise DamagedError("cut", f"the pickle breaks off at byte {self._end}")
            self._data, self._at, self._next = b"", 0, start + count
            return self._opened.read(start, count)
        if self._at + count > len(self._data):
            self._fill(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def line(self) -> bytes:
        """The next line without its end."""
        while (found := self._data.find(b"\n", self._at, self._at + _MAX_NAME)) < 0:
            have = len(self._data) - self._at
            if have >= _MAX_NAME:
                raise RefusedError("a line in a pickle that is longer than a name can be")
            self._fill(have + 1)
        return self.take(found + 1 - self._at)[:-1]

    def left(self) -> int:
        """Bytes that are left."""
        return self._end - self.position


class Stop(Exception):  # noqa: N818  no error
    """How the STOP opcode leaves the loop."""


class Machine:
    """Stack, marks, memo and budgets of one pickle; `uses`: every name in it that loading would import."""

    def __init__(
        self,
        feed: Feed,
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

    def run(self, operations: Sequence[Operation | None], cost: Sequence[int]) -> Any:
        """Carry out operations until one raises Stop; both tables by opcode. Raises RefusedError."""
        self.deadline = time.thread_time() + self.limits.seconds
        byte = self.feed.byte
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
        except Stop:
            return self.pop()
        except (UnicodeDecodeError, ValueError, struct.error, OverflowError) as error:
            at = self.feed.position
            raise RefusedError(f"no valid pickle at byte {at} ({type(error).__name__})") from None

    def check_time(self) -> None:
        """Refuse once the budget of CPU time is used up."""
        if time.thread_time() > self.deadline:
            raise RefusedError(f"the pickle takes more than {self.limits.seconds:g} s of computing time")

    # -- what the operations use --------------------------------------------------------------------------------------

    def spend(self, size: int) -> None:
        """Take `size` bytes from the budget of memory."""
        self.budget -= size
        if self.budget < 0:
            raise RefusedError(f"the pickle would need more than {self.limits.memory >> 20} MB of memory")

    def reserve(self, size: int) -> None:
        """What is needed for a moment only must fit into the budget too."""
        self.spend(size)
        self.budget += size

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the value on top; none below the last mark."""
        if not self.stack or (self.marks and len(self.stack) <= self.marks[-1]):
            raise RefusedError("a pickle that takes from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        """The value on top."""
        if not self.stack:
            raise RefusedError("a pickle that takes from an empty stack")
        return self.stack[-1]

    def pop_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        if not self.marks:
            raise RefusedError("a pickle that takes up to a mark where none is")
        start = self.marks.pop()
        self.reserve(16 * (len(self.stack) - start))
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def raw(self, size: int) -> bytes:
        """The next `size` bytes as a value."""
        if size > self.feed.left():
            raise RefusedError(f"a text of {size} bytes where {self.feed.left()} are left")
        self.spend(size)
        return self.feed.take(size)

    def text(self, size: int, encoding: str = "utf-8", errors: str = "surrogatepass") -> str:
        """The next `size` bytes as a text."""
        if size > self.feed.left():
            raise RefusedError(f"a text of {size} bytes where {self.feed.left()} are left")
        if size > _LARGE_TEXT:
            self.reserve(5 * size)  # its bytes, and 4 bytes for each where one character needs them
        return self.decoded(self.feed.take(size), encoding, errors)

    def decoded(self, raw: bytes, encoding: str, errors: str = "strict") -> str:
        """Bytes as a text, paid for by its width."""
        value = raw.decode(encoding, errors)
        self.spend(width(value))
        return value

    def remember(self, index: int) -> None:
        """Store the value on top under a memo number."""
        self.memo[index] = self.top()

    def recall(self, index: int) -> None:
        """Push what a memo number stands for."""
        if index not in self.memo:
            raise RefusedError("a pickle that recalls what it never stored")
        self.push(self.memo[index])

    def named(self, module: Any, name: Any) -> Global:
        """A name that loading would import."""
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
        """What a call becomes: data, or a record of it."""
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
        """Count a call of a name that loading would import."""
        use = self.uses[function.path]
        use.times_called += 1
        if use.times_called == 1:
            use.arguments = describe(args)
            self.spend(width(use.arguments))

    def set_items(self, items: list[Any]) -> None:
        """Keys and values for the value on top."""
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
        """Items for the value on top."""
        target = self.top()
        self.spend(2 * len(items))  # its slot was paid for when it was pushed
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Record):
            target.items += items
        else:
            raise RefusedError(f"an item for a {type(target).__name__}")

    def add(self, items: list[Any]) -> None:
        """Members for the value on top."""
        target = self.top()
        self.spend(80 * len(items))
        if isinstance(target, set):
            target.update(safe_key(item) for item in items)
        elif isinstance(target, Record):
            target.items += items
        else:
            raise RefusedError(f"a member for a {type(target).__name__}")

    def build(self, state: Any) -> None:
        """A state for the value on top."""
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
        """What a persistent id stands for."""
        return (
            Record(Global("", "persistent id"), (identifier,))
            if self.persistent is None
            else self.persistent(identifier)
        )


Operation: TypeAlias = Callable[[Machine], None]
