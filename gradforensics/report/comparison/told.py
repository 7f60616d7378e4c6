"""A comparison of two runs in sentences, in the words of one language: what every format says.

What stems from the runs (names of series, settings and their values) stands between QUOTES in a sentence, so that a
page can show it as code; `bare` takes them out for everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradforensics.diagnosis.two_runs.candidates import Candidate, Sign
from gradforensics.diagnosis.two_runs.changes import Change, Changes
from gradforensics.diagnosis.two_runs.contrast import Contrast
from gradforensics.diagnosis.two_runs.partings import Parting
from gradforensics.diagnosis.two_runs.weights import SharedStep
from gradforensics.report.words import Words, compact, number, shorten

QUOTES = ("\ue000", "\ue001")  # private characters: no text of ours holds them
_NAMED = 8  # changes that a sentence names
_LOGGED = ("rate", "lr")  # a change that stands in the log, not among the settings


def bare(text: str) -> str:
    """A sentence without QUOTES."""
    return text.replace(QUOTES[0], "").replace(QUOTES[1], "")


def quoted(text: str) -> str:
    """What stems from a run, as part of a sentence."""
    return f"{QUOTES[0]}{bare(text)}{QUOTES[1]}"


def headline(words: Words, found: Contrast) -> str:
    """From which step on the two runs differ, in one sentence."""
    result = found.result
    if result is None:
        return words("cmp_nothing")
    if result.course == "parts":
        return words("cmp_parts", until=result.until, step=result.step, series=quoted(result.label))
    if result.course == "never_identical":
        return words("cmp_never", series=quoted(result.label), step=result.step)
    if found.parted:
        return words("cmp_identical_result", series=quoted(result.label), points=result.points)
    return words("cmp_identical")


def details(words: Words, found: Contrast) -> list[str]:
    """What belongs to the headline: what parted first, whether it lasts, how far the printed digits reach."""
    result, first, told = found.result, found.earliest, []
    if result is None:
        return []
    if result.course in ("parts", "never_identical"):
        told.append(_noise(words, result))
        other = next((one for one in found.partings if one.beyond is not None), None)
        if result.beyond is None and other is not None:
            told.append(words("cmp_other", series=quoted(other.label), step=other.beyond, gap=gap(other)))
    if first is not None and first.step is not None and result.course in ("parts", "identical") and first is not result:
        told.append(words("cmp_first", series=quoted(first.label), step=first.step))
    if result.rounded and result.course != "never_identical":
        told.append(words("cmp_rounded"))
    return told


def _noise(words: Words, result: Parting) -> str:
    if not result.noise_judged:
        return words("cmp_few")
    if result.beyond is None:
        return words("cmp_within")
    return words("cmp_beyond", step=result.beyond, gap=gap(result))


def gap(one: Parting) -> str:
    """How far the level of A ends above that of B: "+12.3%"."""
    return "" if one.gap is None else f"{one.gap:+.1%}"


def verdict(words: Words, differ: Changes) -> str:
    """What else differs: nothing that was recorded, one thing, or more than one (confounded)."""
    if not differ.counted:
        return words("cmp_no_change")
    if differ.confounded:
        return words("cmp_confounded", n=len(differ.things), changed=_list(changed(words, c) for c in differ.counted))
    return words("cmp_only", changed=_list(_whole(words, change) for change in differ.counted))


def unknown(words: Words, differ: Changes) -> str:
    """What not both runs recorded; empty where both recorded all of it."""
    if not differ.unknown:
        return ""
    between = "、" if words.language == "zh" else ", "
    return words("cmp_unknown", what=between.join(words(f"cmp_unknown_{kind}") for kind in differ.unknown))


def _list(parts: Iterable[str]) -> str:
    those = list(parts)
    more = len(those) - _NAMED
    return ", ".join(those[:_NAMED]) + (f" (+{more})" if more > 0 else "")


def changed(words: Words, change: Change) -> str:
    """What a change is called."""
    return words("cmp_logged_rate") if logged(change) else quoted(change.key)


def logged(change: Change) -> bool:
    """Whether a change is one of the learning rate as logged, of which no setting tells."""
    return (change.kind, change.key) == _LOGGED


def _whole(words: Words, change: Change) -> str:
    return f"{changed(words, change)} ({quoted(value(change.here))} → {quoted(value(change.there))})"


def value(held: Any) -> str:
    """A value of a setting as tables show it."""
    return shorten(held if isinstance(held, str) else number(held), 80)


def course(words: Words, one: Parting) -> str:
    """How one series goes."""
    if one.course == "not_judged":
        return f"{words('cmp_course_not_judged')}: {words(one.why)}"
    return words(f"cmp_course_{one.course}", until=one.until, step=one.step)


def noise(words: Words, one: Parting) -> str:
    """Whether the difference of a series lasts; empty where the question does not arise."""
    if one.course not in ("parts", "never_identical") or one.scheduled:
        return ""
    if not one.noise_judged:
        return words("cmp_noise_unjudged")
    return words("cmp_noise_never") if one.beyond is None else words("cmp_noise_at", step=one.beyond, gap=gap(one))


def cause(words: Words, candidate: Candidate) -> str:
    """What a candidate is called: the changes, where it is one that was recorded."""
    if candidate.changed:
        return _list(_whole(words, change) for change in candidate.changed)
    return words(f"cmp_what_{candidate.what}")


def signs(words: Words, candidate: Candidate) -> list[str]:
    """What speaks for a candidate (+) and against it (−)."""
    told = [f"{'−' if one.against else '+'} {_sign(words, one)}" for one in candidate.signs]
    return told or [words("cmp_no_sign")]


def _sign(words: Words, one: Sign) -> str:
    if one.key == "restarted":
        return words("sign_restarted_a" if one.facts["here"] else "sign_restarted_b", step=one.facts["step"])
    return words(f"sign_{one.key}", **one.facts)


def checkpoints(words: Words, found: Contrast) -> str:
    """Up to which checkpoint the weights are equal; empty without a shared one that tells."""
    equal, apart = found.equal_weights, found.unequal_weights
    if apart is not None and equal is not None:
        return words("cmp_weights_part", equal=equal.step, apart=apart.step)
    if apart is not None:
        return words("cmp_weights_part_at", apart=apart.step)
    if equal is not None:
        return words("cmp_weights_same", n=len(found.weights), equal=equal.step)
    return ""


def models(words: Words, one: SharedStep) -> str:
    """How the models of two checkpoints of one step compare."""
    if not one.equal + one.apart and one.files_equal:
        return words("cmp_weights_files")
    told = _tensors(words, one.equal, one.apart)
    return "; ".join(filter(None, (told, words("cmp_weights_unlike", n=one.unlike) if one.unlike else "")))


def states(words: Words, one: SharedStep) -> str:
    """How the states of their optimizers compare."""
    return _tensors(words, one.states_equal, one.states_apart)


def _tensors(words: Words, equal: int, apart: int) -> str:
    if apart:
        return words("cmp_weights_apart", apart=apart, n=equal + apart)
    return words("cmp_weights_equal", n=equal) if equal else words("cmp_weights_unknown")


def widest(one: SharedStep) -> str:
    """The tensor whose norms differ most: "blocks.0.up.weight (1.2e-05)"."""
    return "" if one.widest is None else f"{one.widest} ({compact(one.distance, 2)})"
