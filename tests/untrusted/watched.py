"""A process that reads evidence and reports what Python's audit hook saw meanwhile: `python watched.py FOLDER [evil]`.

One JSON line per file of the folder, in the order of their names. Every file is read in a child of its own, forked
behind the imports, so that whatever is opened, imported or started is due to the file. With `evil` the files are
loaded by `pickle`: the proof that the watching works.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradforensics.checkpoints.formats import safetensors, torch_file
from gradforensics.untrusted import danger
from gradforensics.untrusted.files import RefusedError, RegularFile

_SECONDS, _MEMORY = 12, 1 << 30  # where a child is ended, far beyond what a file may cost
_seen: list[str] = []
_watching = False
_evidence = ""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open" and (arguments[0] == _evidence or type(arguments[0]) is int) and not arguments[2] & os.O_ACCMODE:
        return  # the file itself or a descriptor of it, for reading
    _seen.append(f"{event} {arguments!r:.120}")


def read(path: Path) -> dict[str, Any]:
    """What a reader makes of the file: whether it was refused, why, and the names that loading it would import."""
    file = RegularFile(path, path.name, path.stat().st_size)
    uses: Any = {}
    try:
        if path.suffix == ".safetensors":
            notices = safetensors.read(file).notices
        else:
            found = torch_file.read(file)
            notices, uses = found.notices, found.uses
        outcome: dict[str, Any] = {"refused": None, "notices": notices}
    except RefusedError as error:
        outcome = {"refused": str(error), "notices": []}
        uses = error.uses
    listed = danger.executable(uses)
    return outcome | {
        "danger": [item.name for item in listed if item.danger],
        "other": [item.name for item in listed if not item.danger],
        "arguments": [item.arguments for item in listed if item.danger],
    }


def load(path: Path) -> dict[str, Any]:
    """What nobody should do."""
    with path.open("rb") as file:
        pickle.load(file)
    return {}


def _in_a_child(job: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.write(send, json.dumps(_watched(job, path)).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer else {"crashed": status}


def _watched(job: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    global _watching, _evidence  # noqa: PLW0603  an audit hook cannot be taken off, only told to look away
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    _evidence = os.fspath(path)
    before = time.process_time()
    _watching = True
    try:
        outcome = job(path)
    except BaseException as error:  # noqa: BLE001  whatever it is, it is reported
        outcome = {"raised": f"{type(error).__name__}: {error}"[:300]}
    _watching = False
    usage = resource.getrusage(resource.RUSAGE_SELF)
    kib = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return outcome | {"events": _seen, "seconds": time.process_time() - before, "megabytes": kib / 1024}


def _warm_up() -> None:
    """Import what Python imports on first use: codecs, the list of names, NumPy's parts."""
    for codec in ("cp437", "latin1", "raw-unicode-escape"):
        b"a".decode(codec)
    array = (
        b"\x80\x02cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01K\x01\x85"
        b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R(K\x03X\x01\x00\x00\x00>NNNtb\x89C\x040000tb."
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, data in {"a.pkl": array, "a.pt": b"PK\3\4", "a.safetensors": b"\2\0\0\0\0\0\0\0{}"}.items():
            path = Path(folder) / name
            path.write_bytes(data)
            read(path)


def main(folder: str, job: Callable[[Path], dict[str, Any]]) -> None:
    """Read every file of a folder."""
    _warm_up()
    sys.addaudithook(_watch)
    for path in sorted(Path(folder).iterdir()):
        print(json.dumps({"file": path.name} | _in_a_child(job, path)), flush=True)  # noqa: T201  its only output


if __name__ == "__main__":
    main(sys.argv[1], load if "evil" in sys.argv[2:] else read)
