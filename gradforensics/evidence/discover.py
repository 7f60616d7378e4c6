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
from gradforensics.tables import Notice

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
_LATER = re.compile(
    r"\.tfevents\.|^events\.out\.tfevents|\.(?:wandb|pt|pth|ckpt|safetensors|bin|distcp|sqlite3?|db|tar|tgz)$|^\.metadata$"
)
_NO_EVIDENCE = re.compile(
    r"\.(?:py|pyc|pyi|ipynb|sh|bash|c|cc|cpp|cu|cuh|h|hpp|js|ts|css|html?|png|jpe?g|gif|svg|webp|bmp|pdf|mp[34]|wav|flac|avi|mov|"
    r"npy|npz|pkl|pickle|parquet|arrow|h5|hdf5|zip|7z|xz|bz2|zst|so|o|a|dll|exe|whl|model|spm|lock|gitignore|gitattributes|tiff?|mat|lmdb|mdb|"
    r"onnx|pb|tflite|gguf|md|rst|tex|bib)$"
)


@dataclass
class Root:
    """One input: a directory, or the named files of one directory."""

    path: Path
    files: list[File] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    single: bool = False


def discover(paths: Sequence[Path], columns: Mapping[str, str]) -> list[Root]:
    """Everything that could be evidence, per input. Files named one by one count as one input per directory."""
    roots: list[Root] = []
    named: dict[Path, Root] = {}
    several = len({*paths}) > 1
    for path in dict.fromkeys(paths):
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory")
        if path.is_dir():
            root = Root(path.resolve())
            label = f"{root.path.name}/" if several else ""
            root.files = list(_walk(root, label, columns))
            roots.append(root)
        elif path.is_file():
            parent = path.resolve().parent
            if parent not in named:
                named[parent] = Root(parent, single=True)
                roots.append(named[parent])
            named[parent].files.append(
                File(path.resolve(), path.name, path.stat().st_size, alone=True, columns=columns)
            )
        else:
            raise UsageError(f"{path}: neither a file nor a directory")
    return roots


def is_later(file: File) -> bool:
    """Whether only a later version reads files of this kind (event files, checkpoints, databases)."""
    return _LATER.search(file.base) is not None


def _walk(root: Root, label: str, columns: Mapping[str, str]) -> Iterator[File]:
    def failed(error: OSError) -> None:
        place = _relative(error.filename or "", root.path)
        root.notices.append(Notice(label + place, None, f"not read: {error.strerror or error}"))

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
            found = _file(root, label, here / name, columns)
            if found is not None:
                yield found


def _leaves(root: Root, label: str, link: Path) -> bool:
    """Whether a symbolic link leads out of the input (a notice then: it is not followed)."""
    try:
        inside = link.resolve().is_relative_to(root.path)
    except (OSError, RuntimeError):
        inside = False
    if not inside:
        root.notices.append(
            Notice(label + _relative(link, root.path), None, "a symbolic link out of the directory: not followed")
        )
    return not inside


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
    """The path below the root as printable text: bytes that are no UTF-8 show as replacement characters."""
    text = os.path.relpath(path, root).replace(os.sep, "/")
    return os.fsencode(text).decode("utf-8", "replace")
