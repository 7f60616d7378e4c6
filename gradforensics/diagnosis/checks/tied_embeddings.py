"""Checks on what a checkpoint must hold: a head and an embedding that are tied or not, and keys that vanished."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradforensics import checkpoint_signals as cs
from gradforensics.checkpoint_signals import Saved, Weight
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.parameter_names import bare
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

_TIED = frozenset({
    "tie_word_embeddings", "tied_word_embeddings", "tie_embeddings", "weight_tying", "tie_weights",
    "share_input_output_embed", "share_decoder_input_output_embed", "share_decoder_embeddings",
})  # fmt: skip
_UNTIED = "untie_embeddings_and_output_weights"  # of Megatron
_HEAD = lazy(
    r"(?:^|\.)(?:lm_head|head|output|output_layer|embed_out|unembed\w*|output_projection)(?:\.decoder)?\.weight$"
)
_GENERATES = lazy(r"(?:ForCausalLM|LMHeadModel|ForMaskedLM)$")
_FLOATS = ("float64", "float32", "bfloat16", "float16")


def _said_tied(evidence: Evidence) -> bool | Missing:
    """Whether the settings say that head and embedding are one tensor; parts of one model may say different things."""
    said: set[bool] = set()
    for setting in evidence.settings or []:
        last = setting.key.rpartition(".")[2]
        if isinstance(setting.value, bool) and (last in _TIED or last == _UNTIED):
            said.add(setting.value if last in _TIED else not setting.value)
    if len(said) > 1:
        return Missing("settings that agree on whether head and embedding are tied")
    return said.pop() if said else Missing("settings:tie_word_embeddings")


def _whole(evidence: Evidence) -> list[tuple[str, list[Weight]]] | Missing:
    """The weights of each checkpoint that holds whole tensors, not those of ranks."""
    if cs.weights(evidence) is None:
        return Missing("tensors")
    parts = cs.weights_by_checkpoint(evidence).items()
    return [(path, whole) for path, part in parts if (whole := [weight for weight in part if weight.rank is None])]


def _is_head(weight: Weight) -> bool:
    return len(weight.shape) == 2 and _HEAD.search(weight.name) is not None


# -- tied or not ------------------------------------------------------------------------------------------------------


@check(needs=["tensors"], facts=["checkpoint", "head", "embedding", "head_l2", "embedding_l2", "gap"])
def tied_head_differs(evidence: Evidence, *, off: float) -> Answer:
    """The settings say that head and embedding are one tensor; a checkpoint holds both, and they differ.

    Of one type by their bytes, of two types by their norms, which must differ by a share `off`.
    """
    tied, parts = _said_tied(evidence), _whole(evidence)
    if isinstance(tied, Missing) or isinstance(parts, Missing):
        return tied if isinstance(tied, Missing) else Missing("tensors")
    if not tied:
        return []
    judged, good = False, None
    hits: list[Hit] = []
    for path, weights in parts:
        tables = [weight for weight in weights if cs.is_token_table(weight) and weight.measured in _FLOATS]
        heads = [weight for weight in weights if _is_head(weight) and weight.measured in _FLOATS]
        pairs = [(head, [t for t in tables if t.shape == head.shape]) for head in heads]
        judged |= bool(tables)
        broken = [(head, near[0]) for head, near in pairs if near and all(_differ(head, t, off) for t in near)]
        if broken:
            hits.append(_untied(path, *broken[0], good))
        elif tables:
            good = weights[0].step
    return hits if judged else Missing("a token embedding in a checkpoint")


def _differ(head: Weight, table: Weight, off: float) -> bool:
    if head.nonfinite or table.nonfinite:
        return False
    if head.measured == table.measured:
        return head.fingerprint != table.fingerprint
    return _gap(head, table) > off


def _gap(head: Weight, table: Weight) -> float:
    """By which share of the larger one the norms differ."""
    a, b = head.l2 or 0.0, table.l2 or 0.0
    return abs(a - b) / max(a, b) if max(a, b) else 0.0


def _untied(path: str, head: Weight, table: Weight, good: int | None) -> Hit:
    facts: dict[str, Fact] = {
        "checkpoint": path,
        "head": head.name,
        "embedding": table.name,
        "head_l2": head.l2,
        "embedding_l2": table.l2,
        "gap": _gap(head, table),
    }
    return Hit(head.step, good, "tensors", None, _gap(head, table), head.source, None, head.name, facts)


@check(needs=["tensors"], facts=["checkpoint", "embedding", "rows"])
def untied_head_missing(evidence: Evidence) -> Answer:
    """The settings say that the head is a tensor of its own, and no tensor of a whole checkpoint can be one.

    Only of a language model of transformers (its configuration names the class), where nothing but the embedding has as
    many rows or columns as there are tokens.
    """
    tied, parts = _said_tied(evidence), _whole(evidence)
    if isinstance(tied, Missing) or isinstance(parts, Missing):
        return tied if isinstance(tied, Missing) else Missing("tensors")
    if tied:
        return []
    classes = evidence.setting("architectures")
    names = [classes] if isinstance(classes, str) else classes if isinstance(classes, list) else []
    if not any(_GENERATES.search(str(name)) for name in names):
        return Missing("settings:architectures")
    whole = {one.path for one in cs.checkpoints(evidence) or [] if one.complete is not False}
    judged, hits = False, list[Hit]()
    for path, weights in parts:
        tables = [weight for weight in weights if cs.is_token_table(weight)]
        if path not in whole or not tables or _adapters(weights):
            continue
        judged = True
        table = tables[0]
        rows = table.shape[0]
        others = [w for w in weights if w.name != table.name and rows in w.shape and len(w.shape) == 2]
        if not others:
            facts: dict[str, Fact] = {"checkpoint": path, "embedding": table.name, "rows": rows}
            hits.append(Hit(table.step, None, "tensors", None, None, table.source, None, table.name, facts))
    return hits if judged else Missing("a whole checkpoint with a token embedding")


def _adapters(weights: list[Weight]) -> bool:
    return any(weight.kind in ("lora_a", "lora_b") for weight in weights)


# -- keys that vanished -----------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """Two checkpoints of one kind, one after the other; weights by their names without the parts of wrappers."""

    first: Saved
    last: Saved
    before: Mapping[str, Weight]
    after: Mapping[str, Weight]


def _steps(evidence: Evidence) -> list[_Step]:
    """Checkpoints that are called alike but for their numbers, of one format and whole, each with the one before it."""
    return evidence.once("tied_embeddings.steps", lambda: list(_following(evidence)))


def _following(evidence: Evidence) -> Iterator[_Step]:
    saved = {one.path: one for one in cs.checkpoints(evidence) or []}
    parts = _whole(evidence)
    previous: dict[tuple[str, str], tuple[Saved, dict[str, Weight]]] = {}
    for path, weights in [] if isinstance(parts, Missing) else parts:
        one = saved.get(path)
        if one is None or one.step is None or one.complete is False:
            continue
        kind = re.sub(r"\d+", "#", path), one.format
        mine = {bare(weight.name): weight for weight in weights}
        if kind in previous and (previous[kind][0].step or 0) < one.step:
            yield _Step(previous[kind][0], one, previous[kind][1], mine)
        previous[kind] = one, mine


_TWO = "two whole checkpoints of one kind"


@check(needs=["tensors"], facts=["before", "checkpoint", "vanished", "left", "name", "optimized", "values"])
def keys_vanished(evidence: Evidence) -> Answer:
    """Weights of a checkpoint are not in the next one of its kind, whose optimizer holds as many parameters as before.

    Adapters that were merged, tied tensors that are saved once, and models that became another one do not count.
    """
    return _vanished(evidence, in_optimizer=True)


@check(needs=["tensors"], facts=["before", "checkpoint", "vanished", "left", "name", "optimized", "values"])
def keys_vanished_without_optimizer(evidence: Evidence) -> Answer:
    """The same where the checkpoints hold no optimizer that could tell whether the model was cut on purpose."""
    return _vanished(evidence, in_optimizer=False)


def _vanished(evidence: Evidence, *, in_optimizer: bool) -> Answer:
    if cs.weights(evidence) is None:
        return Missing("tensors")
    counts: dict[str, int] = {}
    for group in cs.groups(evidence) or []:
        counts[group.checkpoint] = counts.get(group.checkpoint, 0) + len(group.names)
    judged, hits = False, list[Hit]()
    for one in _steps(evidence):
        before, after = counts.get(one.first.path, 0), counts.get(one.last.path, 0)
        if in_optimizer != bool(before and after):
            continue
        judged = True
        gone = _gone(one)
        if gone and (not in_optimizer or after >= before > len(one.after)):
            hits.append(_lost(one, gone, after))
    return hits if judged else Missing(f"{_TWO} with{'' if in_optimizer else 'out'} their optimizer")


def _gone(one: _Step) -> list[Weight]:
    """The weights that the later checkpoint lacks; empty where it is of another model, or lacks nothing of its own."""
    after = set(one.after)
    if not after & one.before.keys():  # a part of the model was saved in place of the whole
        some = next(iter(one.after), "")
        starts = [name.removesuffix(some) for name in one.before if name.endswith(f".{some}")]
        whole = [start for start in starts if _is_part(one, start)]
        after = {whole[0] + name for name in after} if len(whole) == 1 else after
    if not after <= one.before.keys():
        return []
    kept = {one.before[name].fingerprint for name in after}
    return [
        weight
        for name, weight in one.before.items()
        if name not in after and weight.fingerprint not in kept and weight.kind not in ("lora_a", "lora_b")
    ]


def _is_part(one: _Step, start: str) -> bool:
    """Whether the later checkpoint is the part of the model whose names begin so."""
    theirs = [(weight, one.before.get(start + name)) for name, weight in one.after.items()]
    return all(old is not None and old.shape == weight.shape for weight, old in theirs)


def _lost(one: _Step, gone: list[Weight], optimized: int) -> Hit:
    facts: dict[str, Fact] = {
        "before": one.first.path,
        "checkpoint": one.last.path,
        "vanished": len(gone),
        "left": len(one.after),
        "name": gone[0].name,
        "optimized": optimized,
        "values": sum(weight.count for weight in gone),
    }
    source, step = one.last.source, one.last.step
    return Hit(step, one.first.step, "tensors", None, float(len(gone)), source, None, gone[0].name, facts)


@check(needs=["tensors"], facts=["before", "checkpoint", "old", "new"])
def keys_renamed(evidence: Evidence) -> Answer:
    """The names of two checkpoints of one kind differ in the parts alone that wrappers of a model add."""
    if cs.weights(evidence) is None:
        return Missing("tensors")
    judged, hits = False, list[Hit]()
    for one in _steps(evidence):
        judged = True
        if one.before.keys() != one.after.keys():
            continue
        name = next((name for name in one.after if one.before[name].name != one.after[name].name), None)
        if name is not None:
            old, new = one.before[name].name, one.after[name].name
            facts: dict[str, Fact] = {"before": one.first.path, "checkpoint": one.last.path, "old": old, "new": new}
            hits.append(Hit(one.last.step, one.first.step, "tensors", None, None, one.last.source, None, new, facts))
    return hits if judged else Missing(_TWO)


CHECKS: tuple[Check, ...] = (
    tied_head_differs,
    untied_head_missing,
    keys_vanished,
    keys_vanished_without_optimizer,
    keys_renamed,
)
