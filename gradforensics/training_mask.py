"""Which parameters of a run were meant to be trained, and how certain that is; from settings and optimizers.

A weight that stands still is healthy where it was frozen on purpose, and nothing in a checkpoint says so directly: an
intended requires_grad=False and a graph that was cut by mistake leave the same tensors. Nothing is judged here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradforensics.checkpoint_signals import (
    SURE,
    Weight,
    checkpoints,
    groups_of,
    states,
    weights,
    weights_by_checkpoint,
)
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Setting

# Settings that speak of freezing, of training a part, or of adapters; a value that switches them off says nothing.
_PARTIAL = lazy(
    r"freez|frozen|finetuning_type|tuning_type|trainable|train_type|peft|lora|adapter|modules_to_save|"
    r"linear_prob|probe_only|head_only|only_train|train_only|(?:^|[._])tune_|virtual_tokens|prompt_tuning|requires_grad",
    re.IGNORECASE,
)
_FULL = frozenset({"full", "full_finetune", "full-finetune", "full_fine_tuning", "full_parameter", "all"})
_OFF = frozenset({"", "none", "null", "false", "no", "off", "0", "-1", "[]", "{}"})
_TRAINABLE = lazy(r"trainable_?(?:params|parameters)$", re.IGNORECASE)
_ADAPTER = lazy(
    r"lora_|(?:^|\.)(?:hada|lokr|vera_lambda|oft_|boft_|ia3_)|prompt_(?:encoder|embeddings?)|prefix_encoder|adapters?\.",
    re.IGNORECASE,
)
_STATE_ROLES = ("exp_avg", "exp_avg_sq", "momentum", "state")
_STATE_KEY = lazy(r"(?:^|\.)state\.(.+?)\.[A-Za-z_]\w*(?:\.\d+)?$")


class Mask(NamedTuple):
    """What is known of the parameters that were meant to be trained.

    excuse: what says that a part is frozen on purpose, such as "freeze_encoder = true"; "" where nothing does.
    known: whatever the optimizer holds was meant to be trained: the framework gives it nothing else, or settings say
    that the whole model is trained.
    """

    excuse: str
    known: bool


@dataclass(frozen=True, slots=True)
class Held:
    """What one checkpoint's optimizer holds.

    names: the parameters in its groups, None where some of their names are not certain. count: how many it holds.
    everything: as many as the checkpoint has weights. stateful: it keeps states. stateless: the number of parameters
    without one while others have one: torch makes no state for a parameter that never had a gradient. stateless_names:
    None where names are not certain. updates: its largest step counter. frozen_groups: some group has the rate 0 and
    others have not.
    """

    names: frozenset[str] | None
    count: int
    everything: bool
    stateful: bool
    stateless: int
    stateless_names: frozenset[str] | None
    updates: int | None
    frozen_groups: bool

    def holds(self, name: str, moving: int) -> bool | None:
        """Whether a parameter that stands still is in a group; None where that is not known.

        moving: the number of parameters that move: they are in groups, and where that is all, no other one is.
        """
        if self.names is not None:
            return name in self.names
        if self.everything:
            return True
        return False if moving == self.count else None


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to an adapter beside a base that is then frozen."""
    return _ADAPTER.search(name) is not None


def mask(evidence: Evidence) -> Mask:
    """What settings, adapters and the framework say of the parameters that were meant to be trained."""
    return evidence.once("training_mask.mask", lambda: _mask(evidence))


def _mask(evidence: Evidence) -> Mask:
    found = weights(evidence) or []
    adapter = next((w.name for w in found if is_adapter(w.name)), None)
    if adapter is not None:
        return Mask(f"the adapter weight {adapter}", known=False)
    settings = evidence.settings or []
    full = any(_is_full(one) for one in settings)
    excuse = next((f"{one.name} = {one.value}"[:120] for one in settings if _excuses(one, found)), "")
    trainer = any(one.format.startswith("hf-trainer") for one in checkpoints(evidence) or [])
    counted = any(_counts_all(one, found) for one in settings)
    return Mask(excuse, known=full or trainer or counted)


