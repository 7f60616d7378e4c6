"""The [[example]] tables of a rule: evidence in a few lines, and what the rule must say of it. They are tests.

    series   = { loss = "decay(4.2, 2.9, 300) + noise(sd=0.02)", "eval/loss" = "...", "grad_norm@1" = "..." (rank 1),
                 "loss#1" = "..." (attempt 1) }
    every    = { "eval/loss" = 15 }       distance of the points in steps (default 1)
    start    = { "loss#1" = 150 }         step of the first point (default: one distance)
    epoch    = { loss = 50 }              steps of an epoch: the points then carry their epoch
    settings = { lr_scheduler_type = "cosine" }
    baseline = { series = { .. }, .. }    the healthy run of --baseline: the evidence of an example
    travels  = [ { step = 2, ... } ]      any other table as a list of rows; absent = not available, [] = nothing found
    reader = "console"                    the reader of the evidence; ending = "completed": how its record ends
    fires_at = 120 | fires = true (at no step) | clear = true | missing = ["series:lr"]
    variant, strength, severity, refuted_by: what a firing or clear example must also say

Series: segments in a row, separated by spaces: `0.5*20` (a value n times), `_*5` (missing), `nan`, ramp(a, b, n),
decay(a, b, n), cosine(peak=, warmup=, steps=, warp=1, end=0), sawtooth(low, high, period, n); then
`+ noise(sd=, seed=0)` and `+ spikes(at=, height=, every=0)`.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl

from gradforensics.diagnosis.judge import Verdict, judge
from gradforensics.diagnosis.rules import Rule
from gradforensics.tables import (
    TABLES,
    Ending,
    Event,
    Evidence,
    Fact,
    Phase,
    SeriesFrame,
    SeriesKey,
    Setting,
    Source,
    series_frame,
)

_KEYS = {
    "note",
    "series",
    "every",
    "epoch",
    "start",
    "settings",
    "reader",
    "ending",
    "fires",
    "fires_at",
    "clear",
    "missing",
    "variant",
    "strength",
    "severity",
    "refuted_by",
    "baseline",
}
_CALL = re.compile(r"([a-z]+)\(([^()]*)\)")
_ENGLISH = re.compile(r"[a-z]{2,}(?: [a-z]{2,})+")
_SEGMENT = re.compile(r"[a-z]+\([^()]*\)|\S+")


def _ramp(a: float, b: float, n: float) -> np.ndarray:
    return np.linspace(a, b, int(n))


def _decay(a: float, b: float, n: float) -> np.ndarray:
    values: np.ndarray = b + (a - b) * np.exp(-5.0 * np.arange(int(n)) / n)
    return values


def _cosine(peak: float, warmup: float, steps: float, warp: float = 1.0, end: float = 0.0) -> np.ndarray:
    t = np.minimum(np.arange(1, int(steps) + 1) * warp, steps)
    done = np.clip((t - warmup) / max(steps - warmup, 1.0), 0.0, 1.0)
    falling = end + (peak - end) * 0.5 * (1.0 + np.cos(math.pi * done))
    values: np.ndarray = np.where(t < warmup, peak * t / max(warmup, 1.0), falling)
    return values


def _sawtooth(low: float, high: float, period: float, n: float) -> np.ndarray:
    phase = (np.arange(int(n)) % int(period)) / max(int(period) - 1, 1)
    values: np.ndarray = low + (high - low) * phase
    return values


def _noise(values: np.ndarray, sd: float, seed: float = 0.0) -> np.ndarray:
    noisy: np.ndarray = values + np.random.default_rng(int(seed)).normal(0.0, sd, len(values))
    return noisy


def _spikes(values: np.ndarray, at: float, height: float, every: float = 0.0) -> np.ndarray:
    out = values.copy()
    out[int(at) - 1 :: int(every) or len(values)] += height
    return out


_GENERATORS: dict[str, Callable[..., np.ndarray]] = {
    "ramp": _ramp,
    "decay": _decay,
    "cosine": _cosine,
    "sawtooth": _sawtooth,
}
_OVERLAYS: dict[str, Callable[..., np.ndarray]] = {"noise": _noise, "spikes": _spikes}


def _arguments(text: str) -> tuple[list[float], dict[str, float]]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    named = dict(p.split("=", 1) for p in parts if "=" in p)
    return [float(p) for p in parts if "=" not in p], {k.strip(): float(v) for k, v in named.items()}


def values_of(text: str) -> list[float | None]:
    """The values that a series text stands for; None is missing. Raises ValueError for a text that means nothing."""
    base, *overlays = re.split(r"\s\+\s", text)
    values: list[float | None] = []
    for segment in _SEGMENT.findall(base):
        call = _CALL.fullmatch(segment)
        if call and call[1] in _GENERATORS:
            positional, named = _arguments(call[2])
            values += [float(v) for v in _GENERATORS[call[1]](*positional, **named)]
        elif call:
            raise ValueError(f"{call[1]} is no generator ({', '.join(_GENERATORS)})")
        else:
            value, _, count = segment.partition("*")
            values += [None if value == "_" else float(value)] * int(count or 1)
    for overlay in overlays:
        call = _CALL.fullmatch(overlay.strip())
        if not call or call[1] not in _OVERLAYS:
            raise ValueError(f"{overlay!r} is no overlay ({', '.join(_OVERLAYS)})")
        positional, named = _arguments(call[2])
        changed = _OVERLAYS[call[1]](np.array([np.nan if v is None else v for v in values]), *positional, **named)
        values = [None if old is None else float(new) for old, new in zip(values, changed, strict=True)]
    return values


def evidence_of(example: Mapping[str, Any]) -> Evidence:
    """Build the evidence of an example; raises ValueError or KeyError for a malformed one."""
    unknown = set(example) - _KEYS - set(TABLES)
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}")
    evidence = Evidence("example", sources=[Source("example", 0, reader=example.get("reader", "example"))])
    columns: dict[SeriesKey, list[tuple[int, int | None, int, float | None, float | None]]] = {}
    for key, text in example.get("series", {}).items():
        name, _, attempt = key.partition("#")
        name, _, rank = name.partition("@")
        phase, _, bare = name.rpartition("/")
        every = int(example.get("every", {}).get(key, 1))
        first = int(example.get("start", {}).get(key, every))
        epoch = example.get("epoch", {}).get(key)
        held: Phase = "eval" if phase == "eval" else "test" if phase == "test" else "train"
        series = SeriesKey("example", held, bare if held != "train" else name, name, "example")
        rows = columns.setdefault(series, [])
        rows += [
            (
                int(attempt or 0),
                int(rank) if rank else None,
                step := first + every * i,
                step / epoch if epoch else None,
                v,
            )
            for i, v in enumerate(values_of(text))
        ]
    for series, rows in columns.items():
        attempts, ranks, steps, epochs, values = (list(c) for c in zip(*rows, strict=True))
        frame = series_frame({"attempt": attempts, "rank": ranks, "step": steps, "epoch": epochs}, values)
        evidence.frames[series] = SeriesFrame(frame)
    if "settings" in example:
        evidence.settings = [Setting(k, k, v, "example", origin="user") for k, v in example["settings"].items()]
    if "events" in example:
        evidence.events = [Event(**{"text": "", "source": "example", **row}) for row in example["events"]]
    if "environment" in example:
        evidence.environment = [Fact(**{"source": "example", **row}) for row in example["environment"]]
    if "ending" in example:
        evidence.ending = Ending(example["ending"])
    if "baseline" in example:
        evidence.baseline = evidence_of(example["baseline"])
    for table in set(TABLES) & set(example) - {"settings", "events", "environment"}:
        schema = TABLES[table]
        extra = {c for row in example[table] for c in row} - set(schema)
        if extra:
            raise ValueError(f"the table {table} has no column {min(extra)!r}")
        evidence.tables[table] = pl.DataFrame(
            [{c: row.get(c) for c in schema} for row in example[table]], schema=schema
        )
    return evidence


def check_example(rule: Rule, example: Mapping[str, Any]) -> str:
    """Run one example; returns what is wrong with the outcome, or "" where it is as stated."""
    try:
        verdict = judge(rule, evidence_of(example))
    except (ValueError, KeyError, TypeError) as error:
        return f"malformed: {error}"
    wrong = [w for w in _complaints(example, verdict) if w]
    return "; ".join(wrong)


def _untranslated(example: Mapping[str, Any], verdict: Verdict) -> str:
    """The first fact that puts English words into the Chinese texts which are no quote of the evidence."""
    rule = verdict.rule
    texts = rule.text("zh", verdict.variant)
    if ("zh", None) not in rule.texts:
        return ""
    fields = {name for text in (texts.what, *texts.fix) for _, name, _, _ in string.Formatter().parse(text) if name}
    held = repr(example)
    for name in sorted(fields):
        fact = verdict.facts.get(name)
        words = _ENGLISH.search(fact) if isinstance(fact, str) else None
        if words is not None and words[0] not in held:
            return f"puts English words into the Chinese text: {{{name}}} is {words[0]!r}"
    return ""


def _complaints(example: Mapping[str, Any], verdict: Verdict) -> list[str]:
    if "fires_at" in example or example.get("fires"):
        if verdict.outcome != "fired":
            return [f"should fire, is {verdict.outcome} (missing: {list(verdict.missing)})"]
        said = {"variant": verdict.variant, "strength": verdict.strength, "severity": verdict.severity}
        at = example.get("fires_at")
        out = [f"fires at {verdict.onset}, not at {at}" if verdict.onset != at else "", _untranslated(example, verdict)]
        return out + [f"{k} is {said[k]}, not {example[k]}" for k in said if k in example and said[k] != example[k]]
    if example.get("clear"):
        refuted = [r.case for r in verdict.refuted_by]
        return [
            f"should be clear, is {verdict.outcome} ({verdict.variant} at {verdict.onset}; missing {verdict.missing})"
            if verdict.outcome != "clear" else "",
            f"is refuted by {refuted}" if example.get("refuted_by", refuted) != refuted else "",
        ]  # fmt: skip
    if "missing" in example:
        lacking = [m for m in example["missing"] if m not in verdict.missing]
        return [
            f"should be not judged, is {verdict.outcome}" if verdict.outcome != "not_judged" else "",
            f"does not name {lacking} as missing but {list(verdict.missing)}" if lacking else "",
        ]
    return ["says neither fires_at, fires, clear nor missing"]
