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
    call,
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
)  # fmt: skip


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

# module, attribute, what it is given: a command, source text, or nothing; where it was published
GADGETS = [
    ("posix", "system", "command", "classic"),
    ("nt", "system", "command", "classic"),
    ("os", "popen", "command", "classic"),
    ("os", "execvp", "command", "classic"),
    ("subprocess", "Popen", "command", "classic"),
    ("subprocess", "check_output", "command", "classic"),
    ("builtins", "eval", "source", "classic"),
    ("builtins", "exec", "source", "classic"),
    ("builtins", "compile", "source", "classic"),
    ("builtins", "__import__", "nothing", "GHSA-h4rm-mm56-xf63"),
    ("builtins", "breakpoint", "nothing", "modelscan"),
    ("builtins", "open", "nothing", "modelscan"),
    ("builtins", "map", "nothing", "modelaudit"),
    ("__builtin__", "execfile", "nothing", "python2"),
    ("__builtin__", "apply", "nothing", "python2"),
    ("commands", "getoutput", "command", "python2"),
    ("cPickle", "loads", "nothing", "python2"),
    ("shutil", "rmtree", "nothing", "picklescan-29"),
    ("runpy", "run_path", "nothing", "GHSA-wfq2-52f7-7qvj"),
    ("runpy", "_run_code", "source", "picklescan"),
    ("pty", "spawn", "command", "GHSA-r7v6-mfhq-g3m2"),
    ("marshal", "loads", "nothing", "GHSA-565g-hwwr-4pp3"),
    ("types", "FunctionType", "nothing", "GHSA-565g-hwwr-4pp3"),
    ("types", "CodeType", "nothing", "picklescan"),
    ("cProfile", "run", "source", "GHSA-49gj-c84q-6qm9"),
    ("cProfile", "runctx", "source", "GHSA-9w88-8rmg-7g2p"),
    ("profile", "Profile.run", "source", "GHSA-x696-vm39-cp64"),
    ("profile", "Profile.runctx", "source", "GHSA-6vqj-c2q5-j97w"),
    ("trace", "Trace.run", "source", "GHSA-5qwp-399c-mjwf"),
    ("trace", "Trace.runctx", "source", "GHSA-g344-hcph-8vgg"),
    ("timeit", "timeit", "source", "GHSA-v7x6-rv5q-mhwc"),
    ("pdb", "run", "source", "picklescan-29"),
    ("bdb", "Bdb.run", "source", "picklescan-29"),
    ("doctest", "debug_script", "source", "GHSA-fqq6-7vqf-w3fg"),
    ("code", "InteractiveInterpreter", "nothing", "GHSA-q5qq-mvfm-j35x"),
    ("code", "InteractiveInterpreter.runcode", "source", "GHSA-cj3c-v495-4xqh"),
    ("codeop", "compile_command", "source", "GHSA-g38g-8gr9-h9xp"),
    ("compileall", "compile_file", "nothing", "GHSA-g38g-8gr9-h9xp"),
    ("py_compile", "compile", "nothing", "GHSA-g38g-8gr9-h9xp"),
    ("importlib", "import_module", "nothing", "GHSA-q5qq-mvfm-j35x"),
    ("pkgutil", "resolve_name", "nothing", "GHSA-vvpj-8cmc-gx39"),
    ("zipimport", "zipimporter", "nothing", "fickling-215"),
    ("pydoc", "locate", "nothing", "GHSA-5hvc-6wx8-mvv4"),
    ("pydoc", "pipepager", "command", "picklescan"),
    ("_pyrepl.pager", "pipe_pager", "command", "GHSA-g38g-8gr9-h9xp"),
    ("uuid", "_get_command_stdout", "command", "GHSA-5hwf-rc88-82xm"),
    ("_aix_support", "_read_cmd_output", "command", "GHSA-5hwf-rc88-82xm"),
    ("_osx_support", "_find_build_tool", "command", "GHSA-5hwf-rc88-82xm"),
    ("imaplib", "IMAP4_stream", "command", "GHSA-g38g-8gr9-h9xp"),
    ("test.support.script_helper", "assert_python_ok", "source", "GHSA-g38g-8gr9-h9xp"),
    ("_posixsubprocess", "fork_exec", "command", "GHSA-m6fh-58r7-x697"),
    ("site", "addpackage", "nothing", "GHSA-m6fh-58r7-x697"),
    ("atexit", "register", "nothing", "GHSA-m6fh-58r7-x697"),
    ("_interpreters", "run_string", "source", "GHSA-6ggj-6f2q-f7mx"),
    ("_xxsubinterpreters", "run_string", "source", "GHSA-6ggj-6f2q-f7mx"),
    ("multiprocessing.util", "spawnv_passfds", "command", "GHSA-q5qq-mvfm-j35x"),
    ("asyncio.unix_events", "_UnixSubprocessTransport._start", "command", "CVE-2025-10157"),
    ("concurrent.futures.process", "ProcessPoolExecutor.submit", "nothing", "modelaudit"),
    ("_thread", "start_new_thread", "nothing", "modelaudit"),
    ("ctypes", "CDLL", "nothing", "GHSA-4675-36f9-wf6r"),
    ("_ctypes", "dlopen", "nothing", "fickling-215"),
    ("operator", "attrgetter", "nothing", "picklescan"),
    ("_operator", "methodcaller", "command", "GHSA-955r-x9j8-7rhh"),
    ("_operator", "attrgetter", "nothing", "GHSA-46h3-79wf-xr6c"),
    ("functools", "partial", "nothing", "picklescan"),
    ("functools", "reduce", "nothing", "modelaudit"),
    ("itertools", "starmap", "nothing", "modelaudit"),
    ("weakref", "finalize", "nothing", "modelaudit"),
    ("pip", "main", "nothing", "CVE-2025-1716"),
    ("ensurepip", "_run_pip", "nothing", "GHSA-xp4f-hrf8-rxw7"),
    ("venv", "create", "nothing", "picklescan"),
    ("setuptools._distutils.spawn", "spawn", "command", "modelaudit"),
    ("distutils.file_util", "write_file", "nothing", "GHSA-m273-6v24-x4m4"),
    ("lib2to3.pgen2.grammar", "Grammar.loads", "nothing", "GHSA-f54q-57x4-jg88"),
    ("lib2to3.pgen2.pgen", "ParserGenerator.make_label", "source", "GHSA-p9w7-82w4-7q8m"),
    ("idlelib.debugobj", "ObjectTreeItem.SetText", "source", "GHSA-3vg9-h568-4w9m"),
    ("idlelib.autocomplete", "AutoComplete.get_entity", "source", "GHSA-6w4w-5w54-rjvr"),
    ("idlelib.autocomplete", "AutoComplete.fetch_completions", "source", "GHSA-7cq8-mj8x-j263"),
    ("idlelib.calltip", "Calltip.fetch_tip", "source", "GHSA-8r4j-24qv-fmq9"),
    ("idlelib.calltip", "get_entity", "source", "GHSA-9xph-j2h6-g47v"),
    ("idlelib.run", "Executive.runcode", "source", "GHSA-m869-42cg-3xwr"),
    ("idlelib.pyshell", "ModifiedInterpreter.runcommand", "source", "GHSA-j343-8v2j-ff7w"),
    ("idlelib.pyshell", "ModifiedInterpreter.runcode", "source", "GHSA-3gf5-cxq9-w223"),
    ("torch.utils.bottleneck.__main__", "run_cprofile", "source", "GHSA-4r9r-ch6f-vxmx"),
    ("torch.utils.bottleneck.__main__", "run_autograd_prof", "source", "GHSA-4whj-rm5r-c2v8"),
    ("torch._dynamo.guards", "GuardBuilder.get", "source", "GHSA-86cj-95qr-2p4f"),
    ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression", "source", "GHSA-f4x7-rfwp-v3xw"),
    ("torch.utils.collect_env", "run", "command", "GHSA-f745-w6jp-hpxx"),
    ("torch.utils.collect_env", "run_and_read_all", "command", "GHSA-jhph-76pp-mggw"),
    ("torch.utils.data.datapipes.utils.decoder", "basichandlers", "nothing", "GHSA-h3qp-7fh3-f8h4"),
    ("torch.jit.unsupported_tensor_ops", "execWrapper", "source", "GHSA-vr7h-p6mm-wpmh"),
    ("torch.utils._config_module", "ConfigModule.load_config", "nothing", "GHSA-vv6j-3g6g-2pvj"),
    ("torch._inductor.codecache", "compile_file", "command", "picklescan"),
    ("torch.library", "torch.utils.collect_env.run", "command", "modelscan-338"),
    ("torch.serialization", "load", "nothing", "picklescan"),
    ("torch.hub", "load", "nothing", "modelaudit"),
    ("torch", "load", "nothing", "modelaudit"),
    ("torch", "from_file", "nothing", "torch"),
    ("torch", "FloatStorage.from_file", "nothing", "torch"),
    ("torch.fx.graph_module", "reduce_graph_module", "source", "torch"),
    ("numpy.f2py.crackfortran", "getlincoef", "source", "GHSA-r8g5-cgf2-4m4m"),
    ("numpy.testing._private.utils", "runstring", "source", "picklescan"),
    ("numpy", "load", "nothing", "modelaudit"),
    ("pandas.io.parsers.readers", "read_csv", "nothing", "modelscan-338"),
    ("pandas", "eval", "source", "pandas"),
    ("mlflow.projects.backend.local", "_run_entry_point", "command", "modelscan-338"),
    ("transformers.models.auto.auto_factory", "getattribute_from_module", "nothing", "modelscan-338"),
    ("_pickle", "loads", "nothing", "GHSA-84r2-jw7c-4r5q"),
    ("dill._dill", "_create_function", "nothing", "modelaudit"),
    ("cloudpickle.cloudpickle", "_make_function", "nothing", "picklescan"),
    ("joblib", "load", "nothing", "modelaudit"),
    ("shelve", "open", "nothing", "fickling"),
    ("sqlite3", "connect", "nothing", "GHSA-mhc9-48gj-9gp3"),
    ("yaml", "unsafe_load", "source", "modelaudit"),
    ("copyreg", "add_extension", "nothing", "modelaudit"),
    ("logging", "FileHandler", "nothing", "CVE-2026-56304"),
    ("logging.config", "dictConfig", "nothing", "modelaudit"),
    ("_io", "FileIO", "nothing", "picklescan"),
    ("pathlib", "Path.write_text", "nothing", "modelaudit"),
    ("linecache", "getline", "nothing", "CVE-2025-46417"),
    ("ssl", "get_server_certificate", "nothing", "CVE-2025-46417"),
    ("socket", "create_connection", "nothing", "picklescan"),
    ("socketserver", "TCPServer", "nothing", "GHSA-mhc9-48gj-9gp3"),
    ("smtplib", "SMTP", "nothing", "GHSA-mxhj-88fx-4pcv"),
    ("ftplib", "FTP", "nothing", "fickling"),
    ("telnetlib", "Telnet", "nothing", "fickling"),
    ("http.client", "HTTPSConnection", "nothing", "picklescan"),
    ("httplib", "HTTPSConnection", "nothing", "python2"),
    ("urllib.request", "urlopen", "nothing", "picklescan"),
    ("requests.api", "get", "nothing", "picklescan"),
    ("aiohttp.client", "ClientSession", "nothing", "picklescan"),
    ("webbrowser", "open", "nothing", "picklescan"),
    ("sys", "exit", "nothing", "picklescan"),
    ("signal", "signal", "nothing", "GHSA-mhc9-48gj-9gp3"),
    ("faulthandler", "_sigsegv", "nothing", "modelaudit"),
    ("gc", "get_objects", "nothing", "modelaudit"),
    ("typing", "get_type_hints", "nothing", "modelaudit"),
    ("string", "Formatter.get_field", "nothing", "modelaudit"),
    ("unittest.mock", "patch", "nothing", "modelaudit"),
    ("tkinter", "Tcl", "nothing", "modelaudit"),
    ("antigravity", "fly", "nothing", "classic"),
    # a module also offers what it imported itself, and every object leads to every other
    ("site", "os.system", "command", "modelscan-338"),
    ("torch", "os.system", "command", "modelscan-338"),
    ("collections", "_sys.modules.get", "nothing", "modelscan-338"),
    ("statistics", "mean.__globals__.get", "nothing", "modelscan-338"),
    ("builtins", "print.__class__.__base__.__subclasses__", "nothing", "modelscan-338"),
    ("collections", "Counter.__subclasses__", "nothing", "modelaudit"),
]


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

