"""The scan of checkpoints, as ratios to reading them and to the loop that a user would write.

    python benchmarks/scan.py [--bytes 4e9] [--runs 3] [--folder FOLDER]

Makes one file after the other in a temporary folder (a model as float32 and as bfloat16 safetensors, and a model with
its Adam state as a zip file of torch), reads each until it is in the page cache, and times in turn, each in a process
of its own on two processors:

    cat     cat FILE > /dev/null
    naive   load it, then of each tensor isnan().any(), isinf().any(), norm, mean, std, min, max (torch)
    scan    open it and scan it, with the CRC-32 of every byte

Every figure is the best of the runs, without the imports. Limits: see LIMITS; the highest resident memory of the scan
may be 200 MB, whatever the size. Then two such files one step apart: the measures of their moments and movements may
take as long as a scan of both once more. Exit code 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# kind of file -> (speed as a multiple of the naive loop's, as a share of cat's)
LIMITS: dict[str, tuple[float, float]] = {"float32": (10.0, 0.35), "bfloat16": (10.0, 0.0), "adam": (6.0, 0.0)}
MEMORY_LIMIT = 200e6
PAIRS_LIMIT = 1.0
NAMES = {"float32": "model.safetensors", "bfloat16": "model.safetensors", "adam": "step-1.pt", "later": "step-2.pt"}


# -- the files, made in a process of their own so that this one stays small -------------------------------------------


def shapes(parameters: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A language model of about that many parameters: matrices of a transformer with norms and embeddings."""
    width, vocabulary = next(
        (w, v) for w, v in ((2048, 32000), (1024, 16000), (512, 4000), (128, 500)) if 3 * w * v < parameters or w == 128
    )
    inner = width * 11 // 4
    layer = 4 * width * width + 3 * width * inner
    yield "embed.weight", (vocabulary, width)
    for index in range(max((parameters - 2 * vocabulary * width) // layer, 1)):
        for name in "qkvo":
            yield f"layers.{index}.{name}.weight", (width, width)
        yield f"layers.{index}.up.weight", (inner, width)
        yield f"layers.{index}.gate.weight", (inner, width)
        yield f"layers.{index}.down.weight", (width, inner)
        yield f"layers.{index}.norm.weight", (width,)
        yield f"layers.{index}.norm.bias", (width,)
    yield "head.weight", (vocabulary, width)


def values(shape: tuple[int, ...], spread: float, seed: int) -> torch.Tensor:
    """Normal numbers; a million different ones are enough."""
    import torch  # noqa: PLC0415  only this process needs it

    count = torch.Size(shape).numel()
    some = torch.randn(min(count, 1 << 20), generator=torch.Generator().manual_seed(seed)) * spread
    return some.repeat(-(-count // len(some)))[:count].view(shape)


def make_model(path: str, size: int, kind: str) -> None:
    """A safetensors file, written tensor by tensor."""
    import torch  # noqa: PLC0415  only this process needs it

    dtype = getattr(torch, kind)
    header, offset = {}, 0
    parts = list(shapes(size // dtype.itemsize))
    for name, shape in parts:
        end = offset + torch.Size(shape).numel() * dtype.itemsize
        short = {"float32": "F32", "bfloat16": "BF16"}[kind]
        header[name] = {"dtype": short, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with Path(path).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for seed, (_, shape) in enumerate(parts):
            made = values(shape, 0.02, seed).to(dtype)
            made.view(torch.uint8).numpy().tofile(file)


def make_adam(path: str, size: int, step: int) -> None:
    """Parameters and Adam's moments of a third of `size` bytes each, after `step` steps of one gradient."""
    import torch  # noqa: PLC0415  only this process needs it

    model, state = {}, {}
    for index, (name, shape) in enumerate(shapes(size // 12)):
        gradient = values(shape, 1e-3, index)
        model[name] = values(shape, 0.02, index) - 1e-4 * step * gradient.sign()
        state[index] = {
            "step": torch.tensor(float(step)),
            "exp_avg": gradient * (1 - 0.9**step),
            "exp_avg_sq": gradient.square_() * (1 - 0.999**step),
        }
    group: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
    group |= {"params": list(state), "param_names": list(model)}
    torch.save({"model": model, "optimizer": {"state": state, "param_groups": [group]}, "step": step}, path)


def make(kind: str, path: str, size: int) -> None:
    """Write one file."""
    if kind in ("adam", "later"):
        make_adam(path, size, 1 if kind == "adam" else 2)
    else:
        make_model(path, size, kind)


# -- what is measured, each in a process of its own -------------------------------------------------------------------


def naive(path: str) -> dict[str, float]:
    """The loop that a user would write."""
    import torch  # noqa: PLC0415  only this process needs it
    from safetensors.torch import load_file  # noqa: PLC0415  likewise

    start = time.perf_counter()
    loaded = load_file(path) if path.endswith(".safetensors") else torch.load(path, weights_only=True)
    for tensor in _tensors(loaded):
        if tensor.isnan().any() or tensor.isinf().any():
            raise SystemExit("the files are meant to be finite")
        for value in (tensor.norm(), tensor.mean(), tensor.std(), tensor.min(), tensor.max()):
            value.item()
    return {"seconds": time.perf_counter() - start}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    import torch  # noqa: PLC0415  only this process needs it

    if isinstance(value, torch.Tensor) and value.dim():
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def scan(*paths: str) -> dict[str, float]:
    """Our scan, and the highest resident memory of the process."""
    import resource  # noqa: PLC0415  not on every platform

    from gradforensics.checkpoints.scan import scan as scan_tensors  # noqa: PLC0415  an import that is not timed

    opened = _opener()
    start = time.perf_counter()
    for path in paths:
        checkpoint = opened(path)
        found = scan_tensors(checkpoint.tensors, checkpoint.checksums)
        if found.failed or any(isinstance(result, str) or result.nan for result in found.results):
            raise SystemExit("the files are meant to be whole and finite")
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    # of a file that is worth it, a second process does half of the work
    used = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"seconds": seconds, "memory": sum(used) * unit}


def pairs(*paths: str) -> dict[str, float]:
    """The measures of moments and movements, as they are made for the checkpoints of a run."""
    from gradforensics.checkpoints.measure import parameters  # noqa: PLC0415  an import that is not timed
    from gradforensics.checkpoints.pairs import travels  # noqa: PLC0415  likewise

    opened = _opener()
    before, after = (parameters(opened(path)) for path in paths)
    start = time.perf_counter()
    both = travels(before, after, first_step=1, step=2, both=True)
    seconds = time.perf_counter() - start
    if len(both.earlier) != len(before) or len(both.travels) != len(before) or len(both.moments) != len(before):
        raise SystemExit("moments or movements were not measured")
    return {"seconds": seconds}


def _opener() -> Callable[[str], Any]:
    """What opens a file as a checkpoint, everything imported."""
    from gradforensics.checkpoints.assigning import name  # noqa: PLC0415  only these processes need it
    from gradforensics.checkpoints.measure import open_all  # noqa: PLC0415  likewise
    from gradforensics.untrusted.files import RegularFile  # noqa: PLC0415  likewise

    def opened(path: str) -> Any:
        loaded = open_all([RegularFile(Path(path), Path(path).name, Path(path).stat().st_size)])
        name(loaded)
        return loaded[0].checkpoint

    return opened


# -- the runs ---------------------------------------------------------------------------------------------------------

CHILDREN: dict[str, Callable[..., dict[str, float]]] = {"naive": naive, "scan": scan, "pairs": pairs}


def child(*arguments: str) -> dict[str, float]:
    """Run this script in a new process and read its answer."""
    done = subprocess.run([sys.executable, __file__, "--child", *arguments], check=True, stdout=subprocess.PIPE)
    answer: dict[str, float] = json.loads(done.stdout or "{}")
    return answer


def cat(path: str) -> dict[str, float]:
    """Read the file and do nothing with it."""
    start = time.perf_counter()
    subprocess.run(["cat", path], check=True, stdout=subprocess.DEVNULL)  # noqa: S607  which cat does not matter
    return {"seconds": time.perf_counter() - start}


def best(tasks: dict[str, Callable[[], dict[str, float]]], runs: int) -> dict[str, dict[str, float]]:
    """The fastest of the runs of each task, which take turns; memory is the highest of all."""
    found: dict[str, dict[str, float]] = {}
    for _ in range(runs):
        for name, task in tasks.items():
            one = task()
            known = found.setdefault(name, one)
            found[name] = {
                "seconds": min(known["seconds"], one["seconds"]),
                "memory": max(known.get("memory", 0.0), one.get("memory", 0.0)),
            }
    return found


def measure_file(kind: str, folder: str, size: int, runs: int) -> bool:
    """Make a file, time everything on it, print a line; whether all limits are met."""
    path = str(Path(folder) / NAMES[kind])
    child("make", kind, path, str(size))
    cat(path)
    found = best(
        {"cat": lambda: cat(path), "naive": lambda: child("naive", path), "scan": lambda: child("scan", path)}, runs
    )
    nbytes = Path(path).stat().st_size
    speeds = {name: nbytes / 1e9 / one["seconds"] for name, one in found.items()}
    to_naive, to_cat = speeds["scan"] / speeds["naive"], speeds["scan"] / speeds["cat"]
    memory = found["scan"]["memory"]
    least, share = LIMITS[kind]
    columns = "".join(f"{name} {speed:6.2f} GB/s  " for name, speed in speeds.items())
    wanted = f"(limits {least:.0f}x, {share:.2f}, {MEMORY_LIMIT / 1e6:.0f} MB)"
    print(
        f"{kind:9} {nbytes / 1e9:5.2f} GB  {columns}{to_naive:5.1f}x naive  {to_cat:4.2f} of cat  "
        f"{memory / 1e6:4.0f} MB  {wanted}",
        flush=True,
    )
    if kind != "adam":
        Path(path).unlink()
    return to_naive >= least and to_cat >= share and memory <= MEMORY_LIMIT


def measure_pairs(folder: str, size: int, runs: int) -> bool:
    """The file of the Adam state, which is there, and one a step later."""
    paths = [str(Path(folder) / NAMES[kind]) for kind in ("adam", "later")]
    child("make", "later", paths[1], str(size))
    for path in paths:
        cat(path)
    found = best({name: lambda name=name: child(name, *paths) for name in ("scan", "pairs")}, runs)  # type: ignore[misc]  # mypy cannot infer a lambda's default
    share = found["pairs"]["seconds"] / found["scan"]["seconds"]
    print(f"moments and movements of two files: {share:4.2f} of a scan of both (limit {PAIRS_LIMIT:.1f})")
    return share <= PAIRS_LIMIT


def two_processors() -> None:
    """This process and its children on at most two processors, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=4e9, help="of each file (default 4e9)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where the files are made (default: the system's temporary folder)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what, *rest = arguments.child
        if what == "make":
            make(rest[0], rest[1], int(rest[2]))
        else:
            print(json.dumps(CHILDREN[what](*rest)))
        return 0
    two_processors()
    size = int(arguments.bytes)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        met = [measure_file(kind, folder, size, arguments.runs) for kind in LIMITS]
        met.append(measure_pairs(folder, size, arguments.runs))
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
