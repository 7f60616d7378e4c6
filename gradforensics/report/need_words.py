"""What a check needed to see, in words: `series:grad_norm:points>=64` is "grad_norm over at least 64 points"."""

from __future__ import annotations

from collections.abc import Iterable

from gradforensics.diagnosis import needs
from gradforensics.languages import Text, both
from gradforensics.report.labels.needs import LABELS
from gradforensics.report.messages import message
from gradforensics.report.words import Words

BASELINE = "baseline:"
"""What a need of the run that --baseline names begins with."""


def need_in_words(need: str) -> Text:
    """One need in both languages. What is no need is the remark of a check."""
    if need.startswith(BASELINE):
        known = need_in_words(need.removeprefix(BASELINE))
        return both(lambda language: Words(language)("need_baseline", need=known.in_(language)))
    bare, blank, remark = need.partition(" ")
    whole = message(need)
    try:
        parsed = needs.parse(bare)
    except ValueError:
        return whole
    told = both(lambda language: _told(parsed, Words(language)))
    if not blank:
        return told
    return Text(f"{told.en} {remark}", whole.zh.replace(bare, told.zh))  # Chinese has the remark before the need


def needs_in_words(those: Iterable[str]) -> Text:
    """Several needs in both languages, each once."""
    told = list(dict.fromkeys(map(need_in_words, those)))
    return Text("; ".join(one.en for one in told), "；".join(one.in_("zh") for one in told))


def _told(need: needs.Need, words: Words) -> str:
    if need.kind == "series":
        return _of_series(need, words)
    if need.kind in ("settings", "experiments"):
        return words(f"need_{need.kind}", name=need.name)
    if need.kind == "events":
        return words(f"need_{need.name}")
    return _of_table(need, words)


def _of_series(need: needs.Need, words: Words) -> str:
    name = need.name if need.phase == "train" else f"{need.phase}/{need.name}"
    if need.ranks:
        name = words("need_ranks", name=name, n=need.ranks)
    return words("need_points", name=name, n=need.points) if need.points > 1 else name


def _of_table(need: needs.Need, words: Words) -> str:
    if need.one_update:
        return words("need_one_update")
    if need.named:
        return words("need_named")
    for count, suffix in ((need.rows, "n"), (need.ranks, "ranks")):
        key = f"need_{need.name}_{suffix}"
        if count > 1 and key in LABELS:
            return words(key, n=count)
    key = f"need_{need.name}"
    return words(key) if key in LABELS else need.text
