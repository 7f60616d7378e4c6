"""Damages logs at random, in memory, and has every reader read them: notices are allowed, exceptions and hangs are not.

    python benchmarks/fuzz_logs.py [--mutations 10000] [--seed 0] [--readers NAME ...] [--keep FOLDER]

Per reader, --mutations files are made from those of tests/evidence/data and sample_runs that it takes, and from a few
small texts. Kinds of damage: cuts, flipped bits, splices of two files, repeated and removed blocks, random bytes, odd
numbers and words in the place of others. What raises anything, or needs more than 5 seconds of processor time, is kept
in --keep; exit code 1.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import BinaryIO, cast

from gradforensics.evidence.files import File
from gradforensics.evidence.readers import READERS, Reader, binary_readers
from gradforensics.evidence.readings import Reading
from gradforensics.tables import SERIES_SCHEMA

LIMIT = 5.0  # seconds of processor time for one file
_MAX_SEED = 64 << 10  # larger files are mostly rows like those before
_SEEDS = 60  # per reader
_ROOT = Path(__file__).resolve().parents[1]
_ROWS = "".join(
    f'{{"step": {s}, "loss": {3 - s / 90:.4f}, "learning_rate": 1e-4, "epoch": {s / 40}}}\n' for s in range(60)
)
_LINES = "".join(f"[2026-01-01 00:00:{s:02d}] step {s} | loss: {3 - s / 90:.4f} | lr 1.0e-04\n" for s in range(60))
_TEXTS = {
    "log.jsonl": _ROWS,
    "metrics.csv": "step,loss,lr\n" + "".join(f"{s},{3 - s / 90:.4f},0.0001\n" for s in range(60)),
    "train.log": _LINES
    + "Traceback (most recent call last):\n  File 'a.py', line 1\nRuntimeError: CUDA out of memory\n",
    "trainer_state.json": '{"global_step": 3, "max_steps": 9, "log_history": [{"step": 1, "loss": 2.5, "epoch": 0.1}, '
    '{"step": 2, "loss": NaN}, {"step": 3, "eval_loss": 2.0, "eval_runtime": 1.0}]}',
    "trainer_log.jsonl": '{"current_steps": 1, "total_steps": 9, "loss": 2.5, "lr": 0.1, "epoch": 0.1}\n' * 5,
    "all_results.json": '{"epoch": 3.0, "train_loss": 1.5, "train_runtime": 10.0, "eval_loss": 2.0}',
    "history.json": '{"loss": [3.0, 2.0, NaN, 1.0], "val_loss": [3.0, 2.5, 2.4, 2.4], "lr": [0.1, 0.1, 0.1, 0.01]}',
    "records.json": '[{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]',
    "config.yaml": "optimizer:\n  lr: 1e-4\n  betas: [0.9, 0.999]\nmax_steps: 100\nbatch_size: &b 8\nother: *b\n",
    "config.json": '{"learning_rate": 0.1, "max_steps": 100, "nested": {"batch_size": [1, 2, {"a": null}]}}',
    "ds_config.json": '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true, '
    '"initial_scale_power": 16}, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}',
    f"mlruns/0/{'0a' * 16}/metrics/loss": "".join(f"17000000{s:02d}000 {3 - s / 90} {s}\n" for s in range(60)),
    f"mlruns/0/{'0a' * 16}/params/lr": "0.001",
    f"mlruns/0/{'0a' * 16}/meta.yaml": "run_id: 0a\nrun_name: a\nstatus: 3\nend_time: 1700000060000\n",
    "dmesg.log": "".join(
        f"[ {1000 + s}.123456] nvidia-nvlink: Nvlink Core is being initialized {s}\n" for s in range(9)
    )
    + "[ 2000.123456] NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, GPU has fallen off the bus.\n"
    "[ 2001.123456] Out of memory: Killed process 4242 (python) total-vm:99kB, anon-rss:1kB\n",
    "gpu.txt": "==============NVSMI LOG==============\n\nDriver Version : 525.60.13\nCUDA Version : 12.0\n"
    "GPU 00000000:07:00.0\n    Product Name : NVIDIA A100-SXM4-80GB\n    ECC Errors\n        Volatile\n"
    "            DRAM Uncorrectable : 3\n    Temperature\n        GPU Current Temp : 99 C\n",
    "config.toml": "learning_rate = 0.1\n[data]\nbatch_size = 8\n",
}
_ODD = (
    b"NaN", b"-inf", b"1e999", b"-0", b"9223372036854775808", b"1" * 400, b"null", b"{}", b"[[[[", b'"', b"\\u0000",
    b"\xff\xfe", b"\r", b"\r\n", b"\t", b"\0", b"\x1b[31m", b"\xe2\x80\xa8", b"&a [*a]", b"step",
    b"epoch", b"%|###|", b"1/0", b"e",
)  # fmt: skip
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Seed:
    """A healthy file: its name below the folder that it came from, and its bytes."""

    name: str
    data: bytes


@dataclass(slots=True)
class Outcome:
    """What became of the files of one reader. failed: name, bytes and traceback of those that raised something."""

    claimed: int = 0
    remarked: int = 0
    slowest: float = 0.0
    failed: list[tuple[str, bytes, str]] = field(default_factory=list)


def load() -> list[Seed]:
    """All small files among the data of the tests and the sample runs, and the texts above."""
    found = [Seed(name, text.encode()) for name, text in _TEXTS.items()]
    for folder in (_ROOT / "tests" / "evidence" / "data", _ROOT / "sample_runs"):
        found += [
            Seed(str(path.relative_to(folder)), path.read_bytes())
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix not in (".py", ".pyc", ".md") and 0 < path.stat().st_size <= _MAX_SEED
        ]
    return found


def seeds_of(reader: Reader, seeds: Sequence[Seed]) -> list[Seed]:
    """The files that a reader takes, at most 60, evenly chosen."""
    mine = [seed for seed in seeds if _takes(reader, seed)]
    return mine[:: max(1, len(mine) // _SEEDS)][:_SEEDS]


def _takes(reader: Reader, seed: Seed) -> bool:
    file = in_memory(seed.name, seed.data)
    if file.is_text == (reader in binary_readers()) or not reader.sniff(file):
        return False
    return reader.read(file).claimed


def in_memory(name: str, data: bytes) -> File:
    """A file whose bytes are these, as if it lay inside of an archive."""
    opener = cast("Callable[[], BinaryIO]", partial(io.BytesIO, data))
    return File(Path("/nowhere") / name, name, len(data), opener=opener)


# -- damage -----------------------------------------------------------------------------------------------------------


def _cut(dice: random.Random, seed: bytes, _: bytes) -> bytes:
    return seed[: dice.randrange(len(seed))]


def _flip(dice: random.Random, seed: bytes, _: bytes) -> bytes:
    data = bytearray(seed)
    for _index in range(dice.randint(1, 8)):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data)


def _splice(dice: random.Random, seed: bytes, other: bytes) -> bytes:
    at, start = dice.randrange(len(seed)), dice.randrange(len(other))
    return seed[:at] + other[start : start + dice.randint(1, 2000)] + seed[at + dice.randint(0, 200) :]


def _repeat(dice: random.Random, seed: bytes, _: bytes) -> bytes:
    at, size = dice.randrange(len(seed)), dice.choice((1, 7, 64, 700))
    return seed[:at] + seed[at : at + size] * dice.choice((0, 2, 3, 100)) + seed[at + size :]


def _noise(dice: random.Random, seed: bytes, _: bytes) -> bytes:
    at, size = dice.randrange(len(seed)), dice.choice((1, 4, 40, 400))
    return seed[:at] + dice.randbytes(size) + seed[at + dice.choice((0, size)) :]


def _odd(dice: random.Random, seed: bytes, _: bytes) -> bytes:
    places = list(_NUMBER.finditer(seed, dice.randrange(len(seed))))[:200]
    if not places:
        return _noise(dice, seed, seed)
    for place in sorted(dice.sample(places, min(len(places), dice.randint(1, 4))), key=lambda m: -m.start()):
        seed = seed[: place.start()] + dice.choice(_ODD) + seed[place.end() :]
    return seed


def _random(dice: random.Random, _: bytes, __: bytes) -> bytes:
    return dice.randbytes(dice.randint(1, 3000))


DAMAGE: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    _cut, _cut, _flip, _flip, _splice, _repeat, _noise, _odd, _odd, _random,
)  # fmt: skip


# -- reading ----------------------------------------------------------------------------------------------------------


class TooSlowError(Exception):
    """A reader needed more than LIMIT seconds."""


def _expired(_: int, __: FrameType | None) -> None:
    raise TooSlowError


@contextmanager
def limited() -> Iterator[None]:
    """Raises TooSlowError after LIMIT seconds of processor time."""
    signal.signal(signal.SIGPROF, _expired)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def read(reader: Reader, name: str, data: bytes) -> Reading | None:
    """What the tool does with a file: None where the reader says that it is not its own."""
    file = in_memory(name, data)
    reading = reader.read(file) if reader.sniff(file) else None
    if reading is None or not reading.claimed:
        return None
    for one in (reading, *reading.runs.values()):
        for track in one.tracks:
            if list(track.stored.frame.schema) != list(SERIES_SCHEMA) or not track.stored.frame.height:
                raise ValueError(
                    f"a frame of the columns {track.stored.frame.columns}, {track.stored.frame.height} rows"
                )
    return reading


def run(reader: Reader, seeds: Sequence[Seed], mutations: int, seed: int) -> Outcome:
    """Read `mutations` damaged files, always the same ones for the same seed."""
    dice = random.Random(f"{reader.name} {seed}")  # noqa: S311  no secret
    outcome = Outcome()
    for number in range(mutations):
        chosen, other = dice.choice(seeds), dice.choice(seeds)
        damage = dice.choice(DAMAGE)
        data = damage(dice, chosen.data, other.data)
        start = time.process_time()
        try:
            with limited():
                reading = read(reader, chosen.name, data)
            outcome.claimed += reading is not None
            outcome.remarked += bool(reading and reading.notices)
        except Exception:  # noqa: BLE001  this is what is looked for
            name = f"{reader.name}-{number}{damage.__name__}-{Path(chosen.name).name}"
            outcome.failed.append((name, data, traceback.format_exc()))
        outcome.slowest = max(outcome.slowest, time.process_time() - start)
    return outcome


def main() -> int:
    """Damage, read, and print what became of it, reader by reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", nargs="*")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    options = parser.parse_args()
    seeds = load()
    failed = 0
    for reader in (*READERS, *binary_readers()):
        if options.readers and reader.name not in options.readers:
            continue
        mine = seeds_of(reader, seeds)
        if not mine:
            print(f"{reader.name:20} no file to damage")
            failed += 1
            continue
        outcome = run(reader, mine, options.mutations, options.seed)
        said = f"{outcome.claimed} claimed, {outcome.remarked} with notices, slowest {outcome.slowest:.2f} s"
        print(f"{reader.name:20} {len(mine)} files, {options.mutations} mutations: {said}", flush=True)
        kinds = Counter(trace.splitlines()[-1] for _, _, trace in outcome.failed)
        for kind, count in kinds.most_common(8):
            print(f"  {count:7}  {kind[:160]}")
        for name, data, trace in outcome.failed[:20]:
            options.keep.mkdir(exist_ok=True)
            (options.keep / name).write_bytes(data)
            (options.keep / f"{name}.trace").write_text(trace)
        failed += len(outcome.failed)
    print(f"failed: {failed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
