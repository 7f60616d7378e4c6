"""Which names of a pickle are known to run commands or other code when they are called.

Nothing depends on this for safety: no name is ever imported or called here, whatever it is. It sorts what a report
shows, and whatever is not known to be plain data is shown. The names and where they are known from: danger.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomli

from gradforensics.untrusted import dtypes
from gradforensics.untrusted.inert import CALLS
from gradforensics.untrusted.pickles import TAKEN_APART, Use

_MAX_LISTED = 1000  # a whole model names some hundred classes
_DEPTH = 12  # parts of a name that are looked up together
_BUILTINS = ("builtins", "__builtin__", "__builtins__")


@dataclass(frozen=True, slots=True)
class Executable:
    """A name that loading a pickle would import. danger: known to run code. arguments: of its first call, as text."""

    name: str
    danger: bool
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class _Lists:
    """danger.toml, for look-ups."""

    prefixes: frozenset[str]
    harmless: frozenset[str]
    builtins: frozenset[str]
    imported: frozenset[str]
    functions: frozenset[str]
    dunders: frozenset[str]
    data: frozenset[str]
    builders: tuple[str, ...]
    torch: frozenset[str]


@cache
def _lists() -> _Lists:
    """danger.toml, read once."""
    raw = tomli.loads((Path(__file__).parent / "danger.toml").read_text(encoding="utf-8"))
    families = [name for family in raw["family"] for name in (*family["modules"], *family.get("names", ()))]
    harmless, anywhere, data = raw["harmless"], raw["anywhere"], raw["data"]
    return _Lists(
        frozenset(families),
        frozenset(harmless["names"]),
        frozenset(harmless["builtins"]),
        frozenset(anywhere["imported"]),
        frozenset(anywhere["functions"]),
        frozenset(anywhere["ordinary_dunders"]),
        frozenset(data["names"]),
        tuple(data["builders"]),
        frozenset(data["torch"]),
    )


def is_dangerous(path: str) -> bool:
    """Whether a name ("module.name", dotted or not) is known to run commands or other code when it is called."""
    lists = _lists()
    parts = [part.strip() for part in path.split(".")]
    if ".".join(parts) in lists.harmless:
        return False
    if parts[0] in _BUILTINS:
        return len(parts) != 2 or not _is_plain_builtin(parts[1])
    prefixes = {".".join(parts[:count]) for count in range(1, min(len(parts), _DEPTH) + 1)}
    return (
        not prefixes.isdisjoint(lists.prefixes)
        or not lists.imported.isdisjoint(parts[1:])
        or parts[-1] in lists.functions
        or any(part.startswith("__") and part.endswith("__") and part not in lists.dunders for part in parts)
    )


def _is_plain_builtin(name: str) -> bool:
    return name in _lists().builtins or name.endswith(("Error", "Exception", "Warning"))


def executable(uses: Mapping[str, Use]) -> list[Executable]:
    """The names that a pickle would have imported, but for plain data: the dangerous ones first, 1000 at most."""
    found = [
        Executable(name, is_dangerous(name), use.arguments)
        for name, use in uses.items()
        if not _is_data(name) and (use.times_called or name not in TAKEN_APART)
    ]
    return sorted(found, key=lambda item: (not item.danger, item.name))[:_MAX_LISTED]


def _is_data(path: str) -> bool:
    """Whether a name stands for a value, a type of values or a builder of tensors."""
    lists = _lists()
    module, _, name = path.rpartition(".")
    if path in CALLS or path in lists.data or path.startswith(lists.builders):
        return True
    if module == "torch" and (dtypes.of_torch(name) is not None or name in lists.torch):
        return True
    if module in ("torch", "torch.cuda", "torch.storage") and (
        dtypes.of_storage(name) is not None or name in ("TypedStorage", "_TypedStorage")
    ):
        return True
    return module in _BUILTINS and _is_plain_builtin(name)