_SYSTEM = name("posix", "system")
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


def _evil(command: str) -> bytes:
    return whole(call(_SYSTEM, text(command)))


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
    made = call(name("package.module", "StateDict")) + EMPTY_DICT + text("__reduce__") + _SYSTEM + SETITEM + BUILD
    return whole(made, MARK, text("weight"), call(_SYSTEM, text(command)), b"u")


SAYING = [
    _said("say-inst", lambda c: whole(MARK, text(c), b"iposix\nsystem\n")),
    _said("say-obj", lambda c: whole(MARK, _SYSTEM, text(c), b"o")),
    _said("say-obj-popped-GHSA-mxhj-88fx-4pcv", lambda c: whole(MARK, _SYSTEM, text(c), b"o", POP, NONE)),
    _said("say-newobj", lambda c: whole(_SYSTEM, tupled(text(c)), b"\x81")),
    _said("say-newobj-ex", lambda c: whole(_SYSTEM, tupled(text(c)), EMPTY_DICT, b"\x92", protocol=PROTO4)),
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
        lambda c: whole(call(call(name("functools", "partial"), _SYSTEM), text(c))),
        "functools.partial",
        *_CALLED,
    ),
    _said(
        "say-getattr-of-a-name",
        lambda c: whole(call(call(name("builtins", "getattr"), name("site", "os"), text("system")), text(c))),
        "site.os",
        "site.os.system",
    ),
    _said("say-factory-of-defaultdict", lambda _: whole(call(name("collections", "defaultdict"), _SYSTEM))),
    _said(
        "say-rebuild-from-type",
        lambda c: whole(
            call(
                name("torch._tensor", "_rebuild_from_type_v2"), _SYSTEM, name("torch", "Tensor"), tupled(text(c)), NONE
            )
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
        lambda c: whole(_SYSTEM, b"r\xfe\xff\xff\x7f", POP, b"j\xfe\xff\xff\x7f", tupled(text(c)), REDUCE),
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
        "say-behind-an-unusual-opcode-fickling-322", lambda c: whole(EMPTY_DICT, b"F1.0\n", POP, POP, _evil(c)[2:-1])
    ),
    _plain("say-with-long-frames", lambda c: PROTO4 + b"\x95" + struct.pack("<Q", 3) + _evil(c)[2:]),
    _plain("say-behind-many-protocols", lambda c: PROTO5 + PROTO2 * 1000 + _evil(c)),
    _said("say-dict-subclass", _dict_subclass, other=("package.module.StateDict",)),
    _said(
        "say-state-of-a-class",
        lambda _: whole(
            name("collections", "OrderedDict") + EMPTY_DICT + text("__reduce__") + _SYSTEM + SETITEM + BUILD
        ),
    ),
    _said("say-state-class", lambda _: _class_state(EMPTY_DICT + text("__class__") + _SYSTEM + SETITEM)),
    _said(
        "say-setstate-GHSA-mhc9-48gj-9gp3",
        lambda c: whole(
            name("io", "BytesIO") + EMPTY_TUPLE + REDUCE,
            EMPTY_DICT + text("__setstate__") + _SYSTEM + SETITEM,
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
            call(_SYSTEM, text(c)),
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
        "say-pickle-inside-of-bytes", lambda c: whole(call(name("pickle", "loads"), octets(_evil(c)))), "pickle.loads"
    ),
    _said(
        "say-pickle-inside-of-torch-bytes",
        lambda c: whole(call(name("torch.storage", "_load_from_bytes"), octets(legacy(_evil(c))))),
        "torch.storage._load_from_bytes",
    ),
    _plain(
        "say-pickle-inside-of-a-tensor",
        lambda c: whole(call(name("torch.storage", "_load_from_bytes"), octets(legacy(_evil(c))))),
        refused="hold no storage",
    ),
    _plain(
        "say-pickle-before-a-storage",
        lambda c: whole(
            call(
                name("torch.storage", "_load_from_bytes"),
                octets(
                    STORAGE.replace(whole(storage(1)), PROTO2 + call(_SYSTEM, text(c)) + POP + whole(storage(1))[2:])
                ),
            )
        ),
    ),
    _said(
        "say-in-a-persistent-id",
        lambda c: whole(
            tupled(text("storage"), name("torch", "FloatStorage"), text("0"), call(_SYSTEM, text(c)), number(4)), PERSID
        ),
        notice="have no record",
    ),
    _said("say-persistent-id-that-is-a-call", lambda c: whole(call(_SYSTEM, text(c)), PERSID), refused="persistent id"),
    _said(
        "say-persistent-id-module",
        lambda _: whole(tupled(text("module"), _SYSTEM, text("f.py"), text("import os")), PERSID),
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
    _said("say-before-a-tensor", lambda c: whole(call(_SYSTEM, text(c)), POP, tensor()), notice="have no record"),
]


# -- the call stands before the place where the file breaks -----------------------------------------------------------


def _payload(command: str) -> bytes:
    return PROTO2 + call(_SYSTEM, text(command))


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
    Case("break-second-pickle.pkl", lambda c: pickle.dumps(["a"], 2) + _evil(c), notice="behind the end"),
]

PICKLES = [*CALLING, *SAYING, *BREAKING]
