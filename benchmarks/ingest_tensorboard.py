"""The reader of TensorBoard's event files against EventAccumulator and tbparse, and how its time grows.

    python benchmarks/ingest_tensorboard.py [--scalars 1000000] [--runs 3] [--quick] [--folder FOLDER]

Needs tensorboard and tbparse (pip install tensorboard tbparse). Writes 20 tags, as simple_value and as the tensors of
TensorFlow 2, and times in turn, each in a process of its own and without the imports:

    ours         all series, with every checksum and with attempts and repeats settled
    accumulator  EventAccumulator(size_guidance 0).Reload()
    tbparse      SummaryReader and its table

Every figure is the best of the runs. Limits: see FASTER and MEMORY_LIMIT. Then, but for --quick, our reader alone on
files of 10^5, 10^6 and 10^7 scalars: the time of the processors per scalar may grow by GROWTH at most. Exit code 1
where a limit is missed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FASTER = 10.0  # times as fast as either of the others
MEMORY_LIMIT = 400e6  # highest resident memory of our process
GROWTH = 1.5  # of the time per scalar from the smallest file to the largest
SIZES = (100_000, 1_000_000, 10_000_000)
STYLES = ("simple", "tensor")
TAGS = 20
PEERS = ("tensorboard", "tbparse")

_BLOCK = 5000  # steps that are encoded at once


# -- the files --------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _payload(tag: str, step: bytes, style: str, *, named: bool) -> tuple[bytes, int]:
    """An event with zeros for wall time and value, and where its value stands. named: with the name of the plugin."""
    value = b"\x15\0\0\0\0" if style == "simple" else _bytes(8, b"\x08\x01\x12\x00" + _bytes(5, bytes(4)))
    plugin = _bytes(9, _bytes(1, _bytes(1, b"scalars"))) if named else b""
    before = b"\x09" + bytes(8) + b"\x10" + step
    whole = before + _bytes(5, _bytes(1, _bytes(1, tag.encode()) + value + plugin))
    return whole, len(whole) - len(plugin) - 4


def _records(payloads: np.ndarray) -> bytes:
    """uint8 (n, length) as records with their checksums."""
    from gradforensics.evidence.event_files import crc  # noqa: PLC0415  an import that no child need make

    count, length = payloads.shape
    found = np.empty((count, length + 16), dtype=np.uint8)
    head = np.array([length], dtype="<u8")
    found[:, :8] = head.view(np.uint8)
    found[:, 8:12] = crc.masked(crc.of_lengths(head)).astype("<u4").view(np.uint8)
    found[:, 12:-4] = payloads
    flat = np.ascontiguousarray(payloads).reshape(-1)
    checksums = crc.masked(crc.of_ranges(flat, np.arange(count) * length, np.full(count, length)))
    found[:, -4:] = checksums.astype("<u4").view(np.uint8).reshape(count, 4)
    return found.tobytes()


def _block(steps: np.ndarray, style: str, *, named: bool) -> bytes:
    """All tags of consecutive steps whose numbers take the same number of bytes."""
    coded = np.frombuffer(b"".join(_varint(step) for step in steps.tolist()), dtype=np.uint8).reshape(len(steps), -1)
    made = [_payload(f"train/metric_{tag:02d}", coded[0].tobytes(), style, named=named) for tag in range(TAGS)]
    place = made[0][1]
    rows = np.empty((len(steps), TAGS, len(made[0][0])), dtype=np.uint8)
    rows[:] = np.array([np.frombuffer(payload, dtype=np.uint8) for payload, _ in made])
    rows[:, :, 1:9] = (1.7e9 + steps * 0.5).astype("<f8").view(np.uint8).reshape(-1, 1, 8)
    rows[:, :, 10 : 10 + coded.shape[1]] = coded[:, None, :]
    noise = np.random.default_rng(int(steps[0])).random((len(steps), TAGS))
    values = (np.exp(-steps / 20_000)[:, None] * 10 + noise + np.arange(TAGS)).astype("<f4")
    rows[:, :, place : place + 4] = values.view(np.uint8).reshape(len(steps), TAGS, 4)
    return _records(rows.reshape(len(steps) * TAGS, -1))


def write(path: Path, scalars: int, style: str) -> None:
    """Write an event file of `scalars` values of 20 tags, as simple_value ("simple") or as tensors ("tensor")."""
    version = b"\x09" + struct.pack("<d", 1.7e9) + _bytes(3, b"brain.Event:2")
    with path.open("wb") as file:
        file.write(_records(np.frombuffer(version, dtype=np.uint8)[None, :]))
        steps = np.arange(1, scalars // TAGS + 1)
        borders = [1, *(1 << 7 * count for count in (1, 2, 3, 4))]
        for first, last in zip([1, 2, *borders[1:]], [2, *borders[1:], 1 << 60], strict=True):
            those = steps[first - 1 : last - 1]
            for start in range(0, len(those), _BLOCK):
                named = style == "tensor" and first == 1  # writers name the plugin once
                file.write(_block(those[start : start + _BLOCK], style, named=named))


# -- what is measured, each in a process of its own -------------------------------------------------------------------


def _memory() -> float:
    """Highest resident memory of this process in bytes."""
    import resource  # noqa: PLC0415  not on every platform

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ours(path: Path) -> int:
    """Read with the tool's reader; the number of values."""
    from gradforensics.evidence.files import File  # noqa: PLC0415  only the child needs it
    from gradforensics.evidence.readers import tensorboard  # noqa: PLC0415  likewise

    found = tensorboard.read(File(path, path.name, path.stat().st_size))
    if found.notices:
        raise SystemExit(f"the files are meant to be whole: {found.notices[0][1]}")
    return sum(track.stored.frame.height for track in found.tracks)


