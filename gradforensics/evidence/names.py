"""The alias table: what frameworks call a series, a column or a setting, and the canonical name of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import tomli

from gradforensics.errors import UsageError
from gradforensics.tables import Phase

_SEPARATORS = re.compile(r"[\s\-/.:]+")
_STEP_SUFFIX = re.compile(r"_(?:step|epoch)$")
_LOSS = re.compile(r"(?:^|_)[a-z]*loss(?:$|_)")
_NO_LOSS = re.compile(r"weight|coef|scale|lambda|ratio|fn$|func|type|clip|name|mode|threshold|patience|alpha|beta")
_METRIC = re.compile(
    r"(?:^|_)(?:ppl|perplexity|acc\w*|reward\w*|return\w*|bleu\d*|rouge\w*|f1\w*|auc|auroc|m?ap\d*|iou|miou|fid\w*|mse|rmse|mae|"
    r"nll|elbo|kl|kld|entropy|wer|cer|psnr|ssim|dice|recall\w*|precision\w*|bpb|bpc|bpd|top[15])(?:$|_|\()"
)
PHASES: tuple[Phase, ...] = ("train", "eval", "test")


@cache
def table() -> dict[str, Any]:
    """names.toml, read once."""
    return tomli.loads((Path(__file__).parent / "names.toml").read_text(encoding="utf-8"))


def normalise(name: str) -> str:
    """The form in which names are compared: lower case, one "_" for every run of separators, no brackets at the end."""
    return _SEPARATORS.sub("_", name.strip().lower()).rstrip("_").replace("(", "_").replace(")", "").replace("__", "_")


@cache
def _series_aliases() -> tuple[dict[str, str], list[tuple[str, str]]]:
    exact: dict[str, str] = {}
    prefixes: list[tuple[str, str]] = []
    for canonical, aliases in table()["series"].items():
        for alias in aliases:
            if alias.endswith("*"):
                prefixes.append((alias[:-1], canonical))
            else:
                exact[alias] = canonical
    return exact, prefixes


@cache
def _phase_words() -> dict[str, Phase]:
    return {word: phase for phase in PHASES for word in table()["phases"][phase]}


def _known(name: str) -> str | None:
    exact, prefixes = _series_aliases()
    found = exact.get(name) or exact.get(_STEP_SUFFIX.sub("", name))
    return found or next((canonical for prefix, canonical in prefixes if name.startswith(prefix)), None)


def phase_word(text: str) -> Phase | None:
    """The phase that one word names ("val", "Validation"), or None."""
    return _phase_words().get(text.strip().lower())


@lru_cache(maxsize=4096)
def series_of(tag: str) -> tuple[Phase | None, str]:
    """(phase, canonical series) of a name as written; the phase is None where the name does not tell it.

    A name that is not in the table keeps its own spelling; of "eval_g0_loss" the phase is taken off, leaving "g0_loss".
    """
    bare = tag.strip()
    name = normalise(bare)
    for pattern, target in table()["phased"].items():
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            where, _, series = target.partition("/")
            return _phase_words()[where], series or _without_containers(bare)
    if (known := _known(name)) is not None:
        return None, known
    bare = _without_containers(bare)
    words = _SEPARATORS.sub("_", bare).split("_")
    words = [w for w in words if w]
    if len(words) < 2:
        return None, _known(normalise(bare)) or bare
    for word, rest in ((words[0], words[1:]), (words[-1], words[:-1])):
        phase = phase_word(word)
        if phase is None:
            continue
        known = _known(normalise("_".join(rest)))
        if known is not None:
            return phase, known
        if word is words[0]:
            return phase, bare if phase == "train" else bare[len(word) :].lstrip(" -/._:")
    return None, _known(normalise(bare)) or bare


def _without_containers(name: str) -> str:
    head, slash, rest = name.partition("/")
    return rest if slash and head.lower() in table()["containers"]["names"] else name


def is_bare_scale(tag: str) -> bool:
    """Whether a name is "scale" and no more, which also things other than the loss scale are called."""
    words = normalise(tag).split("_")
    return words[-1] == "scale" and all(phase_word(w) or w in table()["containers"]["names"] for w in words[:-1])


def is_loss(tag: str) -> bool:
    """Whether a name speaks of a loss (and not of its weight, scale or type)."""
    if tag in ("trl", "tel"):
        return True
    name = normalise(tag)
    return _LOSS.search(name) is not None and _NO_LOSS.search(name) is None


def is_metric(tag: str) -> bool:
    """Whether a name is one that only a training or its evaluation logs."""
    _, series = series_of(tag)
    known = series in table()["series"] and series not in ("epoch", "elapsed", "throughput", "step_time")
    return known or is_loss(tag) or _METRIC.search(normalise(tag)) is not None


@cache
def _columns(kind: str) -> dict[str, int]:
    return {alias: order for order, alias in enumerate(table()["columns"][kind])}


def column_rank(kind: str, name: str) -> int | None:
    """How good a candidate this column is for `kind` (step, epoch, time, phase); 0 is best, None is none at all."""
    return _columns(kind).get(normalise(name)) if len(name) <= 64 else None


def mapped(column: str, columns: Mapping[str, str]) -> tuple[Phase | None, str] | None:
    """What the user's --map says about a column: (phase, series), or None where it says nothing."""
    target = columns.get(column.strip())
    if target is None:
        return None
    phase, slash, series = target.partition("/")
    word = phase_word(phase) if slash else None
    return (word, series) if word else (None, target)


def check_mapping(columns: Mapping[str, str]) -> None:
    """Refuse a --map without a column or a series."""
    for column, series in columns.items():
        if not column.strip() or not series.strip() or series.strip().endswith("/"):
            raise UsageError(
                f"--map {column}={series}: a column and a series are needed, such as --map my_loss=eval/loss"
            )


@cache
def _setting_aliases() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    anywhere: dict[str, str] = {}
    dotted: dict[str, str] = {}
    whole: dict[str, str] = {}
    for key, aliases in table()["settings"].items():
        for alias in aliases:
            if alias.startswith("*."):
                (dotted if "." in alias[2:] else anywhere)[alias[2:]] = key
            elif "." in alias:
                dotted[alias] = key
            else:
                whole[alias] = key
    return anywhere, dotted, whole


@lru_cache(maxsize=4096)
def setting_key(name: str) -> str:
    """The canonical key of a setting's dotted name; names that are not in the table keep their own."""
    anywhere, dotted, whole = _setting_aliases()
    low = name.lower().replace("-", "_").replace(" ", "_").replace("/", ".")
    parts = low.split(".")
    if len(parts) == 1:
        return whole.get(low) or anywhere.get(low) or name
    for start in range(len(parts) - 1):
        found = dotted.get(".".join(parts[start:]))
        if found:
            return found
    return anywhere.get(parts[-1]) or name


def is_setting(name: str) -> bool:
    """Whether a dotted name is in the table of settings."""
    return setting_key(name) in table()["settings"]


def is_unset(key: str, value: object) -> bool:
    """Whether the value means that the setting was left alone (max_steps = -1)."""
    return value in table()["unset"].get(key, ()) and not isinstance(value, bool)
