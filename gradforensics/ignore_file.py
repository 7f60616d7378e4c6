"""The ignore file: which findings the user knows and ignores, each with its reason. Read strictly.

    [[ignore]]
    rule = "GF28"
    reason = "clipping at 0.1 is meant"      # required
    run = "sweep-*"                          # optional: a glob for the names of runs
    variant = "every-step"                   # optional
    until = 2027-03-01                       # optional: the last day on which it holds

It is the user's, not the run's: a file inside the evidence is never obeyed, it could silence what it is accused of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, NoReturn

import tomli

from gradforensics.analyze_options import DEFAULT_IGNORES
from gradforensics.diagnosis.ignoring import Ignore, Ignores
from gradforensics.diagnosis.rule_layout import Layout
from gradforensics.diagnosis.rules import Rule, catalogue_ids
from gradforensics.errors import UsageError
from gradforensics.tables import Notice

_TABLE = "ignore"
_KEYS = ("rule", "reason", "run", "variant", "until")
_LARGEST = 1 << 20  # bytes


def read_ignores(wanted: str | None, inputs: Sequence[Path], rules: Sequence[Rule]) -> Ignores:
    """The entries of the file that the user names, else of the default one, where there is one.

    inputs: the evidence, inside of which the file may not lie; rules: those that judge. Raises UsageError, which names
    file and line, for a file that is missing, inside the evidence, or breaks the format.
    """
    if wanted is not None:
        path = Path(wanted)
        if _inside(path, inputs):
            raise UsageError(
                f"{path} lies inside the run directory: evidence cannot silence its own findings; keep it elsewhere"
            )
        return Ignores(_File(path, rules).entries())
    path = Path(DEFAULT_IGNORES)
    if not path.is_file():
        return Ignores()
    if _inside(path, [i if i.is_dir() else i.parent for i in inputs]):
        text = "lies beside the evidence and was not used: pass it with --ignore from outside the run directory"
        return Ignores(notices=(Notice(str(path), None, text),))
    return Ignores(_File(path, rules).entries())


def _inside(path: Path, inputs: Sequence[Path]) -> bool:
    """Whether the file, or what a link of its name leads to, lies in one of the folders or is one of the files."""
    places = {path.resolve(), path.parent.resolve() / path.name}
    return any(place.is_relative_to(one.resolve()) for place in places for one in inputs)


class _File:
    """One ignore file, read into memory; complaints name its lines."""

    def __init__(self, path: Path, rules: Sequence[Rule]) -> None:
        self.path = path
        self.variants = {rule.id: rule.variants for rule in rules}
        try:
            with path.open("rb") as stream:
                raw = stream.read(_LARGEST + 1)
            if len(raw) > _LARGEST:
                raise UsageError(f"{path}: larger than {_LARGEST} bytes, no ignore file")
            text = raw.decode("utf-8").replace("\r\n", "\n")
            self.data = tomli.loads(text)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not UTF-8 text ({error.reason})") from None
        except tomli.TOMLDecodeError as error:
            found = re.search(r"at line (\d+)", str(error))
            raise UsageError(f"{path}{f':{found[1]}' if found else ''}: not TOML: {error}") from None
        self.layout = Layout(text)

    def entries(self) -> tuple[Ignore, ...]:
        """All entries, in their order."""
        for key in self.data:
            if key != _TABLE:
                self._refuse(f"unknown key {key!r}; a file holds [[{_TABLE}]] tables only", self.layout.near(key))
        tables = self.data.get(_TABLE, [])
        if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
            self._refuse(f"write [[{_TABLE}]], one table for each entry", self.layout.near(_TABLE))
        return tuple(self._entry(table, index) for index, table in enumerate(tables))

    def _entry(self, table: dict[str, Any], index: int) -> Ignore:
        def refuse(text: str, key: str = "") -> NoReturn:
            self._refuse(text, self.layout.line(key, _TABLE, index))

        for key in table:
            if key not in _KEYS:
                refuse(f"unknown key {key!r} ({', '.join(_KEYS)})", key)
        for key in ("rule", "reason"):
            if key not in table:
                refuse(f"{key} is missing")
        texts = {key: table[key] for key in _KEYS[:-1] if key in table}
        for key, value in texts.items():
            if not isinstance(value, str) or not value.strip():
                refuse(f"{key} must be a text that is not empty", key)
        until = table.get("until")
        if until is not None and (not isinstance(until, date) or isinstance(until, datetime)):
            refuse("until must be a date without quotes, such as 2027-03-01", "until")
        rule, variant = texts["rule"], texts.get("variant", "")
        if rule not in self.variants and rule not in catalogue_ids():
            refuse(f"there is no rule {rule!r}; see gradforensics rules list", "rule")
        if variant and variant not in self.variants.get(rule, (variant,)):
            refuse(f"{rule} has no variant {variant!r} ({', '.join(self.variants[rule]) or 'it has none'})", "variant")
        line = self.layout.line("", _TABLE, index)
        return Ignore(rule, texts["reason"].strip(), texts.get("run", ""), variant, until, str(self.path), line)

    def _refuse(self, text: str, line: int | None) -> NoReturn:
        raise UsageError(f"{self.path}:{line}: {text}" if line else f"{self.path}: {text}")
