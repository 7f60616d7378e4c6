"""How fast the log of a W&B run is read, against the protobufs that wandb itself brings.

    python benchmarks/ingest_wandb.py [--rows 50000] [--runs 3] [--peer PYTHON]

Writes a log of --rows history records with 20 values each, every one behind a summary record with the same values, as
wandb writes it. One child process reads it with this package (records to series), another one with
wandb_internal_pb2.Record and json.loads (records to one array per key). Figures are the least of --runs runs that
alternate. Limits: time 1x that of the protobufs, peak memory 400 MB, and twice the rows at most 2.5 times as long; exit
code 1 where one is exceeded. --peer: a Python that has wandb, where this one has not; without it no ratio is told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

RATIO = 1.0
PEAK_MB = 400.0
GROWTH = 2.5
WIDTH = 20
BLOCK = 32 << 10
HEADER = b":W&B\xe1\xbe\x00"

OURS = """
import resource, sys, time
from pathlib import Path
from gradforensics.evidence.files import File
from gradforensics.evidence.readers import wandb_log
path = Path(sys.argv[1])
start = time.perf_counter()
reading = wandb_log.read(File(path, path.name, path.stat().st_size))
taken = time.perf_counter() - start
"""
THEIRS = """
import json, resource, struct, sys, time
import numpy as np
from wandb.proto import wandb_internal_pb2 as pb
from ingest_wandb import records
start = time.perf_counter()
kept, row = {}, 0
for data in records(sys.argv[1]):
    record = pb.Record.FromString(data)
    if record.WhichOneof("record_type") == "history":
        for item in record.history.item:
            key = item.key or ".".join(item.nested_key)
            rows, values = kept.setdefault(key, ([], []))
            rows.append(row)
            values.append(json.loads(item.value_json))
        row += 1
arrays = {key: (np.array(rows), np.array(values, dtype=float)) for key, (rows, values) in kept.items()}
taken = time.perf_counter() - start
"""
TELL = """
scale = 1 if sys.platform == "darwin" else 1024
print(taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6)
"""


def varint(value: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    """A protobuf field with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def messages(rows: int) -> Iterator[bytes]:
    """A summary and a history record per row; the order of the keys changes, as in a map of Go."""
    numbers = random.Random(0)  # noqa: S311  no secret
    keys = ["train/loss", *(f"train/metric_{i}" for i in range(WIDTH - 4)), "_step", "_timestamp", "_runtime"]
    for row in range(rows):
        values: list[float] = [numbers.random() for _ in range(WIDTH - 3)]
        pairs = list(zip(keys, [*values, row, 1.79e9 + row / 4, row / 4], strict=True))
        numbers.shuffle(pairs)
        items = b"".join(field(1, field(2, k.encode()) + field(16, json.dumps(v).encode())) for k, v in pairs)
        yield b"\x08" + varint(2 * row + 1) + field(3, items)
        yield b"\x08" + varint(2 * row + 2) + field(2, items + field(2, b"\x08" + varint(row)))


def write_log(path: Path, rows: int) -> None:
    """A .wandb file of `rows` rows with WIDTH values each."""
    with path.open("wb") as file:
        file.write(HEADER)
        place = len(HEADER)
        for message in messages(rows):
            first, rest = True, message
            while first or rest:
                left = BLOCK - place % BLOCK
                if left < 7:
                    place += file.write(bytes(left))
                    continue
                part, rest = rest[: left - 7], rest[left - 7 :]
                kind = (1 if first else 4) if not rest else (2 if first else 3)
                crc = zlib.crc32(part, zlib.crc32(bytes([kind])))
                place += file.write(struct.pack("<IHB", crc, len(part), kind) + part)
                first = False


def records(path: str) -> Iterator[bytes]:
    """The records of an undamaged log, with their checksums looked at, for the other side."""
    data = Path(path).read_bytes()
    place, parts = len(HEADER), b""
    while place + 7 <= len(data):
        left = BLOCK - place % BLOCK
        if left < 7:
            place += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + 7 : place + 7 + length]
        if zlib.crc32(part, zlib.crc32(bytes([kind]))) != crc:
            raise ValueError(f"wrong checksum at byte {place}")
        place += 7 + length
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):
            yield parts


def measured(python: str, code: str, path: Path) -> tuple[float, float]:
    """(seconds, peak MB) of one child process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [python, "-c", code + TELL, str(path)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    taken, peak = done.stdout.split()
    return float(taken), float(peak)


def has_wandb(python: str) -> bool:
    """Whether this Python can import wandb's protobufs."""
    code = "import wandb.proto.wandb_internal_pb2, numpy"
    return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer", default=sys.executable)
    given = parser.parse_args()
    rows: int = given.rows
    peer = has_wandb(given.peer)
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    twice: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        log, longer = Path(folder, "run-a.wandb"), Path(folder, "run-b.wandb")
        write_log(log, rows)
        write_log(longer, 2 * rows)
        size = log.stat().st_size / 1e6
        for _ in range(given.runs):
            ours.append(measured(sys.executable, OURS, log))
            if peer:
                theirs.append(measured(given.peer, THEIRS, log))
            twice.append(measured(sys.executable, OURS, longer))
    taken, peak = min(ours)[0], max(peak for _, peak in ours)
    growth = min(twice)[0] / taken
    failed = peak > PEAK_MB or growth > GROWTH
    print(f"{rows * WIDTH} values in {size:.0f} MB")
    print(f"gradforensics     {taken:6.2f} s  {rows * WIDTH / taken / 1e3:7.0f} k values/s  peak {peak:.0f} MB")
    if peer:
        other = min(theirs)[0]
        failed = failed or taken > RATIO * other
        print(f"wandb's protobufs {other:6.2f} s  {rows * WIDTH / other / 1e3:7.0f} k values/s")
        print(f"time against wandb's protobufs: {taken / other:.2f}x  (limit {RATIO:.1f}x)")
    else:
        print("wandb is not installed: no comparison (--peer names a Python that has it)")
    print(f"peak memory: {peak:.0f} MB  (limit {PEAK_MB:.0f} MB); twice the rows: {growth:.2f}x  (limit {GROWTH:.1f}x)")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
