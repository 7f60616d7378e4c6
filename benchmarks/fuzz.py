"""Damages checkpoint files at random, in memory, and reads them: each must be refused or read as data, nothing else.

    python benchmarks/fuzz.py [--mutations 100000] [--seed 0] [--folder CHECKPOINTS] [--keep FOLDER]

Without --folder the files to damage are made by torch.save and safetensors. Kinds of damage: flipped bytes, cuts,
splices, repeated and removed blocks, length fields, swapped opcodes, edited zip headers, and a data.pkl that was edited
inside of an archive whose checksums were made right again. What raises anything but RefusedError is kept in --keep;
exit code 1.
"""

from __future__ import annotations

import argparse
import io
import random
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradforensics.checkpoints import layout, tree
from gradforensics.checkpoints.formats import safetensors, torch_file
from gradforensics.untrusted import danger
from gradforensics.untrusted.files import Memory, RefusedError

_MAX_SIZE = 1 << 20  # larger files are mostly numbers, which no reader looks at
_OPCODES = b"(.012BCFIJKLMNPQRSTUVXabcdeghijlopqrstu})]" + bytes(range(0x80, 0x99))
_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 65536, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62)


@dataclass(frozen=True, slots=True)
class Seed:
    """A healthy file. spans: (begin, end) of the parts whose bytes a reader looks at."""

    name: str
    data: bytes
    spans: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Outcome:
    """What became of all mutations. failed: name, bytes and traceback of those that raised something else."""

    opened: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    failed: list[tuple[str, bytes, str]] = field(default_factory=list)


