"""The checkpoints that a user names (scan, diff): found and opened, with no run around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gradforensics.checkpoints import assigning, load
from gradforensics.checkpoints.discover import Candidate, find
from gradforensics.checkpoints.load import Loaded
from gradforensics.checkpoints.model import Checkpoint
from gradforensics.errors import NoEvidenceError, UsageError
from gradforensics.evidence.discover import Root, discover
from gradforensics.notices import Notice, Progress
from gradforensics.untrusted.files import RegularFile


@dataclass(slots=True)
class Named:
    """What lies in the paths: `loaded` holds tensors, optimizers or executable content, `notices` is the rest.

    places: of every file of the input, by its name in reports.
    """

    loaded: list[Loaded] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    places: dict[str, Path] = field(default_factory=dict)

    def path(self, checkpoint: Checkpoint) -> Path:
        """Where a checkpoint lies: what a user would type to name it alone."""
        first = checkpoint.files[0]
        inside = len(PurePosixPath(first).parts) - len(PurePosixPath(checkpoint.path).parts)
        place = self.places[first]
        return place.parents[inside - 1] if inside > 0 else place


def open_named(paths: Sequence[Path], *, progress: Progress | None = None) -> Named:
    """Open every checkpoint in the paths, none of its tensors read. Names begin with that of the input's directory.

    A file that is named alone is a checkpoint of its own, whatever it is called. Raises UsageError for paths that do
    not exist and NoEvidenceError where no checkpoint could be opened.
    """
    found = Named()
    for root in discover(paths, {}, labelled=True):
        found.notices += root.notices
        found.places |= {file.name: file.path for file in root.files}
        for one in load.load_all(_candidates(root), progress=progress):
            if _holds_something(one):
                found.loaded.append(one)
            else:
                found.notices += one.checkpoint.notices
    if not found.loaded:
        said = "; ".join(f"{n.source}: {n.text}" for n in found.notices[:3])
        where = ", ".join(str(path) for path in paths)
        raise NoEvidenceError(f"{where}: no checkpoint that could be read{f' ({said})' if said else ''}")
    return found


def _candidates(root: Root) -> list[Candidate]:
    files = [RegularFile(file.path, file.name, file.size) for file in root.files]
    if root.single and len(files) == 1:
        return [Candidate(files[0].name, "file", files)]
    candidates = find(files)
    if root.single:
        taken = {file.name for candidate in candidates for file in candidate.files}
        candidates += [Candidate(file.name, "file", [file]) for file in files if file.name not in taken]
    return candidates


def _holds_something(one: Loaded) -> bool:
    return bool(one.checkpoint.tensors or one.optimizers or one.checkpoint.groups or one.checkpoint.calls)


def open_one(path: Path, *, progress: Progress | None = None) -> Named:
    """The one checkpoint of a path. Raises UsageError where it holds several, and what open_named raises."""
    found = open_named([path], progress=progress)
    found.loaded = [one for one in found.loaded if one.checkpoint.tensors or one.optimizers] or found.loaded
    if len(found.loaded) > 1:
        listed = ", ".join(str(found.path(one.checkpoint)) for one in found.loaded[:20])
        more = f" and {len(found.loaded) - 20} more" if len(found.loaded) > 20 else ""
        raise UsageError(f"{path} holds {len(found.loaded)} checkpoints; name one of them: {listed}{more}")
    return found


def open_pair(first: Path, second: Path, *, progress: Progress | None = None) -> tuple[Loaded, Loaded]:
    """The checkpoints of two paths; where both are called alike, by ends of their paths that differ."""
    one, other = (open_one(path, progress=progress) for path in (first, second))
    a, b = one.loaded[0].checkpoint, other.loaded[0].checkpoint
    if a.path == b.path:
        ends = one.path(a).parts, other.path(b).parts
        depth = next((n for n in range(1, max(map(len, ends)) + 1) if ends[0][-n:] != ends[1][-n:]), 1)
        a.path, b.path = (PurePosixPath(*end[-depth:]).as_posix() for end in ends)
    return one.loaded[0], other.loaded[0]


# -- names ------------------------------------------------------------------------------------------------------------


def name_apart(found: Named) -> None:
    """Name the optimizer states of every checkpoint by itself, without a look at the numbers of its neighbours."""
    for one in found.loaded:
        assigning.name([one])
