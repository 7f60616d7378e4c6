"""Averaged copies of a model's weights (EMA, SWA) that are saved beside them, told by their names (a leaf).

The keys are those of timm (state_dict_ema), torch.optim.swa_utils and loops that call a key `ema` or `model_ema`,
torch_ema (shadow_params), ema-pytorch (ema_model), LitEma of latent diffusion (names without their dots), StyleGAN
(G_ema), Lightning's WeightAveraging (the loader calls its state_dict `averaged`), and diffusers (a folder unet_ema).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeAlias

from gradforensics.parameter_names import bare, is_average
from gradforensics.patterns import lazy

Shape: TypeAlias = tuple[int, ...]

# Of files and folders: shadow_params is a key and no file.
_COPY_FILE = lazy(r"(?:^|[_-])(?:ema|swa|averaged)(?:[_.-]|$)", re.IGNORECASE)
_LEAST = 0.5  # share of a copy's names that a model must have: names of layers may hold "ema" or "swa" themselves
_TRIED = 40  # names of a copy that choose the part of the model it is of
_DEPTH = 2  # parts of a name that may be the part of the model


@dataclass(frozen=True, slots=True)
class Copy:
    """An averaged copy: the key under which it lies, and its names with those of the weights that it averages."""

    key: str
    names: Mapping[str, str]


def find(named: Sequence[tuple[str, Shape]]) -> tuple[list[Copy], frozenset[str]]:
    """The copies among the tensors of one checkpoint, and every name that belongs to one or to its counters."""
    groups: dict[str, list[tuple[str, str, Shape]]] = {}
    live: list[tuple[str, Shape]] = []
    for name, shape in named:
        key, rest = _split(name)
        if key:
            groups.setdefault(key, []).append((name, rest, shape))
        else:
            live.append((name, shape))
    found = [copy for key, rows in groups.items() if (copy := _matched(key, rows, live)) is not None]
    hidden = frozenset(
        name
        for key, rows in groups.items()
        if any(copy.key == key or copy.key.startswith(f"{key}.") for copy in found)
        for name, _, _ in rows
    )
    return found, hidden


def is_copy_path(path: str) -> bool:
    """Whether a file or folder of this path is called after an average: unet_ema, ema-100.pt."""
    return _COPY_FILE.search(PurePosixPath(path).name) is not None


def key_of(path: str) -> str:
    """What a copy that lies in a file or folder of its own is called in every checkpoint: its name without numbers."""
    return re.sub(r"\d+", "#", PurePosixPath(path).name)


def beside(path: str, paths: Iterable[str]) -> str | None:
    """Of the paths in one folder, the one that a copy's own path is without the word: unet_ema -> unet."""
    folder, wanted = PurePosixPath(path).parent, _letters(_COPY_FILE.sub("-", PurePosixPath(path).name))
    return next(
        (p for p in paths if PurePosixPath(p).parent == folder and _letters(PurePosixPath(p).name) == wanted), None
    )


def lies_beside(path: str, paths: Iterable[str]) -> bool:
    """Whether a path is that of a copy whose weights are in one of the paths."""
    return is_copy_path(path) and beside(path, paths) is not None


def _letters(name: str) -> str:
    return re.sub(r"[_.-]", "", name)


@lru_cache(maxsize=1 << 16)
def _split(name: str) -> tuple[str, str]:
    """The key of the copy that a name may be in, and the rest of the name; "" where it is in none."""
    parts = name.split(".")
    at = next((i for i in reversed(range(len(parts) - 1)) if is_average(parts[i])), None)
    return ("", name) if at is None else (".".join(parts[: at + 1]), ".".join(parts[at + 1 :]))


def _flat(name: str) -> str:
    """A name without the parts of wrappers and without dots, which LitEma leaves out."""
    return bare(name).replace(".", "")


def _matched(key: str, rows: Sequence[tuple[str, str, Shape]], live: Sequence[tuple[str, Shape]]) -> Copy | None:
    """A group of names as a copy of weights, where the model has most of them."""
    if all(rest.isdecimal() for _, rest, _ in rows):
        return _in_order(key, rows, live)
    by_name = {(_flat(name), shape): name for name, shape in live}
    starts = {"": 0}
    for name, _ in live:
        parts = name.split(".")
        starts |= {_flat(".".join(parts[:depth])): 0 for depth in range(1, min(_DEPTH, len(parts) - 1) + 1)}
    for _, rest, shape in rows[:_TRIED]:
        for start in starts:
            starts[start] += (start + _flat(rest), shape) in by_name
    best = max(starts, key=lambda start: starts[start])
    names = {name: by_name[found] for name, rest, shape in rows if (found := (best + _flat(rest), shape)) in by_name}
    tensors = sum(1 for _, _, shape in rows if shape)
    return Copy(key, names) if names and len(names) >= _LEAST * tensors else None


def _in_order(key: str, rows: Sequence[tuple[str, str, Shape]], live: Sequence[tuple[str, Shape]]) -> Copy | None:
    """A list of tensors that are the model's parameters in their order."""
    if [shape for _, _, shape in rows] != [shape for _, shape in live]:
        return None
    return Copy(key, {name: of for (name, _, _), (of, _) in zip(rows, live, strict=True)})
