"""Malicious pickles: what calls code, and what hides that from scanners. None of it may do anything when it is read.

The facts (which names, which tricks) are those of the advisories on picklescan, fickling, modelscan and torch; the
bytes are put together here.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass

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
    PROTO2,
    PROTO4,
    PROTO5,
    REDUCE,
    SETITEM,
    STACK_GLOBAL,
    STOP,
    STORAGE,
    SYSTEM,
    call,
    evil,
    get,
    legacy,
    name,
    number,
    octets,
    put,
    stack_name,
    storage,
    tensor,
    text,
    torch_zip,
    tupled,
    whole,
)
from tests.untrusted.gadgets import GADGETS


@dataclass(frozen=True, slots=True)
class Case:
    """One file. make: its bytes; it gets a shell command that would leave a trace.

    refused: a regular expression that the refusal matches, "" where the file is read as data. danger, other: the names
    that must be listed as executable content, dangerous and not. notice: a regular expression for one notice.
    """

    file: str
    make: Callable[[str], bytes]
    refused: str = ""
    danger: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    notice: str = ""


def code(command: str) -> str:
    """Python source text that runs the command."""
    return f"__import__('os').system({command!r})"


# -- one call of a function that runs code ----------------------------------------------------------------------------


def _gadget(module: str, attribute: str, given: str) -> Callable[[str], bytes]:
    def make(command: str) -> bytes:
        arguments = {"command": (text(command),), "source": (text(code(command)),), "nothing": ()}[given]
        return torch_zip(whole(call(stack_name(module, attribute), *arguments), protocol=PROTO4))

    return make


CALLING = [
    Case(f"call-{module}.{attribute}-{source}.pt", _gadget(module, attribute, given), danger=(f"{module}.{attribute}",))
    for module, attribute, given, source in GADGETS
]


# -- the same call said in another way --------------------------------------------------------------------------------

_CALLED = ("posix.system",)


def _said(
    file: str,
    make: Callable[[str], bytes],
    *danger: str,
    refused: str = "",
    other: tuple[str, ...] = (),
    notice: str = "",
) -> Case:
    return Case(f"{file}.pt", lambda command: torch_zip(make(command)), refused, danger or _CALLED, other, notice)


def _plain(file: str, make: Callable[[str], bytes], *danger: str, refused: str = "", notice: str = "") -> Case:
    return Case(f"{file}.pkl", make, refused, danger or _CALLED, notice=notice)


def _joined(*parts: str) -> bytes:
    """ "".join([...]) of a module that was imported by a call: text that stands nowhere in the file."""
    module = call(name("importlib", "import_module"), text("builtins"))
    join = call(name("builtins", "getattr"), call(name("builtins", "getattr"), module, text("str")), text("join"))
    return call(join, text(""), MARK + b"".join(map(text, parts)) + b"l")


def _chain(command: str) -> bytes:
    module = call(name("builtins", "__import__"), text("os"))
    return whole(call(call(name("builtins", "getattr"), module, text("system")), text(command)))


def _class_state(state: bytes) -> bytes:
    return whole(name("collections", "OrderedDict") + EMPTY_TUPLE + REDUCE + state + BUILD)


def _confused_memo(_: str) -> bytes:
    said = (
        text("os")
        + put(0)
        + text("system")
        + put(1)
        + text("torch._utils")
        + MEMOIZE
        + text("_rebuild_tensor_v2")
        + MEMOIZE
    )
    return whole(said, get(0) + get(1) + STACK_GLOBAL, tupled(text("id")) + REDUCE, protocol=PROTO4)


def _memo_out_of_order(_: str) -> bytes:
    said = b"Vos\np2\n0Vsystem\np3\n0Vtorch\np0\n0VLongStorage\np1\n0"
    return said + b"g2\ng3\n\x93(Vid\ntR."


def _dict_subclass(command: str) -> bytes:
    made = call(name("package.module", "StateDict")) + EMPTY_DICT + text("__reduce__") + SYSTEM + SETITEM + BUILD
    return whole(made, MARK, text("weight"), call(SYSTEM, text(command)), b"u")


SAYING = [
    _said("say-inst", lambda c: whole(MARK, text(c), b"iposix\nsystem\n")),
    _said("say-obj", lambda c: whole(MARK, SYSTEM, text(c), b"o")),
    _said("say-obj-popped-GHSA-mxhj-88fx-4pcv", lambda c: whole(MARK, SYSTEM, text(c), b"o", POP, NONE)),
    _said("say-newobj", lambda c: whole(SYSTEM, tupled(text(c)), b"\x81")),
    _said("say-newobj-ex", lambda c: whole(SYSTEM, tupled(text(c)), EMPTY_DICT, b"\x92", protocol=PROTO4)),
    _said("say-extension-1", lambda _: whole(b"\x82\x01", EMPTY_TUPLE, REDUCE), "copyreg.extension.1"),
    _said("say-extension-2", lambda _: whole(b"\x83\x01\x01", EMPTY_TUPLE, REDUCE), "copyreg.extension.257"),
    _said("say-extension-4", lambda _: whole(b"\x84\xff\xff\xff\x7f"), "copyreg.extension.2147483647"),
    _said("say-getattr-of-import", _chain, "builtins.__import__", "builtins.getattr"),
    _said(
        "say-methodcaller-GHSA-955r-x9j8-7rhh",
        lambda c: whole(
            call(
                call(name("_operator", "methodcaller"), text("system"), text(c)),
                call(name("builtins", "__import__"), text("os")),
            )
        ),
        "_operator.methodcaller",
        "builtins.__import__",
    ),
    _said(
        "say-resolve-name-GHSA-vvpj-8cmc-gx39",
        lambda c: whole(call(call(name("pkgutil", "resolve_name"), text("os:system")), text(c))),
        "pkgutil.resolve_name",
    ),
    _said(
        "say-partial",
        lambda c: whole(call(call(name("functools", "partial"), SYSTEM), text(c))),
        "functools.partial",
        *_CALLED,
    ),
    _said(
        "say-getattr-of-a-name",
        lambda c: whole(call(call(name("builtins", "getattr"), name("site", "os"), text("system")), text(c))),
        "site.os",
        "site.os.system",
    ),
    _said("say-factory-of-defaultdict", lambda _: whole(call(name("collections", "defaultdict"), SYSTEM))),
    _said(
        "say-rebuild-from-type",
        lambda c: whole(
            call(name("torch._tensor", "_rebuild_from_type_v2"), SYSTEM, name("torch", "Tensor"), tupled(text(c)), NONE)
        ),
    ),
    _said(
        "say-memo-between",
        lambda c: (
            PROTO4
            + text("po")
            + put(0)
            + POP
            + text("posix")
            + put(1)
            + text("system")
            + put(2)
            + POP
            + POP
            + get(1)
            + get(2)
            + STACK_GLOBAL
            + tupled(text(c))
            + REDUCE
            + STOP
        ),
    ),
    _said("say-memo-of-two-kinds-picklescan-14", _confused_memo, "os.system"),
    _plain("say-memo-out-of-order-picklescan-22", _memo_out_of_order, "os.system"),
    _said(
        "say-memo-sparse",
        lambda c: whole(SYSTEM, b"r\xfe\xff\xff\x7f", POP, b"j\xfe\xff\xff\x7f", tupled(text(c)), REDUCE),
    ),
    _plain("say-texts-with-escapes", lambda _: b"S'po\\x73ix'\nS'\\163ystem'\n\x93(S'id'\ntR."),
    _plain("say-unicode-with-escapes", lambda _: b"V\\u0070osix\nV\\u0073ystem\n\x93(Vid\ntR."),
    _plain("say-with-protocol-0", lambda _: b"cposix\nsystem\n(S'id'\ntR."),
    _plain(
        "say-with-short-strings",
        lambda _: whole(b"U\x05posixU\x06system", STACK_GLOBAL, tupled(b"T\x02\0\0\0id"), REDUCE),
    ),
    _plain("say-first-operand-at-0-CVE-2025-71325", lambda _: b"S'posix'\nS'system'\n\x93(S'id'\ntR."),
    _plain(
        "say-behind-an-unusual-opcode-fickling-322", lambda c: whole(EMPTY_DICT, b"F1.0\n", POP, POP, evil(c)[2:-1])
    ),
    _plain("say-with-long-frames", lambda c: PROTO4 + b"\x95" + struct.pack("<Q", 3) + evil(c)[2:]),
    _plain("say-behind-many-protocols", lambda c: PROTO5 + PROTO2 * 1000 + evil(c)),
    _said("say-dict-subclass", _dict_subclass, other=("package.module.StateDict",)),
    _said(
        "say-state-of-a-class",
        lambda _: whole(
            name("collections", "OrderedDict") + EMPTY_DICT + text("__reduce__") + SYSTEM + SETITEM + BUILD
        ),
        "collections.OrderedDict.__setstate__",
        *_CALLED,
    ),
    _said("say-state-class", lambda _: _class_state(EMPTY_DICT + text("__class__") + SYSTEM + SETITEM)),
    _said(
        "say-setstate-GHSA-mhc9-48gj-9gp3",
        lambda c: whole(
            name("io", "BytesIO") + EMPTY_TUPLE + REDUCE,
            EMPTY_DICT + text("__setstate__") + SYSTEM + SETITEM,
            BUILD,
            text(c),
            BUILD,
        ),
        other=("io.BytesIO",),
    ),
    Case(
        "say-slots-modelscan-85.pt",
        lambda _: torch_zip(
            whole(
                name("numpy", "prod"),
                tupled(NONE, MARK + text("a") + text("os") + text("b") + text("system") + b"d"),
                BUILD,
                POP,
                name("numpy", "prod.a"),
                name("numpy", "prod.b"),
                STACK_GLOBAL,
                protocol=PROTO4,
            )
        ),
        "import whose name is no text",
        danger=("numpy.prod.__setstate__",),
        other=("numpy.prod", "numpy.prod.a", "numpy.prod.b"),
    ),
    _said(
        "say-builtins-of-a-module-modelscan-330",
        lambda _: whole(
            stack_name("numpy", "size"),
            EMPTY_DICT,
            EMPTY_DICT + text("shape") + stack_name("numpy", "__builtins__") + SETITEM,
            b"\x86",
            BUILD,
            protocol=PROTO4,
        ),
        "numpy.__builtins__",
        "numpy.size.__setstate__",
        other=("numpy.size",),
    ),
    _said(
        "say-names-made-by-calls-modelscan-331",
        lambda _: whole(_joined("o", "s"), _joined("s", "ys", "tem"), STACK_GLOBAL, protocol=PROTO4),
        "importlib.import_module",
        "builtins.getattr",
        refused="import whose name is no text",
    ),
    _said(
        "say-name-that-is-a-number",
        lambda c: whole(
            call(SYSTEM, text(c)),
            POP,
            number(42),
            MEMOIZE,
            text("os"),
            MEMOIZE,
            get(0),
            get(1),
            STACK_GLOBAL,
            protocol=PROTO4,
        ),
        refused="import whose name is no text",
    ),
    _said(
        "say-reconstructor",
        lambda c: whole(
            call(name("copyreg", "_reconstructor"), name("subprocess", "Popen"), name("builtins", "object"), NONE),
            EMPTY_DICT,
            text("args"),
            text(c),
            SETITEM,
            BUILD,
        ),
        "subprocess.Popen",
    ),
    _said(
        "say-pickle-inside-of-bytes", lambda c: whole(call(name("pickle", "loads"), octets(evil(c)))), "pickle.loads"
    ),
    _said(
        "say-pickle-inside-of-torch-bytes",
        lambda c: whole(call(name("torch.storage", "_load_from_bytes"), octets(legacy(evil(c))))),
        "torch.storage._load_from_bytes",
    ),
    _plain(
        "say-pickle-inside-of-a-tensor",
        lambda c: whole(call(name("torch.storage", "_load_from_bytes"), octets(legacy(evil(c))))),
        refused="hold no storage",
    ),
    _plain(
        "say-pickle-before-a-storage",
        lambda c: whole(
            call(
                name("torch.storage", "_load_from_bytes"),
                octets(
                    STORAGE.replace(whole(storage(1)), PROTO2 + call(SYSTEM, text(c)) + POP + whole(storage(1))[2:])
                ),
            )
        ),
    ),
    _said(
        "say-in-a-persistent-id",
        lambda c: whole(
            tupled(text("storage"), name("torch", "FloatStorage"), text("0"), call(SYSTEM, text(c)), number(4)), PERSID
        ),
        notice="have no record",
    ),
    _said("say-persistent-id-that-is-a-call", lambda c: whole(call(SYSTEM, text(c)), PERSID), refused="persistent id"),
    _said(
        "say-persistent-id-module",
        lambda _: whole(tupled(text("module"), SYSTEM, text("f.py"), text("import os")), PERSID),
    ),
    _said(
        "say-persistent-id-text",
        lambda _: whole(name("posix", "system"), POP, b"Pos.system\n"),
        refused="persistent id",
    ),
    _said(
        "say-storage-class",
        lambda _: whole(
            tupled(text("storage"), name("posix", "FloatStorage"), text("0"), text("cpu"), number(4)), PERSID
        ),
        "posix.FloatStorage",
        notice="have no record",
    ),
    _said("say-before-a-tensor", lambda c: whole(call(SYSTEM, text(c)), POP, tensor()), notice="have no record"),
]


# -- the call stands before the place where the file breaks -----------------------------------------------------------


def _payload(command: str) -> bytes:
    return PROTO2 + call(SYSTEM, text(command))


BREAKING = [
    _plain("break-nullifAI-no-opcode", lambda c: _payload(c) + b"X\x3e", refused="breaks off"),
    _plain("break-unknown-opcode", lambda c: _payload(c) + b"\xff", refused="no pickle opcode"),
    _plain("break-nothing-behind", _payload, refused="breaks off"),
    _plain("break-empty-stack", lambda c: _payload(c) + POP + POP + STOP, refused="empty stack"),
    _plain("break-stop-on-nothing", lambda c: _payload(c) + POP + STOP, refused="empty stack"),
    _plain("break-memo-picklescan", lambda c: _payload(c) + get(3) + STOP, refused="never stored"),
    _plain("break-no-mark", lambda c: _payload(c) + b"t" + STOP, refused="no mark|where none is"),
    _plain("break-no-utf8", lambda c: _payload(c) + b"X\2\0\0\0\xff\xff" + STOP, refused="UnicodeDecodeError"),
    _plain("break-no-number", lambda c: _payload(c) + b"Ix\n" + STOP, refused="ValueError"),
    _plain(
        "break-unhashable-key", lambda c: _payload(c) + EMPTY_DICT + EMPTY_LIST + NONE + SETITEM + STOP, refused="key"
    ),
    _plain("break-long-frame", lambda c: _payload(c) + b"\x95" + b"\xff" * 8, refused="frame"),
    _plain("break-protocol-6", lambda c: _payload(c) + b"\x80\x06" + STOP, refused="protocol 6"),
    _plain("break-buffers-elsewhere", lambda c: _payload(c) + b"\x97" + STOP, refused="kept outside"),
    _plain(
        "break-state-for-a-list", lambda c: _payload(c) + EMPTY_LIST + NONE + BUILD + STOP, refused="state for a list"
    ),
    _plain("break-bomb-behind", lambda c: _payload(c) + b"\x8b\0\0\0\x01" + STOP, refused="integer of"),
    _said("break-in-a-zip", lambda c: _payload(c) + b"\xff", refused="no pickle opcode"),
    Case("break-second-pickle.pkl", lambda c: pickle.dumps(["a"], 2) + evil(c), notice="behind the end"),
]

PICKLES = [*CALLING, *SAYING, *BREAKING]
