"""What lies in the input: regular files, classified by name; whatever cannot be read is a notice."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from gradforensics import experiments
from gradforensics.checkpoints.discover import may_be_part
from gradforensics.errors import UsageError
from gradforensics.evidence.files import File
from gradforensics.notices import Notice
from gradforensics.own_files import CAPSULE_HEADER

SKIPPED_FOLDERS = frozenset(
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
_ENVIRONMENT = "pyvenv.cfg"  # lies at the top of every virtual environment
_OURS = (experiments.HEADER, CAPSULE_HEADER)  # lie in what this tool wrote: replay directories and capsules
_NO_EVIDENCE = re.compile(
    r"\.(?:py|pyc|pyi|ipynb|sh|bash|c|cc|cpp|cu|cuh|h|hpp|js|ts|css|html?|png|jpe?g|gif|svg|webp|bmp|pdf|mp[34]|wav|flac|avi|mov|"
    r"so|o|a|dll|exe|whl|model|spm|lock|gitignore|gitattributes|tiff?|md|rst|tex|bib)$"
)
# What may hold something of a training, but nothing that this version reads: counted in one notice per suffix.
_DATA = re.compile(r"(?<!\.tar)\.(npy|npz|h5|hdf5|mat|lmdb|mdb|zip|7z|xz|bz2|zst|onnx|pb|tflite|gguf)$|\.(tar\.zst)$")
_SPECIAL: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISFIFO, "a named pipe: not read"),
    (stat.S_ISSOCK, "a socket: not read"),
    (stat.S_ISCHR, "a device: not read"),
    (stat.S_ISBLK, "a device: not read"),
)


@dataclass
class Root:
    """One input: a directory, an archive, or the named files of one directory.

    label: what the names of its files begin with, "" for the only input, else what tells it from the other inputs;
    links: the symbolic links to other files and folders of the input, which are read once, and where they lead.
    """

    path: Path
    files: list[File] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    single: bool = False
    label: str = ""
    links: dict[str, str] = field(default_factory=dict)


def discover(
    paths: Sequence[Path],
    columns: Mapping[str, str],
    *,
    labelled: bool = False,
    ours: Callable[[Path], str | None] | None = None,
) -> list[Root]:
    """Everything that could be evidence, per input. Files named one by one count as one input per directory.

    labelled: whether the only input has a label too, the name of its directory. ours: asked of a folder that may
    be a replay directory or a capsule; answers with the remark on one, which is left out, and None for any other.
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
                File(f, root.label + printable(name), f.stat().st_size, alone=True, columns=columns)
                for f, name in named[root.path].items()
            ]
        else:
            root.files = list(_Walk(root, columns, ours).files())
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
    return printable("".join(f"{part}/" for part in parts if part != mine[0].anchor))


def is_wanted(base: str) -> bool:
    """Whether a file of this (lower-case) name could hold something of a training: no code, no picture."""
    return _NO_EVIDENCE.search(base) is None


def unread_kind(base: str) -> str | None:
    """The suffix of a (lower-case) name whose content may matter and is not read by this version, else None."""
    found = _DATA.search(base)
    return None if found is None else found[1] or found[2]


class _Walk:
    """One pass over a directory: what it finds goes into the root, never below a symbolic link."""

    def __init__(self, root: Root, columns: Mapping[str, str], ours: Callable[[Path], str | None] | None) -> None:
        self.root = root
        self.columns = columns
        self.ours = ours
        self.remarks: dict[str, list[str]] = {}

    def files(self) -> Iterator[File]:
        """The files of the directory, those of a folder before those below it, in the order of their names."""
        waiting: list[tuple[str, str]] = [(str(self.root.path), self.root.label)]
        while waiting:
            folder, name = waiting.pop()
            entries = self.entries(folder, name)
            if any(entry.name == _ENVIRONMENT for entry in entries) and folder != str(self.root.path):
                continue
            header = next((entry.name for entry in entries if entry.name in _OURS), None)
            if self.ours and header:
                remark = self.ours(Path(folder))
                if remark:
                    self.root.notices.append(Notice(name + header, None, remark))
                if remark is not None:
                    continue
            below: list[tuple[str, str]] = []
            for entry in entries:
                shown = name + printable(entry.name)
                try:
                    found = self.entry(entry, shown, below)
                except OSError as error:
                    self.root.notices.append(Notice(shown, None, f"not read: {error.strerror or error}"))
                    continue
                if found is not None:
                    yield found
            waiting += reversed(below)
        for text, names in self.remarks.items():
            several = f" ({len(names)} such {'links' if 'link' in text else 'files'})" if len(names) > 1 else ""
            self.root.notices.append(Notice(names[0], None, text + several))

    def entries(self, folder: str, name: str) -> list[os.DirEntry[str]]:
        """What lies in a folder, by name; nothing and a notice where it cannot be listed."""
        try:
            with os.scandir(folder) as listed:
                return sorted(listed, key=lambda entry: entry.name)
        except OSError as error:
            shown = name.removesuffix("/") or "."
            self.root.notices.append(Notice(shown, None, f"not read: {error.strerror or error}"))
            return []

    def entry(self, entry: os.DirEntry[str], shown: str, below: list[tuple[str, str]]) -> File | None:
        """The file of an entry where it may be evidence; folders are appended to `below`."""
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in SKIPPED_FOLDERS:
                below.append((entry.path, shown + "/"))
            return None
        low = entry.name.lower()
        linked = entry.is_symlink()
        if linked and (not is_wanted(low) or not self.follows(entry, shown)):
            return None
        if not linked and not is_wanted(low):
            return None
        state = entry.stat()
        special = next((text for is_kind, text in _SPECIAL if is_kind(state.st_mode)), None)
        if special is not None:
            self.remark(special, shown)
        elif kind := unread_kind(low):
            self.remark(f"this version does not read .{kind} files", shown)
        elif stat.S_ISREG(state.st_mode):
            return File(Path(entry.path), shown, state.st_size, columns=self.columns)
        return None

    def remark(self, text: str, shown: str) -> None:
        self.remarks.setdefault(text, []).append(shown)

    def follows(self, entry: os.DirEntry[str], shown: str) -> bool:
        """Whether a symbolic link is read: not where it leaves the input, nor where the walk comes by its target.

        A checkpoint is read by the name of its link: a store of blobs names its files after their hashes.
        """
        try:
            target = Path(entry.path).resolve()
            inside = target.is_relative_to(self.root.path)
            there = target.exists()
        except (OSError, RuntimeError):
            self.remark("a symbolic link that leads back to itself: not followed", shown)
            return False
        if not inside:
            self.remark("a symbolic link out of the directory: not followed", shown)
            return False
        if not there:
            self.remark("a symbolic link that leads nowhere", shown)
            return False
        place = _relative(target, self.root.path)
        skipped = any(part in SKIPPED_FOLDERS for part in target.relative_to(self.root.path).parts)
        if target.is_dir() or (not skipped and target.suffix == Path(shown).suffix and not may_be_part(shown)):
            self.root.links[shown] = self.root.label + place
            return False
        return True


def _relative(path: str | PurePath, root: Path) -> str:
    """The path below the root as printable text."""
    return printable(os.path.relpath(path, root).replace(os.sep, "/"))


def printable(text: str) -> str:
    r"""The text of a path as it may be shown; names that differ stay different.

    Bytes that are no UTF-8 become \xff, control and other invisible characters \n, \x1b or \u202e, a backslash \\.
    """
    return text if text.isprintable() and "\\" not in text else "".join(map(_shown, text))


def _shown(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps the byte 0x80 to 0xff of a name that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
