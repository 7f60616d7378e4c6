"""Checks on what PyTorch's autograd says in a console log: the errors that end a run, and its one silent warning."""

from __future__ import annotations

from collections.abc import Sequence

from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Evidence

_FACTS = ("error", "place", "kind")
_SENTENCE = lazy(r"\n|(?<=\.)\s")
_NO_INPUT = "no input requires grad"  # data["about"] of the warning of re-entrant checkpointing


@check(needs=["events:console"], facts=_FACTS)
def autograd_error_ends_run(evidence: Evidence, *, errors: str) -> Answer:
    """The run ends with one of these errors of autograd.

    errors: names that the events give them (data["error"]), separated by spaces. Such an error ends a run, so that one
    which is known to have ended otherwise had none.
    """
    found = [event for event in _last_words(evidence) if event.data.get("error") in errors.split()]
    if found:
        return [_hit(evidence, found[0])]
    return [] if _ended(evidence) else Missing("how the run ended")


@check(needs=["events:console"], facts=_FACTS)
def ends_without_graph(evidence: Evidence, *, warned: str) -> Answer:
    """The run ends because the loss has no graph: nothing that it was computed from requires a gradient.

    warned: "yes" where re-entrant checkpointing had warned that no input of it requires one, which is why; else "no".
    """
    found = [event for event in _last_words(evidence) if event.data.get("error") == "no_grad"]
    if not found:
        return [] if _ended(evidence) else Missing("how the run ended")
    before = any(one.source == found[0].source and _before(one, found[0]) for one in _warnings(evidence))
    return [_hit(evidence, found[0])] if before == (warned == "yes") else []


@check(needs=["events:console"], facts=_FACTS)
def checkpointing_finds_no_gradient(evidence: Evidence) -> Answer:
    """Re-entrant checkpointing warns that no input of it requires a gradient, and the run goes on.

    What lies inside gets no gradient then; that is meant where all of it is frozen, as the tower of images often is.
    """
    ended = [event for event in _last_words(evidence) if event.data.get("error") == "no_grad"]
    return [] if ended else [_hit(evidence, event) for event in _warnings(evidence)[:1]]


@check(needs=["events:console"], facts=_FACTS)
def autograd_error_survived(evidence: Evidence, *, errors: str) -> Answer:
    """The log names one of these errors of autograd, and the run is not known to have ended with it.

    errors: as above. A line may quote the error; a program may catch it and skip the step; a later launch may be right.
    """
    last = _last_words(evidence)
    named = [e for e in evidence.events_of("autograd_error") if e.data.get("error") in errors.split() and e not in last]
    return [_hit(evidence, event) for event in named[:1]]


def _last_words(evidence: Evidence) -> Sequence[Event]:
    """The errors of autograd that ended the run; every rank may have raised the same one."""
    return evidence.once("autograd errors at the end", lambda: _find_last_words(evidence))


def _find_last_words(evidence: Evidence) -> list[Event]:
    raised = [event for event in evidence.events_of("autograd_error") if "type" in event.data]
    ending = evidence.ending
    if ending.kind == "unknown":  # nobody said how it ended: with the error, if nothing was logged after it
        loss = evidence.series("loss")
        last = int(loss.steps[-1]) if loss is not None and loss.step_unit == "step" else None
        return [event for event in raised if last is None or (event.step is not None and event.step >= last)]
    if ending.kind != "exception":
        return []
    closing = next((e for e in evidence.events or [] if (e.source, e.line) == (ending.source, ending.line)), None)
    if closing is None:
        return []
    cause = (closing.data.get("cause") or {}).get("line")
    named = closing.data.get("error") if closing.kind == "autograd_error" else None
    return [
        event
        for event in raised
        if (named is not None and event.data.get("error") == named)
        or (cause is not None and (event.source, event.line) == (closing.source, cause))
    ]


def _ended(evidence: Evidence) -> bool:
    return evidence.ending.kind not in ("unknown", "truncated")


def _warnings(evidence: Evidence) -> list[Event]:
    return [event for event in evidence.events_of("warning") if event.data.get("about") == _NO_INPUT]


def _before(one: Event, other: Event) -> bool:
    return one.line is None or other.line is None or one.line < other.line


def _hit(evidence: Evidence, event: Event) -> Hit:
    """It happened after the last step that the log shows before it, up to the one that would have been logged next."""
    loss = evidence.series("loss")
    stride = max(1, int(loss.cadence)) if loss is not None and loss.step_unit == "step" else 1
    step = None if event.step is None else event.step + stride
    message = str(event.data.get("message") or event.text)
    facts: dict[str, Fact] = {
        "error": _SENTENCE.split(message.strip())[0].rstrip(".") or None,
        "place": _text(event, "where"),
        "kind": _text(event, "error"),
    }
    return Hit(step, event.step, None, None, None, event.source, event.line, None, facts)


def _text(event: Event, key: str) -> str | None:
    value = event.data.get(key)
    return None if value is None else str(value)


CHECKS: tuple[Check, ...] = (
    autograd_error_ends_run,
    ends_without_graph,
    checkpointing_finds_no_gradient,
    autograd_error_survived,
)
