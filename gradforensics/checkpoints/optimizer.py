"""An optimizer's state_dict as plain data -> its groups, the kind of optimizer, states and step counters by id.

The layout is that of torch.optim.Optimizer.state_dict: {"state": {id: {key: value}}, "param_groups": [{"params": [id,
...], "lr": ...}]}. Ids are integers, or the parameters' names (FSDP full state dicts, DCP). Everything may be forged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, TypeAlias

from gradforensics.checkpoints.model import Group, Role
from gradforensics.checkpoints.refs import Lost, TensorRef
from gradforensics.checkpoints.samples import scalar
from gradforensics.untrusted.dtypes import FLOATS
from gradforensics.untrusted.files import RefusedError

State: TypeAlias = TensorRef | Lost

_MAX_GROUPS = 100_000
_MAX_IDS = 2_000_000
_MAX_STATES = 10_000_000
_MAX_TEXT = 200
_MAX_TUPLE = 16
_NESTING = 3  # Shampoo and SOAP keep lists of matrices per parameter, bitsandbytes a dict

_ROLES: dict[str, Role] = {
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "max_exp_avg_sq": "max_exp_avg_sq",
    "momentum_buffer": "momentum",
    "master_param": "master",  # Transformer Engine and apex keep fp32 weights among the states
    "fp32_param": "master",
}
# Keys whose tensors have the shape of the parameter.
_FULL = (
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta", "grad_avg", "sum",
    "exp_inf", "variance", "prev", "step_size", "ax", "state1", "state2", "master_param", "fp32_param",
)  # fmt: skip
# Factored second moments: (means over the last dimension, means over the one before); see parameter_shape.
_FACTORED = (("exp_avg_sq_row", "exp_avg_sq_col"), ("row_var", "col_var"))

# Kinds by a key of a parameter's state or of the group, in this order; the keys are those of torch.optim, of
# transformers.optimization.Adafactor (clip_threshold) and of Muon's reference implementation (ns_steps, use_muon).
_BY_STATE = (
    ("adafactor", ("exp_avg_sq_row", "exp_avg_sq_col", "row_var", "col_var", "variance")),
    ("adamax", ("exp_inf",)), ("nadam", ("mu_product",)), ("adadelta", ("acc_delta",)), ("rmsprop", ("square_avg",)),
    ("adagrad", ("sum",)), ("asgd", ("ax",)), ("rprop", ("prev",)), ("lbfgs", ("old_dirs", "prev_flat_grad")),
)  # fmt: skip
_BY_GROUP = (
    ("muon", ("ns_steps",)), ("adafactor", ("clip_threshold", "beta2_decay")), ("nadam", ("momentum_decay",)),
    ("rmsprop", ("centered",)), ("adadelta", ("rho",)), ("adagrad", ("lr_decay",)), ("asgd", ("lambd",)),
    ("rprop", ("etas",)), ("lbfgs", ("history_size",)),
)  # fmt: skip
_ADAM_STATE = frozenset({"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master_param"})
# Group keys of optimizers that keep Adam's two moments and update otherwise: LAMB (apex, timm), Prodigy, D-Adaptation,
# schedule-free, GaLore, SOAP.
# Group keys of bfloat16 weights that Adam's change does not reach by plain rounding: torchdistx (AnyPrecisionAdamW),
# optimi, torchao, OneTrainer.
_ROUNDED = ("use_kahan_summation", "kahan_sum", "bf16_stochastic_round", "stochastic_rounding")
_NOT_ADAM = frozenset({
    "grad_averaging", "max_grad_norm", "trust_clip", "always_adapt", "d0", "d_coef", "train_mode", "weight_lr_power",
    "rank", "update_proj_gap", "precondition_frequency",
})  # fmt: skip


@dataclass(slots=True)
class OptimizerState:
    """What one optimizer's state_dict holds.

    groups: their names are ids as text. states: tensors by id and key (nested ones as "key.0"), step counters left out.
    steps: by id. names: id -> name of the parameter where the file says it, named_by: where it does.
    """

    groups: list[Group] = field(default_factory=list)
    states: dict[str, dict[str, State]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    named_by: Literal["param_names", "keys", ""] = ""
    notices: list[str] = field(default_factory=list)


def read_optimizer(state_dict: Mapping[Any, Any]) -> OptimizerState:
    """Read a state_dict. What is malformed is left out with a notice.

    Raises RefusedError where it is no optimizer's, or holds more groups, ids or tensors than can be.
    """
    raw_states, raw_groups = state_dict.get("state"), state_dict.get("param_groups")
    if not isinstance(raw_states, Mapping) and not isinstance(raw_groups, list | tuple):
        raise RefusedError("no optimizer's state: it has neither 'state' nor 'param_groups'")
    found = OptimizerState()
    keys: dict[str, frozenset[str]] = {}
    _read_states(raw_states if isinstance(raw_states, Mapping) else {}, found, keys)
    _read_groups(raw_groups if isinstance(raw_groups, list | tuple) else [], found, keys)
    return found


def role_of(key: str, dtype: str) -> Role:
    """The role of a state's tensor. Quantized ones are plain "state": the formulas of moments do not hold for them."""
    return _ROLES.get(key, "state") if dtype in FLOATS else "state"


