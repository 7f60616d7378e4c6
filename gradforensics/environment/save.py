"""The file of `gradforensics env`: its name, its content, and what the terminal shows of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradforensics.languages import Language
from gradforensics.own_files import ENVIRONMENT
from gradforensics.report.messages import message
from gradforensics.report.words import Words

_LATER = ("collected", "tool")  # differ between two looks at one and the same environment
_MOST = 1000  # environments of one process that are told apart
_SHOWN = ("torch", "triton", "transformers", "accelerate", "deepspeed", "peft", "trl", "lightning", "flash-attn")


def as_text(found: Mapping[str, Any]) -> str:
    """The environment as JSON."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def default_path(found: Mapping[str, Any], folder: Path) -> Path:
    """Where the environment is saved unless the user says so: a name for each host and rank.

    Another environment of the same process, as before a restart, is kept: the new file then gets a number.
    """
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", str(found["host"])).strip("-.") or "unknown"
    rank = "" if found["rank"] is None else f"-rank{found['rank']}"
    stem = f"{ENVIRONMENT}-{host}{rank}"
    names = (f"{stem}-attempt{number}" if number else stem for number in range(_MOST))
    places = [folder / f"{name}.json" for name in names]
    taken = next((n for n, place in enumerate(places) if not place.exists()), len(places) - 1)
    if taken and _same(places[taken - 1], found):
        return places[taken - 1]
    return places[taken]


def _same(path: Path, found: Mapping[str, Any]) -> bool:
    """Whether a file holds this environment, whenever it was collected."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(kept, dict):
        return False
    now = json.loads(as_text(found))
    return {k: v for k, v in kept.items() if k not in _LATER} == {k: v for k, v in now.items() if k not in _LATER}


def render(found: Mapping[str, Any], path: Path | None, language: Language = "en") -> str:
    """The facts for a terminal, the packages and variables in short, and where all of it was saved."""
    words = Words(language)
    rows = [("host", found["host"]), ("rank", found["rank"]), *found["facts"].items()]
    rows += list(_gpus(words, found["gpus"]))
    packages = found["packages"]
    rows += [(name, packages[name]) for name in _SHOWN if name in packages and name not in found["facts"]]
    rows += [(name, version) for name, version in packages.items() if name.startswith("nvidia-")]
    rows += [(name, words("e_copies", versions=", ".join(several))) for name, several in found["copies"].items()]
    rows += list(found["variables"].items())
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {_short(value)}" for name, value in rows if value is not None]
    remarks = [message(remark).in_(language) for remark in found["remarks"]]
    lines += [words("e_packages", n=len(packages)), *remarks]
    return "\n".join([*lines, *([words("e_saved", path=path)] if path else [])]) + "\n"


def _gpus(words: Words, gpus: list[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    kinds = [words("e_capability", gpu=one.get("name"), version=one.get("compute_capability")) for one in gpus]
    for kind in dict.fromkeys(kinds):
        yield "gpu", f"{kinds.count(kind)} x {kind}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else text[:159] + "…"
