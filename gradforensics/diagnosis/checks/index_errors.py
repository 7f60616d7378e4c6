"""Checks on errors that ids outside of their tables cause: IndexError on the CPU, an assertion of a CUDA kernel."""

from __future__ import annotations

from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Evidence

# Assertions of PyTorch's kernels, versions 1.8 to 2.13. Those of other kernels are about values, not about indices.
_LABELS = lazy(r"\bt(?:arget)? >= 0 && t(?:arget)? < n_classes|cur_target >= 0 && cur_target < n_classes|nll_loss")
_IDS = lazy(
    r"srcIndex < srcSelectDimSize|dstIndex < dstAddDimSize|vectorized_gather|"
    r"\bind(?:ex)? ?>= ?0 && ind(?:ex)? ?< ?\w*(?:ind_dim_size|num_weights|num_embeddings)|embedding_"
)
_OTHER_INDEX = lazy(r"index out of bounds|idx_dim >= 0 && idx_dim < index_size|index >= -sizes|-sizes\[i\] <= index")
_SHOWN = 3
_LATER = Text("the traceback may name a later line", "调用栈可能指向后面的一行")
_THERE = Text("the traceback names the line", "调用栈指出了该行")


def _kind(event: Event) -> str | None:
    """What lies outside: "labels", "ids", "index" (of an indexing operation), "unknown"; None: another assertion."""
    if event.kind == "index_error":
        return "labels" if "index" in event.data else "ids"
    told = f"{event.data.get('kernel', '')} {event.data.get('assertion', '')}"
    if "assertion" not in event.data:
        return "unknown"
    for kind, pattern in (("labels", _LABELS), ("ids", _IDS), ("index", _OTHER_INDEX)):
        if pattern.search(told):
            return kind
    return None


def _events(evidence: Evidence) -> tuple[list[tuple[str, Event]], bool]:
    """The errors of an index with their kinds, and whether an assertion of another kind stands beside them."""
    found = [(_kind(event), event) for event in evidence.events_of("index_error", "device_assert")]
    return [(kind, event) for kind, event in found if kind is not None], any(kind is None for kind, _ in found)


@check(needs=[], facts=["message", "id", "where", "count", "asynchronous"])
def stopped_by_bad_index(evidence: Evidence, *, what: str) -> Answer:
    """The log shows the error of an index outside of its table.

    what: "labels", "ids" (of a token or a position), or "unknown" (an assertion on a CUDA device without its reason).
    A run that came to its end, or whose console log shows no such error, had none.
    """
    found, other = _events(evidence)
    named = [kind for kind, _ in found if kind != "unknown"]
    if what == "unknown":
        mine = [event for kind, event in found if kind in ("unknown", "index")]
        if any(kind in ("labels", "ids") for kind in named) or (other and "index" not in named):
            mine = []
    else:
        mine = [event for kind, event in found if kind == what]
    if mine:
        return [_hit(event, len(mine)) for event in mine[:_SHOWN]]
    if found or other or evidence.ending.kind == "completed" or _has_console(evidence):
        return []
    return Missing("events:console")


def _has_console(evidence: Evidence) -> bool:
    return evidence.events is not None and any(source.reader == "console" for source in evidence.sources)


def _hit(event: Event, count: int) -> Hit:
    on_device = event.kind == "device_assert"
    index = event.data.get("index")
    where = event.data.get("where")
    facts: dict[str, Fact] = {
        "message": event.text.strip()[:200],
        "id": index if isinstance(index, int) else None,
        "where": where if isinstance(where, str) else Text("not said", "未写明"),
        "count": count,
        "asynchronous": _LATER if on_device else _THERE,
    }
    value = float(index) if isinstance(index, int) else None
    return Hit(event.step, event.step, None, event.kind, value, event.source, event.line, None, facts)


CHECKS: tuple[Check, ...] = (stopped_by_bad_index,)