def parameter_shape(states: Mapping[str, State]) -> tuple[int, ...] | None:
    """The shape of the parameter that these states belong to, or None where they do not tell or disagree.

    Adafactor's factored moments tell it too: of a parameter (..., n, m) transformers keeps means of shape (..., n) and
    (..., m), torch keeps (..., n, 1) and (..., 1, m).
    """
    for row, column in _FACTORED:
        if row in states and column in states:
            rows, columns = states[row].shape, states[column].shape
            rows = rows[:-1] if row == "row_var" else rows
            return (*rows, columns[-1]) if rows and columns else None
    shapes = {ref.shape for key, ref in states.items() if key in _FULL}
    if not shapes:
        # an optimizer that we do not know: all of its tensors have one shape, or we cannot tell
        shapes = {ref.shape for ref in states.values() if ref.shape}
    return shapes.pop() if len(shapes) == 1 else None


# -- states -----------------------------------------------------------------------------------------------------------


def _read_states(raw: Mapping[Any, Any], found: OptimizerState, keys: dict[str, frozenset[str]]) -> None:
    """Fill states, steps and names; `keys` gets the keys of each id's state, tensors and numbers alike."""
    if len(raw) > _MAX_IDS:
        raise RefusedError(f"an optimizer's state of {len(raw)} parameters")
    dropped, total = 0, 0
    for key, entries in raw.items():
        identity = _identity(key)
        if identity is None or identity in keys or not isinstance(entries, Mapping):
            dropped += 1
            continue
        step = _step(entries.get("step"))
        if step is not None:
            found.steps[identity] = step
        keys[identity] = frozenset(name for name in entries if isinstance(name, str))
        tensors = dict(_tensors(entries, "", _NESTING))
        total += len(tensors)
        if total > _MAX_STATES:
            raise RefusedError(f"an optimizer's state of more than {_MAX_STATES} tensors")
        found.states[identity] = tensors
        _note_name(key, identity, found)
    if dropped:
        found.notices.append(f"{dropped} entries of the optimizer's state are no parameter's and were left out")


def _identity(key: Any) -> str | None:
    """An id as text, None for what is no id."""
    if isinstance(key, str):
        return key
    return str(key) if type(key) is int and 0 <= key < 1 << 62 else None


def _note_name(key: Any, identity: str, found: OptimizerState) -> None:
    """A key that is text and no number is the parameter's name (DCP turns integer ids into text when it flattens)."""
    if isinstance(key, str) and not key.isdecimal():
        found.names[identity] = identity
        found.named_by = found.named_by or "keys"


def _step(value: Any) -> int | None:
    """A step counter: a number, or a tensor of one element; None where it is no whole number."""
    number = scalar(value)
    return int(number) if number is not None and number >= 0 and isfinite(number) and number == int(number) else None


def _tensors(entries: Mapping[Any, Any], prefix: str, depth: int) -> Iterable[tuple[str, State]]:
    """The tensors of one parameter's state, nested ones too, the step counter left out."""
    for key, value in entries.items():
        if not isinstance(key, str | int) or (not prefix and key == "step"):
            continue
        name = prefix + (key[:_MAX_TEXT] if isinstance(key, str) else str(key) if 0 <= key < 1 << 62 else "")
        if isinstance(value, TensorRef | Lost):
            yield name, value
        elif depth and isinstance(value, Mapping):
            yield from _tensors(value, f"{name}.", depth - 1)
        elif depth and isinstance(value, list | tuple):
            yield from _tensors(dict(enumerate(value)), f"{name}.", depth - 1)


# -- groups -----------------------------------------------------------------------------------------------------------


def _read_groups(raw: list[Any] | tuple[Any, ...], found: OptimizerState, keys: Mapping[str, frozenset[str]]) -> None:
    if len(raw) > _MAX_GROUPS:
        raise RefusedError(f"an optimizer of {len(raw)} groups")
    seen: set[str] = set()
    total = 0
    for number, entries in enumerate(raw):
        if not isinstance(entries, Mapping):
            found.notices.append(f"parameter group {number} is no dictionary and was left out")
            continue
        listed = entries.get("params")
        listed = listed if isinstance(listed, list | tuple) else ()
        total += len(listed)
        if total > _MAX_IDS:
            raise RefusedError(f"an optimizer's groups of more than {_MAX_IDS} parameters")
        ids = _ids(listed, number, seen, found)
        _read_param_names(entries.get("param_names"), listed, found)
        found.groups.append(_group(number, ids, entries, found, keys))
    strangers = len(found.states.keys() - seen) if found.groups else 0
    if strangers:
        found.notices.append(f"{strangers} entries of the optimizer's state belong to no parameter group")


def _ids(listed: list[Any] | tuple[Any, ...], number: int, seen: set[str], found: OptimizerState) -> list[str]:
    """The ids of one group; those that are none, or that an earlier group has, are left out with a notice."""
    ids = []
    for key in listed:
        identity = _identity(key)
        if identity is None or identity in seen:
            continue
        seen.add(identity)
        ids.append(identity)
        _note_name(key, identity, found)
    if len(ids) < len(listed):
        found.notices.append(
            f"parameter group {number} lists {len(listed) - len(ids)} parameters twice, or that are none"
        )
    return ids


