"""Where MLflow's file store keeps what: <experiment>/<run>/{meta.yaml, metrics/<key>, params/<key>, tags/<key>}."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal, NamedTuple, TypeAlias

from gradforensics.evidence.files import File

Kind: TypeAlias = Literal["metrics", "params", "tags", "meta"]

META = "meta.yaml"
_KINDS: dict[str, Kind] = {"metrics": "metrics", "params": "params", "tags": "tags"}
_RUN = re.compile(r"[0-9a-f]{32}$")
_META = re.compile(r"^run_(?:id|uuid): *\S", re.MULTILINE)
# milliseconds (seconds in the first versions), value, step, and since 2.x a data set's name and digest
_LINE = re.compile(
    r"\d{10}(?:\d{3})? [-+]?(?:\d[-+\d.eE]*|nan|inf|Infinity)(?: -?\d+(?: \S+ \S+)?)?\s*$", re.IGNORECASE
)


class Place(NamedTuple):
    """What one file of the store is: of which run folder, and which key (nested keys are folders)."""

    folder: PurePosixPath
    kind: Kind
    key: str


def place(file: File) -> Place | None:
    """The place of a file in a store, None where it is no part of one.

    The folder of a run is called after its id. Where only a run's own folder was given, its metrics are told by their
    content, its parameters and tags by the path of the input.
    """
    parts = PurePosixPath(file.name).parts
    if parts[-1] == META:
        return Place(PurePosixPath(*parts[:-1]), "meta", "") if _META.search(file.start) else None
    for index, part in enumerate(parts[:-1]):
        kind = _KINDS.get(part)
        if kind is None:
            continue
        if _RUN.match(_above(file, index)) or (kind == "metrics" and _LINE.match(_first_line(file))):
            return Place(PurePosixPath(*parts[:index]), kind, "/".join(parts[index + 1 :]))
    return None


def _above(file: File, index: int) -> str:
    """The name of the folder that holds the part `index` of a file's name, which may be the input itself."""
    parts = PurePosixPath(file.name).parts
    if index:
        return parts[index - 1]
    if file.opener is not None:  # inside of an archive: the path is that of the archive
        return ""
    above = file.path.parts[: -len(parts)]
    return above[-1] if above else ""


def _first_line(file: File) -> str:
    return file.start[:400].partition("\n")[0]
