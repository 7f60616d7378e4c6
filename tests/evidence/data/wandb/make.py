"""Makes the files beside it with a real wandb, offline: python make.py, once per version of wandb (0.15, 0.31).

Every run goes into the folder of the version that wrote it. Names of hosts, users and paths are replaced by neutral
ones: the records are parsed with wandb's own protobufs, changed, and framed again.
"""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import site
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK = 32 << 10
KEPT = ("output.log", "requirements.txt", "wandb-metadata.json", "wandb-summary.json")
LOGS = ("debug.log", "debug-internal.log")  # of the run that crashed only
CONFIG = {
    "lr": 3e-4,
    "optimizer": {"name": "adamw", "betas": [0.9, 0.95]},
    "model": {"n_layer": 12, "dims": {"d_model": 64}},
    "dtype": "bf16",
    "hub_token": "made-up-for-this-test",
    "resume_from": None,
}


# -- the runs --------------------------------------------------------------------------------------------------------


def full() -> None:
    """Losses with every kind of number, an evaluation, a histogram, a table, a text, nested values."""
    import wandb  # type: ignore[import-not-found]  # the recipe only

    run = wandb.init(project="demo", name="full-run", id="full0001", config=CONFIG)
    run.define_metric("eval/*", step_metric="train/global_step")
    print("Running training")  # noqa: T201  the output is part of the record
    odd = {20: float("nan"), 21: float("inf"), 22: -float("inf")}
    for i in range(30):
        row: dict[str, Any] = {
            "train/loss": odd.get(i, 3.0 / (i + 1)),
            "train/learning_rate": 3e-4 * (1 - i / 30),
            "train/global_step": i * 10,
            "train/epoch": i / 10,
        }
        if i % 10 == 9:
            row = {"eval/loss": 3.1 / (i + 1), "train/global_step": i * 10, "nested": {"a": 1.5, "b": {"c": 2}}}
            row |= {"flag": True, "note": "hello", "big": 2**70, "several": [1, 2, 3], "nothing": None, 'odd"key\\': 1}
        if i % 10 == 5:
            row["gradients"] = wandb.Histogram([1, 2, 3, 4])
            row["examples"] = wandb.Table(columns=["text"], data=[["a"]])
        run.log(row)
        if i % 10 == 0:
            print(f"at {i}")  # noqa: T201  likewise
    time.sleep(3)  # for a measurement of the machine
    run.summary["best"] = 0.1
    run.config.update({"late": 5, "lr": 1e-4}, allow_val_change=True)
    run.finish()


def crash() -> None:
    """A run that ends in an exception."""
    import wandb  # the recipe only

    run = wandb.init(project="demo", id="crash001", config={"lr": 1.0})
    for i in range(5):
        run.log({"loss": 2.0 - i})
        print("step", i)  # noqa: T201  likewise
    raise RuntimeError("CUDA error: device-side assert triggered")


def later() -> None:
    """A run whose program says at which step it is."""
    import wandb  # the recipe only

    run = wandb.init(project="demo", id="later001", resume="allow", config={"lr": 1.0})
    for i in range(5):
        run.log({"loss": 2.0 - i / 10}, step=100 + 10 * i)
    run.finish()


def typed(target: Path) -> None:
    """A history with the typed fields that wandb 0.31 declares and does not write yet."""
    from wandb.proto import wandb_internal_pb2 as pb  # type: ignore[import-not-found]  # the recipe only

    messages = []
    for i in range(12):
        record = pb.Record(num=i + 1)
        record.history.step.num = 5 * i
        for key, kind, value in (
            ("loss", "number", float("nan") if i == 7 else 2.0 / (i + 1)),
            ("count", "integer", -3 * i),
            ("flag", "boolean", True),
            ("note", "text", "NaN" if i == 3 else "words"),
            ("parts", "json", '{"a": 0.5, "b": [1]}'),
            ("nothing", "none", 0),
        ):
            item = record.history.item.add()
            item.nested_key.append(key)
            setattr(item, kind, value)
        messages.append(record.SerializeToString())
    record = pb.Record(num=13)
    record.exit.exit_code = 0
    (target / "run-typed001.wandb").write_bytes(framed([*messages, record.SerializeToString()]))


