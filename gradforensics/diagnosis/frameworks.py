"""Which framework trained a run, and its lines of advice.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from gradforensics.tables import Evidence

GENERAL = "general"
_NOT_TORCH = frozenset({"keras"})


class Code(NamedTuple):
    """A fix as code to copy: the framework it is for, what that is called, and the code."""

    framework: str
    title: str
    text: str


def framework_of(evidence: Evidence) -> str:
    """The framework that the evidence speaks of, as advice.toml names it; "general" where it speaks of none.

    Of several (Accelerate or DeepSpeed below a Trainer) the one that the user configures, which comes first there.
    """
    readers = {source.reader for source in evidence.sources if source.reader}
    said = {part for source in evidence.sources for part in _dialects(source.remark)}
    paths = [source.path for source in evidence.sources]
    tags = {key.tag for key in evidence.frames}
    settings = {setting.name for setting in evidence.settings or []}
    for name, marks in _frameworks().items():
        if (
            readers & set(marks.get("readers", ()))
            or said & set(marks.get("dialects", ()))
            or any(_is_checkpoint(reader, marks.get("checkpoints", ())) for reader in readers)
            or any(re.search(pattern, path) for pattern in marks.get("files", ()) for path in paths)
            or any(re.fullmatch(pattern, tag) for pattern in marks.get("tags", ()) for tag in tags)
            or any(settings >= set(names) for names in marks.get("settings", ()))
        ):
            return name
    return GENERAL


def line(framework: str, language: str, keys: Iterable[str]) -> str:
    """The line for the first of the keys that the framework has, else the general one; "" where neither has any."""
    wanted = list(keys)
    table = _table()
    own, general = table.get(framework, {}).get(language, {}), table[GENERAL][language]
    return next((text for lines in (own, general) for key in wanted if (text := lines.get(key))), "")


def code_for(framework: str, codes: Mapping[str, str]) -> tuple[Code, ...]:
    """The code of a rule for a framework: its own first, then that for a plain PyTorch loop where it runs one."""
    wanted = [framework] if framework in _NOT_TORCH else dict.fromkeys([framework, GENERAL])
    return tuple(Code(name, title(name), codes[name]) for name in wanted if name in codes)


def code_languages() -> dict[str, str]:
    """The language of the code for every framework."""
    return {name: marks["code"] for name, marks in _table().items()}


def title(framework: str) -> str:
    """What a framework is called."""
    return str(_table()[framework]["title"])


def _dialects(remark: str) -> list[str]:
    """The dialects that the inventory names of a console log: "dialect: A, B; ..." names one whose title is "A, B"."""
    found = re.search(r"dialect: ([^;]+)", remark)
    if found is None:
        return []
    titles = {title for marks in _frameworks().values() for title in marks.get("dialects", ())}
    return [title for title in titles if title in found[1]]


def _is_checkpoint(reader: str, formats: Iterable[str]) -> bool:
    """Whether a source is a checkpoint of one of these formats: "checkpoint (hf-trainer+torch-zip)"."""
    return reader.startswith("checkpoint (") and bool(set(re.split(r"[(+)]", reader)) & set(formats))


def _frameworks() -> dict[str, Mapping[str, Any]]:
    return {name: marks for name, marks in _table().items() if name != GENERAL}


@cache
def _table() -> Mapping[str, Any]:
    return tomli.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))