def _is_full(setting: Setting) -> bool:
    speaks = re.search(r"finetuning_type|tuning_type|train_type|training_mode", setting.key, re.IGNORECASE)
    return speaks is not None and str(setting.value).lower() in _FULL


def _excuses(setting: Setting, found: Sequence[Weight]) -> bool:
    """Whether a setting says that not everything is trained."""
    if _TRAINABLE.search(setting.name):
        number = _number(setting.value)
        return number is None or (bool(found) and number < _elements(found))
    key = setting.key if _PARTIAL.search(setting.key) else setting.name
    if not _PARTIAL.search(key):
        return False
    value = setting.value
    if re.search(r"(?:frozen_stages|freeze_at)$", key, re.IGNORECASE):
        number = _number(value)
        return number is not None and number >= 0
    if re.search(r"(?:^|[._])(?:tune_|trainable|requires_grad)", key, re.IGNORECASE) and isinstance(value, bool):
        return not value
    return str(value).strip().lower() not in _OFF | _FULL and value not in (0, 0.0)


def _counts_all(setting: Setting, found: Sequence[Weight]) -> bool:
    number = _number(setting.value) if _TRAINABLE.search(setting.name) else None
    return number is not None and bool(found) and number >= _elements(found)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _elements(found: Sequence[Weight]) -> int:
    """Elements of the weights of the first checkpoint that has some."""
    first = [w for w in found if w.checkpoint == found[0].checkpoint]
    return sum(w.count for w in distinct(first))


def distinct(found: Sequence[Weight]) -> list[Weight]:
    """The weights of one checkpoint without the second names of tied ones (equal bytes of a matrix)."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    kept: list[Weight] = []
    for weight in found:
        label = weight.fingerprint, weight.shape
        if len(weight.shape) > 1 and weight.min != weight.max:
            if label in seen:
                continue
            seen.add(label)
        kept.append(weight)
    return kept


def held(evidence: Evidence, checkpoint: str) -> Held | None:
    """What the optimizer of a checkpoint holds; None where there is none, or ranks hold parts of it."""
    return evidence.once(("training_mask.held", checkpoint), lambda: _held(evidence, checkpoint))


def _held(evidence: Evidence, checkpoint: str) -> Held | None:
    mine = groups_of(evidence, checkpoint)
    ids = [name for group in mine for name in group.names]
    if not ids or any(group.rank is not None for group in mine):
        return None
    own = weights_by_checkpoint(evidence).get(checkpoint, [])
    saved = next((one for one in checkpoints(evidence) or [] if one.path == checkpoint), None)
    with_state = _with_state(evidence).get(checkpoint, frozenset())
    stateless = [name for name in ids if name not in with_state] if with_state else []
    sure = saved is not None and saved.naming in SURE and set(ids) <= {w.name for w in own}
    rates = {group.lr for group in mine if group.names and group.lr is not None}
    return Held(
        frozenset(ids) if sure else None,
        len(ids),
        bool(own) and len(ids) >= len(distinct(own)),
        bool(with_state),
        len(stateless),
        frozenset(stateless) if sure else None,
        max((group.step_max for group in mine if group.step_max is not None), default=None),
        0.0 in rates and len(rates) > 1,
    )


def _with_state(evidence: Evidence) -> Mapping[str, frozenset[str]]:
    """By checkpoint, the names or ids of the parameters that have a state."""
    return evidence.once("training_mask.with_state", lambda: _states_of(evidence))


def _states_of(evidence: Evidence) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for role in _STATE_ROLES:
        rows: Mapping[Any, Any] = states(evidence, role)
        for checkpoint, name, _rank in rows:
            key = _STATE_KEY.search(name)
            found.setdefault(checkpoint, set()).add(key[1] if key else name)
    return {checkpoint: frozenset(names) for checkpoint, names in found.items()}