def accumulator(path: Path) -> int:
    """Read with TensorBoard's own accumulator; the number of values."""
    module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found = module.EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    tags = found.Tags()
    scalars = sum(len(found.Scalars(tag)) for tag in tags["scalars"])
    return scalars + sum(len(found.Tensors(tag)) for tag in tags["tensors"])


def tbparse(path: Path) -> int:
    """Read with tbparse; the number of values."""
    found = importlib.import_module("tbparse").SummaryReader(str(path), event_types={"scalars", "tensors"})
    return len(found.scalars) + len(found.tensors)


CHILDREN: dict[str, Callable[[Path], int]] = {"ours": ours, "accumulator": accumulator, "tbparse": tbparse}
_IMPORTED = {
    "ours": ("gradforensics.evidence.readers", "polars"),
    "accumulator": ("tensorboard.backend.event_processing.event_accumulator",),
    "tbparse": ("tbparse",),
}


def measure(reader: str, path: Path) -> dict[str, float]:
    """Seconds on the clock and of the processors, values and highest memory of one reader, in this process."""
    for module in _IMPORTED[reader]:
        importlib.import_module(module)
    start, used = time.perf_counter(), time.process_time()
    count = CHILDREN[reader](path)
    taken = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - used}
    return {**taken, "values": count, "memory": _memory()}


def child(reader: str, path: Path) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", reader, str(path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


# -- the comparison ---------------------------------------------------------------------------------------------------


def best(readers: Sequence[str], path: Path, runs: int) -> dict[str, dict[str, float]]:
    """The fastest of the runs of each reader, which take turns; memory is the highest of all."""
    found: dict[str, dict[str, float]] = {}
    for _ in range(runs):
        for reader in readers:
            one = child(reader, path)
            known = found.setdefault(reader, one)
            for clock in ("seconds", "cpu"):
                known[clock] = min(known[clock], one[clock])
            known["memory"] = max(known["memory"], one["memory"])
    return found


def compare(folder: Path, scalars: int, runs: int) -> bool:
    """Time all readers on both styles, print a line for each; whether the limits are met."""
    met = True
    for style in STYLES:
        path = folder / style / "events.out.tfevents.1700000000.host.1.0"
        path.parent.mkdir()
        write(path, scalars, style)
        found = best(tuple(CHILDREN), path, runs)
        if {one["values"] for one in found.values()} != {scalars // TAGS * TAGS}:
            raise SystemExit(f"the readers do not find the same values: {found}")
        mine = found["ours"]
        ratios = {name: one["seconds"] / mine["seconds"] for name, one in found.items() if name != "ours"}
        met = met and min(ratios.values()) >= FASTER and mine["memory"] <= MEMORY_LIMIT
        others = "".join(f"  {name} {found[name]['seconds']:6.2f} s = {ratio:5.1f}x" for name, ratio in ratios.items())
        print(
            f"{style:7} {scalars} scalars  ours {mine['seconds']:5.2f} s, {mine['memory'] / 1e6:3.0f} MB{others}  "
            f"(limits {FASTER:.0f}x, {MEMORY_LIMIT / 1e6:.0f} MB)",
            flush=True,
        )
        path.unlink()
    return met


def growth(folder: Path, runs: int, sizes: Sequence[int] = SIZES) -> bool:
    """Time our reader on files of growing size, print a line for each; whether the time per scalar stays."""
    per_scalar: list[float] = []
    for size in sizes:
        path = folder / f"events.out.tfevents.{size}.host.1.0"
        write(path, size, "simple")
        found = best(("ours",), path, runs)["ours"]
        per_scalar.append(found["cpu"] / size)  # which other programs on the machine change less
        times = per_scalar[-1] / per_scalar[0]
        print(
            f"ours    {size:8} scalars {found['cpu']:6.2f} s  {per_scalar[-1] * 1e9:4.0f} ns each, {times:4.2f}x  "
            f"{found['memory'] / 1e6:4.0f} MB  (limit {GROWTH}x)",
            flush=True,
        )
        path.unlink()
    return max(per_scalar) <= GROWTH * per_scalar[0]


def missing() -> list[str]:
    """What has to be installed for the comparison."""
    return [name for name in PEERS if importlib.util.find_spec(name) is None]


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalars", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="without the growth of the time")
    parser.add_argument("--folder", help="where the files are made (default: the system's temporary folder)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child[0], Path(given.child[1]))))
        return 0
    if absent := missing():
        print(f"needs {' and '.join(absent)} in this environment: pip install {' '.join(absent)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        met = [compare(Path(folder), given.scalars, given.runs)]
        if not given.quick:
            met.append(growth(Path(folder), given.runs))
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
