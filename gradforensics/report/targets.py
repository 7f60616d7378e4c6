"""Where outputs go: what the user asked for, checked before anything is read. Nothing may lie inside the evidence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from gradforensics.errors import UsageError


class Target(NamedTuple):
    """One output. path: None for stdout."""

    format: str
    path: Path | None


def targets(
    inputs: Sequence[Path],
    wanted: Sequence[tuple[str, str]],
    formats: Collection[str],
    *,
    binary: Collection[str] = (),
    default: tuple[str, str] | None = None,
) -> list[Target]:
    """The outputs that the user asked for. Raises UsageError.

    inputs: the evidence; wanted: (format, place), "-" for stdout; formats: that exist; binary: those among them that do
    not go to stdout. default: (format, file name) of an output that is written in any case: unless the format is wanted
    by name, in the current folder or, where that lies inside the evidence, beside the evidence.
    """
    found = [_target(name, place, formats, binary) for name, place in wanted]
    folders = [i.resolve() for i in inputs if i.is_dir()]
    for target in found:
        _outside(target.path, inputs, folders)
    if default is not None and not any(target.format == default[0] for target in found):
        found.insert(0, Target(default[0], _beside(default[1], folders)))
    written = [target.path.resolve() for target in found if target.path]
    if len(set(written)) < len(written):
        raise UsageError("two outputs have the same path")
    if sum(target.path is None for target in found) > 1:
        raise UsageError("only one output can go to stdout")
    return found


def folder(inputs: Sequence[Path], wanted: str | None, default: str) -> Path:
    """The folder that a command writes: the user's, else `default` in the current folder. Raises UsageError.

    inputs: the run directory, inside of which it may not lie; a default that would lies beside it.
    """
    folders = [i.resolve() for i in inputs if i.is_dir()]
    if wanted is None:
        return _beside(default, folders)
    _outside(Path(wanted), inputs, folders)
    return Path(wanted)


def _target(name: str, place: str, formats: Collection[str], binary: Collection[str]) -> Target:
    text = f"--output {f'{name}={place}'!r}"
    if name not in formats:
        raise UsageError(f"{text}: no format {name!r} ({', '.join(formats)})")
    if not place:
        raise UsageError(f"{text} names no path")
    if place == "-" and name in binary:
        raise UsageError(f"{text}: {name} is no text; name a file")
    return Target(name, None if place == "-" else Path(place))


def _outside(path: Path | None, inputs: Sequence[Path], folders: Sequence[Path]) -> None:
    if path is None:
        return
    inside = next((f for f in folders if path.resolve().is_relative_to(f)), None)
    if inside:
        raise UsageError(
            f"{path} lies inside the run directory {inside}; nothing is written there, choose another place"
        )
    if path.exists() and any(path.samefile(i) for i in inputs if i.is_file()):
        raise UsageError(f"{path} is the evidence itself; choose another place")


def _beside(name: str, folders: Sequence[Path]) -> Path:
    current = Path.cwd().resolve()
    here = current
    while any(here.is_relative_to(f) for f in folders) and here != here.parent:
        here = here.parent
    return Path(name) if here == current else here / name
