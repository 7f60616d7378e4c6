"""What the runs of an input are called: after their folders, after their files where a folder holds several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from gradforensics.evidence.pieces import Group

_GENERIC = re.compile(
    r"^(?:run|runs|output|outputs|out|log|logs|checkpoints?|results?|version_\d+|train|training|exp|"
    r"experiments?|tmp|data|models?)$"
)


def name(groups: list[Group], root_name: str, *, single: bool, label: str = "") -> None:
    """Name the runs of one input after their folders; `label`: what the names of its files begin with."""
    root = PurePosixPath(root_name)
    label = label.rstrip("/")
    siblings = Counter(g.folder for g in groups)
    for found in groups:
        folder = label if found.folder == PurePosixPath(".") else str(found.folder)
        alone = single and all(p.file.alone and not p.run for p in found.pieces)
        if found.title:
            found.name = "/".join(filter(None, (label, found.title)))
        elif found.pieces and (alone or siblings[found.folder] > 1):
            found.name = f"{folder}/{found.pieces[0].stem}".lstrip("/")
        elif label:
            found.name = folder
        else:
            parts = [*root.parts, *found.folder.parts]
            start = len(root.parts) if folder else len(root.parts) - 1
            while start > 1 and all(_GENERIC.match(part.lower()) for part in parts[start:]):
                start -= 1
            found.name = "/".join(parts[start:])
    unique(groups)


def unique(groups: Iterable[Group]) -> None:
    """Give groups of one name a number behind it."""
    seen: dict[str, int] = {}
    for found in groups:
        seen[found.name] = seen.get(found.name, 0) + 1
        if seen[found.name] > 1:
            found.name = f"{found.name} ({seen[found.name]})"
