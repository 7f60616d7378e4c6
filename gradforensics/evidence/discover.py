"""What lies in the input: regular files, classified by name; whatever cannot be read is a notice."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from gradforensics.errors import UsageError
from gradforensics.evidence.files import File
from gradforensics.notices import Notice

_SKIPPED_FOLDERS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        "node_modules",
        "venv",
        ".venv",
        "site-packages",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".tox",
        ".ipynb_checkpoints",
    }
)
_LATER = re.compile(r"\.tfevents\.|^events\.out\.tfevents|\.(?:wandb|sqlite3?|db|tgz)$|(?<!\.pth)\.tar$")
_NO_EVIDENCE = re.compile(
    r"\.(?:py|pyc|pyi|ipynb|sh|bash|c|cc|cpp|cu|cuh|h|hpp|js|ts|css|html?|png|jpe?g|gif|svg|webp|bmp|pdf|mp[34]|wav|flac|avi|mov|"
    r"so|o|a|dll|exe|whl|model|spm|lock|gitignore|gitattributes|tiff?|md|rst|tex|bib)$"
)
# What may hold something of a training, but nothing that this version reads: counted in one notice per suffix.
_DATA = re.compile(r"\.(npy|npz|parquet|arrow|h5|hdf5|mat|lmdb|mdb|zip|7z|xz|bz2|zst|onnx|pb|tflite|gguf)$")


@dataclass
class Root:
    """One input: a directory, or the named files of one directory.

    label: what the names of its files begin with, "" for the only input, else what tells it from the other inputs.
    """

    path: Path
    files: list[File] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    single: bool = False
    label: str = ""


def discover(paths: Sequence[Path], columns: Mapping[str, str], *, labelled: bool = False) -> list[Root]:
    """Everything that could be evidence, per input. Files named one by one count as one input per directory.

    labelled: whether the only input has a label too, the name of its directory.
    """
    folders: list[Path] = []
    named: dict[Path, dict[Path, str]] = {}
    roots: list[Root] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory")
        whole = path.resolve()
        if path.is_dir():
            if whole not in folders:
                folders.append(whole)
                roots.append(Root(whole))
        elif path.is_file():
            if whole.parent not in named:
                roots.append(Root(whole.parent, single=True))
            named.setdefault(whole.parent, {}).setdefault(whole, path.name)
        else:
            raise UsageError(f"{path}: neither a file nor a directory")
    for root in roots:
        mine = list(named[root.path]) if root.single else [root.path]
        others = [*(f for f in folders if f not in mine), *(f for p, fs in named.items() if p != root.path for f in fs)]
        root.label = _label(mine, others, single=root.single, named=labelled) if len(roots) > 1 or labelled else ""
        if root.single:
            root.files = [
                File(f, root.label + name, f.stat().st_size, alone=True, columns=columns)
                for f, name in named[root.path].items()
            ]
        else:
            root.files = list(_walk(root, root.label, columns))
    return roots


def _label(mine: Sequence[Path], others: Sequence[Path], *, single: bool, named: bool) -> str:
    """The shortest end of the input's path that no other input shares, with a slash; of files without their names.

    named: of files, too, at least the name of their directory.
    """
    depth = 2 if single and named else 1
    while any(
        path.parts[-depth:] == other.parts[-depth:] and depth < len(path.parts) for path in mine for other in others
    ):
        depth += 1
    parts = mine[0].parts[-depth:-1] if single else mine[0].parts[-depth:]
    return _printable("".join(f"{part}/" for part in parts if part != mine[0].anchor))


def is_later(file: File) -> bool:
    """Whether only a later version reads files of this kind (event files, databases, archives)."""
    return _LATER.search(file.base) is not None


def _walk(root: Root, label: str, columns: Mapping[str, str]) -> Iterator[File]:
    def failed(error: OSError) -> None:
        place = _relative(error.filename or "", root.path)
        root.notices.append(Notice(label + place, None, f"not read: {error.strerror or error}"))

    data: dict[str, list[str]] = {}
    for folder, folders, files in os.walk(root.path, onerror=failed):
        here = Path(folder)
        for name in list(folders):
            if name in _SKIPPED_FOLDERS or (here / name / "pyvenv.cfg").exists():
                folders.remove(name)
            elif (here / name).is_symlink():
                folders.remove(name)
                _leaves(root, label, here / name)
        folders.sort()
        for name in sorted(files):
            if _NO_EVIDENCE.search(name.lower()):
                continue
            if kind := _DATA.search(name.lower()):
                data.setdefault(kind[1], []).append(label + _relative(here / name, root.path))
                continue
            found = _file(root, label, here / name, columns)
            if found is not None:
                yield found
    for kind_, found_ in data.items():
        several = f" ({len(found_)} such files)" if len(found_) > 1 else ""
        root.notices.append(Notice(found_[0], None, f"this version does not read .{kind_} files{several}"))


def _leaves(root: Root, label: str, link: Path) -> bool:
    """Whether a symbolic link leads nowhere inside of the input (a notice then: it is not followed)."""
    try:
        if link.resolve().is_relative_to(root.path):
            return False
        text = "a symbolic link out of the directory: not followed"
    except (OSError, RuntimeError):
        text = "a symbolic link that leads back to itself: not followed"
    root.notices.append(Notice(label + _relative(link, root.path), None, text))
    return True


def _file(root: Root, label: str, path: Path, columns: Mapping[str, str]) -> File | None:
    if path.is_symlink() and _leaves(root, label, path):
        return None
    name = label + _relative(path, root.path)
    try:
        state = path.stat()
    except OSError as error:
        root.notices.append(Notice(name, None, f"not read: {error.strerror or error}"))
        return None
    if not stat.S_ISREG(state.st_mode):
        return None
    return File(path, name, state.st_size, columns=columns)


def _relative(path: str | PurePath, root: Path) -> str:
    """The path below the root as printable text."""
    return _printable(os.path.relpath(path, root).replace(os.sep, "/"))


def _printable(text: str) -> str:
    """The text of a path, in which bytes that are no UTF-8 show as replacement characters."""
    return os.fsencode(text).decode("utf-8", "replace")