# -- neutral copies --------------------------------------------------------------------------------------------------


def records(data: bytes) -> Iterator[bytes]:
    """The records of an undamaged file."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + 7 : place + 7 + length]
        place += 7 + length
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts


def framed(messages: list[bytes]) -> bytes:
    """A file of these records."""
    out = bytearray(b":W&B\xe1\xbe\x00")
    for message in messages:
        first, rest = True, message
        while first or rest:
            left = BLOCK - len(out) % BLOCK
            if left < 7:
                out += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
    return bytes(out)


def neutral(text: str, folder: str) -> str:
    """The text without names of this machine."""
    for old, new in (
        (folder, "/home/user/project"),
        (str(Path(__file__)), "/home/user/project/train.py"),
        (site.getsitepackages()[0], "/usr/lib/python3/site-packages"),
        (sys.executable, "/usr/bin/python3"),
        (sysconfig.get_path("stdlib"), "/usr/lib/python3"),
        (str(Path(sysconfig.get_path("stdlib")).resolve()), "/usr/lib/python3"),
        (platform.platform(), "Linux-6.8.0-x86_64-with-glibc2.36"),
        (str(Path.home()), "/home/user"),
        (Path(__file__).name, "train.py"),
    ):
        text = text.replace(old, new)
    return text


def scrub(message: Any, folder: str) -> None:
    """Replace all strings of a protobuf message in place."""
    for field, value in message.ListFields():
        if field.name in ("host", "username", "email"):
            setattr(message, field.name, "node1" if field.name == "host" else "user")
        elif field.name == "cpu" and hasattr(value, "model"):
            value.model = "a processor"
        elif isinstance(value, str):
            setattr(message, field.name, neutral(value, folder))
        elif hasattr(value, "ListFields"):
            scrub(value, folder)
        elif field.type == field.TYPE_STRING:
            value[:] = [neutral(one, folder) for one in value]
        elif field.type == field.TYPE_MESSAGE and not hasattr(value, "items"):
            for one in value:
                scrub(one, folder)


def copy(run: Path, target: Path, folder: str) -> None:
    """The files of one run that the tests need."""
    from wandb.proto import wandb_internal_pb2 as pb  # the recipe only

    for path in sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink()):
        place = target / path.relative_to(run)
        if path.suffix == ".wandb":
            messages = []
            for data in records(path.read_bytes()):
                record = pb.Record.FromString(data)
                scrub(record, folder)
                messages.append(record.SerializeToString())
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(framed(messages))
        elif path.name in KEPT or (path.name in LOGS and "crash" in run.name):
            place.parent.mkdir(parents=True, exist_ok=True)
            text = neutral(path.read_text(encoding="utf-8"), folder)
            for own, other in ((getpass.getuser(), "user"), (socket.gethostname(), "node1")):
                for mark in "'\"":
                    text = text.replace(f"{mark}{own}{mark}", f"{mark}{other}{mark}")
            place.write_text(text, encoding="utf-8")


def main() -> None:
    """Run the recipes and copy what they leave."""
    import wandb  # the recipe only

    target = HERE / wandb.__version__
    shutil.rmtree(target, ignore_errors=True)
    for recipe in ("full", "crash", "later"):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": folder}
            environment["WANDB_X_STATS_SAMPLING_INTERVAL"] = "1"
            subprocess.run([sys.executable, __file__, recipe], cwd=folder, env=environment, check=False)
            for run in sorted(Path(folder, "wandb").glob("offline-run-*")):
                stamp = run.name.replace(run.name.split("-")[2], "20250102_030405")
                copy(run, target / stamp, folder)
    if "number" in {field.name for field in _history_item().fields}:
        (target / "typed").mkdir()
        typed(target / "typed")


def _history_item() -> Any:
    from wandb.proto import wandb_internal_pb2 as pb  # the recipe only

    return pb.HistoryItem.DESCRIPTOR


if __name__ == "__main__":
    recipes = {"full": full, "crash": crash, "later": later}
    recipes[sys.argv[1]]() if len(sys.argv) > 1 else main()