def load(folder: Path) -> list[Seed]:
    """The files of a folder that the readers take."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and 8 <= path.stat().st_size <= _MAX_SIZE:
            data = path.read_bytes()
            if path.suffix == ".safetensors" or torch_file.looks_like_one(data[:4]):
                found.append(Seed(path.name, data, _spans(path.name, data)))
    return found


def make(folder: Path) -> list[Seed]:
    """Files of torch.save (zip and legacy), pickle and safetensors, of a small model with its optimizer."""
    import pickle  # noqa: PLC0415  only to write one

    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415  slow to import
    from safetensors.numpy import save_file  # noqa: PLC0415

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.ones(2, 4)).sum().backward()
    adam.step()
    state = {
        "model": net.state_dict(),
        "optimizer": adam.state_dict(),
        "random": np.random.default_rng(0).integers(0, 9, 12),
        "scalar": np.float32(1.5),
        "half": torch.ones(3, dtype=torch.bfloat16)[::2],
        "names": {"set": {1, 2}, "tuple": (1, "a"), "bytes": b"ab", "text": "é"},
    }
    torch.save(state, folder / "zip.pt")
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(net, folder / "module.pt")
    (folder / "plain.pkl").write_bytes(pickle.dumps({"weight": torch.ones(3), "names": [1.5, None, True, 1 << 70]}, 4))
    save_file(
        {"a": np.ones((2, 3), np.float32), "b": np.zeros(5, np.int64)}, folder / "two.safetensors", {"format": "pt"}
    )
    return load(folder)


def _spans(name: str, data: bytes) -> tuple[tuple[int, int], ...]:
    """Where a file holds structure: all headers and pickles, no tensors."""
    if name.endswith(".safetensors"):
        return ((0, 8 + int.from_bytes(data[:8], "little")),)
    if not data.startswith(b"PK"):
        return ((0, min(len(data), 4096)),)
    spans = [(data.rfind(b"PK\1\2", 0, len(data)), len(data))]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            end = info.header_offset + 30 + len(info.filename)
            spans.append((info.header_offset, end + (info.file_size if info.filename.endswith(".pkl") else 0)))
    return tuple(spans)


# -- damage -----------------------------------------------------------------------------------------------------------


def _place(dice: random.Random, seed: Seed) -> int:
    """A byte of the file, mostly one that matters."""
    if dice.random() < 0.1:
        return dice.randrange(len(seed.data))
    begin, end = dice.choice(seed.spans)
    return dice.randrange(begin, max(begin + 1, min(end, len(seed.data))))


def _flip(dice: random.Random, seed: Seed, _: Seed) -> bytes:
    data = bytearray(seed.data)
    for _index in range(dice.randint(1, 6)):
        data[_place(dice, seed)] = dice.randrange(256)
    return bytes(data)


def _cut(dice: random.Random, seed: Seed, _: Seed) -> bytes:
    return seed.data[: _place(dice, seed)]


def _splice(dice: random.Random, seed: Seed, other: Seed) -> bytes:
    at, start = _place(dice, seed), _place(dice, other)
    return seed.data[:at] + other.data[start : start + dice.randint(1, 400)] + seed.data[at + dice.randint(0, 40) :]


def _repeat(dice: random.Random, seed: Seed, _: Seed) -> bytes:
    at, size = _place(dice, seed), dice.randint(1, 60)
    return seed.data[:at] + seed.data[at : at + size] * dice.choice((0, 2, 3, 200)) + seed.data[at + size :]


def _length(dice: random.Random, seed: Seed, _: Seed) -> bytes:
    at, form = _place(dice, seed), dice.choice(("<B", "<H", "<I", "<Q"))
    size = struct.calcsize(form)
    value = dice.choice(_NUMBERS) + dice.choice((0, 0, -1, 1))
    return seed.data[:at] + struct.pack(form, value & ((1 << 8 * size) - 1)) + seed.data[at + size :]


def _opcode(dice: random.Random, seed: Seed, _: Seed) -> bytes:
    data = bytearray(seed.data)
    for _index in range(dice.randint(1, 4)):
        data[_place(dice, seed)] = dice.choice(_OPCODES)
    return bytes(data)


def _inside(dice: random.Random, seed: Seed, other: Seed) -> bytes:
    """An edited data.pkl with the right checksum: what an attacker would do, too."""
    if not seed.data.startswith(b"PK"):
        return _opcode(dice, seed, other)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(seed.data)) as archive, zipfile.ZipFile(out, "w") as written:
        for info in archive.infolist():
            content = archive.read(info)
            if info.filename.endswith("/data.pkl"):
                pickled = Seed("data.pkl", content, ((0, len(content)),))
                content = dice.choice((_flip, _splice, _repeat, _length, _opcode, _opcode))(dice, pickled, other)
            written.writestr(info.filename, content)
    return out.getvalue()


DAMAGE: tuple[Callable[[random.Random, Seed, Seed], bytes], ...] = (
    _flip, _cut, _splice, _repeat, _length, _opcode, _inside, _inside, _inside,
)  # fmt: skip


# -- reading ----------------------------------------------------------------------------------------------------------


def read(name: str, data: bytes) -> None:
    """Read a file as the tool does, down to the place of every tensor. Raises RefusedError."""
    file = Memory(name, data)
    if name.endswith(".safetensors"):
        safetensors.read(file)
        return
    found = torch_file.read(file)
    danger.executable(found.uses)
    found.checks()
    for content in layout.understand(found.root).tensors:
        try:
            tree.reference(content.leaf, name)
        except RefusedError:
            continue


def run(seeds: Sequence[Seed], mutations: int, seed: int) -> Outcome:
    """Read `mutations` damaged files, always the same ones for the same seed."""
    dice = random.Random(seed)  # noqa: S311  no secret
    outcome = Outcome()
    for number in range(mutations):
        chosen, other = dice.choice(seeds), dice.choice(seeds)
        damage = dice.choice(DAMAGE)
        data = damage(dice, chosen, other)
        start = time.thread_time()
        try:
            read(chosen.name, data)
            outcome.opened += 1
        except RefusedError as error:
            outcome.refused += 1
            outcome.reasons[" ".join(w for w in str(error).split() if w.isalpha())[:60]] += 1
        except Exception:  # noqa: BLE001  this is what is looked for
            outcome.failed.append((f"{number}-{damage.__name__}-{chosen.name}", data, traceback.format_exc()))
        outcome.slowest.append((time.thread_time() - start, f"{number}{damage.__name__} {chosen.name}"))
        outcome.slowest = sorted(outcome.slowest, reverse=True)[:3]
    return outcome


def main() -> int:
    """Damage, read, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    options = parser.parse_args()
    if options.folder:
        seeds = load(options.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            seeds = make(Path(folder))
    outcome = run(seeds, options.mutations, options.seed)
    print(f"{len(seeds)} files, {options.mutations} mutations: {outcome.opened} opened, {outcome.refused} refused")
    for reason, count in outcome.reasons.most_common(12):
        print(f"  {count:7}  {reason}")
    print("slowest:", "; ".join(f"{seconds:.2f} s {what}" for seconds, what in outcome.slowest))
    if outcome.failed:
        options.keep.mkdir(exist_ok=True)
        for name, data, trace in outcome.failed:
            (options.keep / name).write_bytes(data)
            print(f"{options.keep / name}: {trace.splitlines()[-1]}")
    print(f"anything else raised: {len(outcome.failed)}")
    return int(bool(outcome.failed))


if __name__ == "__main__":
    sys.exit(main())