def _read_param_names(names: Any, listed: list[Any] | tuple[Any, ...], found: OptimizerState) -> None:
    """Names as torch >= 2.6 keeps them where the optimizer was built from named_parameters()."""
    if not isinstance(names, list | tuple) or len(names) != len(listed):
        return
    for key, name in zip(listed, names, strict=True):
        identity = _identity(key)
        if identity is not None and isinstance(name, str):
            found.names[identity] = name
            found.named_by = "param_names"


def _group(
    number: int, ids: list[str], entries: Mapping[Any, Any], found: OptimizerState, keys: Mapping[str, frozenset[str]]
) -> Group:
    group = Group(number, ids)
    known = {name: scalar(entries.get(name)) for name in ("lr", "eps", "weight_decay", "momentum") if name in entries}
    group.lr, group.eps = known.get("lr"), known.get("eps")
    group.weight_decay, group.momentum = known.get("weight_decay"), known.get("momentum")
    group.betas = _betas(entries.get("betas"))
    steps = [found.steps[identity] for identity in ids if identity in found.steps]
    # apex and Transformer Engine count once per group
    shared = _step(entries.get("step")) if not steps else None
    if shared is not None:
        found.steps.update(dict.fromkeys(ids, shared))
        steps = [shared]
    if steps:
        group.step_min, group.step_max = min(steps), max(steps)
    taken = {"params", "param_names", *(name for name, value in known.items() if value is not None)}
    taken |= {"betas"} if group.betas else set()
    group.values = {
        name[:_MAX_TEXT]: value
        for name, raw in entries.items()
        if isinstance(name, str) and name not in taken and (value := _plain(raw)) is not _NOT_PLAIN
    }
    states = [found.states[identity] for identity in ids if identity in found.states]
    group.optimizer = _kind(group, states, frozenset().union(*(keys[i] for i in ids if i in keys)))
    return group


def _betas(value: Any) -> tuple[float, float] | None:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    first, second = scalar(value[0]), scalar(value[1])
    return None if first is None or second is None else (first, second)


_NOT_PLAIN = object()


def _plain(value: Any, depth: int = 1) -> Any:
    """A value as plain data: a scalar, a tensor of one element, or a short tuple of those; else _NOT_PLAIN."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else _NOT_PLAIN
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, TensorRef):
        number = scalar(value)
        return _NOT_PLAIN if number is None else number
    if depth and isinstance(value, list | tuple) and len(value) <= _MAX_TUPLE:
        items = tuple(_plain(item, depth - 1) for item in value)
        return items if all(item is not _NOT_PLAIN for item in items) else _NOT_PLAIN
    return _NOT_PLAIN


# -- kind -------------------------------------------------------------------------------------------------------------


def _kind(group: Group, states: list[dict[str, State]], keys: frozenset[str]) -> str:
    """The kind of optimizer, "" where neither the states' keys nor the group's tell.

    8-bit states of bitsandbytes are "adam-8bit" (two states) and "8-bit", its 32-bit ones "bitsandbytes": they can be
    read, but no exact formula holds for them.
    """
    values = group.values
    if "state1" in keys:
        quantized = any(name.startswith(("qmap", "absmax")) for name in keys) or any(
            state["state1"].dtype not in FLOATS for state in states if "state1" in state
        )
        return ("adam-8bit" if "state2" in keys else "8-bit") if quantized else "bitsandbytes"
    for kind, markers in _BY_STATE:
        if any(marker in keys for marker in markers):
            return kind
    if values.get("use_muon") is True:
        return "muon"
    for kind, markers in _BY_GROUP:
        if any(marker in values for marker in markers):
            return kind
    if {"exp_avg", "exp_avg_sq"} <= keys or (not keys and "amsgrad" in values):
        return _adam(group, keys)
    if "exp_avg" in keys:
        return "lion" if group.betas and group.eps is None and keys <= {"exp_avg", "step"} else ""
    # Muon keeps a momentum_buffer as well, and some versions of it say nothing else; torch's SGD always has a dampening
    return "sgd" if "dampening" in values and keys <= {"momentum_buffer"} else ""


def _adam(group: Group, keys: frozenset[str]) -> str:
    """Which of the optimizers with Adam's two moments: "" where further states or settings say that it is another.

    Before torch 2.6 Adam's and AdamW's groups looked the same: "adam" then means either.
    """
    values = group.values
    if not keys <= _ADAM_STATE or any(name in values for name in _NOT_ADAM):
        return ""
    if any(values.get(name) is True for name in _ROUNDED):
        return ""
    if "max_exp_avg_sq" in keys or values.get("amsgrad") is True:
        return "amsgrad"
    if "decoupled_weight_decay" in values and "amsgrad" not in values:
        return "radam"
    # correct_bias: transformers' own AdamW of old
    return "adamw" if values.get("decoupled_weight_decay") is True or "correct_bias" in values else "adam"
