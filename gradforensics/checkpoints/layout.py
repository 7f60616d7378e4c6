"""What the parts of a file's root value are: parameters, optimizers, schedulers, scalers, counters, settings.

Told by structure (a dictionary with "state" and "param_groups" is an optimizer, one of tensors is a state dict) and,
where structure does not tell, by the keys that the frameworks use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradforensics.checkpoints import tree
from gradforensics.checkpoints.model import Role
from gradforensics.checkpoints.optimizer import role_of
from gradforensics.checkpoints.refs import Lost, TensorRef
from gradforensics.checkpoints.tree import LEAVES, Leaf, Path
from gradforensics.untrusted.dtypes import FLOATS
from gradforensics.untrusted.files import RefusedError
from gradforensics.untrusted.inert import Record

# Lightning's WeightAveraging (2.6) keeps the weights that are trained here, and their average in the state dict.
_LIVE = "current_model_state"
_MAIN = (_LIVE, "state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights")
_RANDOM = re.compile(r"(?:^|_)rng(?:_|$)|random|manual_seed|generator_state")
_MASTER = frozenset({"fp32_from_fp16_params", "fp32_from_float16_groups", "fp32_groups", "master_params", "fp32_param"})
_GRADIENT = frozenset({"grad", "grads", "gradients", "main_grad"})
_BESIDE = frozenset({"callbacks", "loops", "metrics", "dataloader", "sampler", "history", "logs", "buffer", "replay"})
_BUFFER = re.compile(
    r"(?:^|\.)(?:running_mean|running_var|num_batches_tracked|inv_freq|position_ids|masked_bias|rotary_emb\.\w+|"
    r"attn\.bias|attn_mask|causal_mask|(?:min|max)_vals?|"
    r"(?:\w*fake_quant\w*|activation_post_process\w*)\.[\w.]+)$"  # observers of torch.ao begin at infinity
)
_STATE_KINDS = r"exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|fp32_param|step"
_FLAT_STATE = (
    re.compile(rf"(?:^|\.)state\.(?P<kind>{_STATE_KINDS})\.(?P<name>.+)$"),
    re.compile(rf"(?:^|\.)state\.(?P<name>.+)\.(?P<kind>{_STATE_KINDS})$"),
)
_FLAT_GROUP = re.compile(r"(?:^|\.)param_groups\.(?P<name>.+)\.(?P<key>\w+)$")
# Where a checkpoint tells its optimizer step, the surest first; "step" of a plain loop may count anything else.
_STEPS = (
    "global_step", "global_steps", "iteration", "num_updates", "iter_num", "train_step", "current_iter", "step",
    "steps", "num_steps", "iter", "it", "niter", "update",
)  # fmt: skip
_COUNTERS = frozenset({*_STEPS, "epoch", "epochs", "skipped_steps", "global_samples", "consumed_train_samples", "loss"})
_PARTS = "_schedulers"  # where torch's SequentialLR and ChainedScheduler keep the state of theirs
_HISTORY = 3  # fewer numbers in a list are rather betas or sizes
_MAX_HISTORY = 1_000_000
_SETTINGS = frozenset(
    {
        "args",
        "hyper_parameters",
        "hparams",
        "config",
        "cfg",
        "training_args",
        "opt",
        "options",
        "ds_config",
        "model_args",
    }
)


@dataclass(slots=True)
class Found:
    """A tensor of the file: `path` of keys, the leaf, and what it is taken for. sharded: a rank's part of a tensor."""

    path: Path
    leaf: Leaf
    role: Role
    name: str
    sharded: bool = False


@dataclass(slots=True)
class Content:
    """What one root value holds.

    tensors: all but those of `optimizers`, which are (path, state dict as plain data with TensorRef, Lost, numbers);
    histories: rows of named numbers that a loop kept beside its weights (lists of one length, lists of dictionaries).
    leaves: by id() the leaf behind every reference in them; flat_groups: hyper-parameters by parameter name, where the
    optimizer was saved flattened. schedulers: how many there are, the parts of a sequence not counted.
    """

    tensors: list[Found] = field(default_factory=list)
    optimizers: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    leaves: dict[int, tuple[TensorRef, Leaf]] = field(default_factory=dict)
    flat_groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    settings: list[tuple[str, Any]] = field(default_factory=list)
    histories: list[list[dict[str, float]]] = field(default_factory=list)
    schedulers: int = 0
    step: int | None = None


def understand(root: Any) -> Content:
    """Sort the parts of a root value."""
    content = Content()
    for path, value, parent in tree.walk(root, into=lambda value: not _is_part(value)):
        if isinstance(value, LEAVES):
            _tensor(content, path, value, parent, sharded=False)
        elif (local := tree.local_part(value)) is not None:
            _tensor(content, path, local, parent, sharded=True)
        elif _is_optimizer(value):
            content.optimizers.append((path, _plain_optimizer(value, content)))
        elif _is_scheduler(value):
            content.schedulers += _PARTS not in path
            _note(content, _numbered("scheduler", path), value)
        elif _is_scaler(value):
            _note(content, "scaler", value)
        elif isinstance(value, (Mapping, list)):
            content.histories += _histories(value)
    _name(content)
    _counters(content, root)
    _settings(content, root)
    return content


# -- what a container is ----------------------------------------------------------------------------------------------


def _is_part(value: Any) -> bool:
    return tree.local_part(value) is not None or _is_optimizer(value)


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("param_groups"), (list, tuple))
        and (isinstance(value.get("state"), Mapping) or "state" not in value)
        and any(isinstance(group, Mapping) for group in value["param_groups"])
    )


def _is_scheduler(value: Any) -> bool:
    return isinstance(value, Mapping) and (
        "last_epoch" in value or "_last_lr" in value or "last_batch_iteration" in value or "lr_decay_style" in value
    )


def _is_scaler(value: Any) -> bool:
    if isinstance(value, Record):
        return "LossScaler" in value.path
    growth = ("growth_factor", "growth_tracker", "_growth_tracker")
    return isinstance(value, Mapping) and "scale" in value and any(key in value for key in growth)


def _numbered(name: str, path: Path) -> str:
    """The name of a part; of several in a list with its index, from the second on.

    The schedulers that a SequentialLR or ChainedScheduler runs are "scheduler.parts.0", "scheduler.parts.1" ...
    """
    if _PARTS in path:
        at = path.index(_PARTS)
        return ".".join([_numbered(name, path[:at]), "parts", *path[at + 1 :]])
    index = path[-1] if path and path[-1].isdigit() else "0"
    return name if index == "0" else f"{name}.{index}"


# -- tensors ----------------------------------------------------------------------------------------------------------


def _tensor(content: Content, path: Path, leaf: Leaf, parent: Any, *, sharded: bool) -> None:
    key = ".".join(path)
    for pattern in _FLAT_STATE:
        if state := pattern.search(key):
            content.tensors.append(Found(path, leaf, role_of(state["kind"], leaf.dtype), state["name"], sharded))
            return
    content.tensors.append(Found(path, leaf, _role(path, leaf, parent, key), key, sharded))


def _role(path: Path, leaf: Leaf, parent: Any, key: str) -> Role:
    low = [part.lower() for part in path]
    if any(_RANDOM.search(part) for part in low) or (low and low[0] in _BESIDE):
        return "other"
    if any(part in _MASTER for part in low):
        return "master"
    if any(part in _GRADIENT for part in low):
        return "grad"
    if not _holds_tensors(parent):
        return "other"
    return "buffer" if leaf.dtype not in FLOATS or is_buffer(key) else "param"


def is_buffer(name: str) -> bool:
    """Whether a tensor of this name is a buffer that is saved with the parameters."""
    return _BUFFER.search(name) is not None


def _holds_tensors(parent: Any) -> bool:
    """Whether most parts of a container are tensors: a state dict, a list of parameters, a module."""
    if isinstance(parent, Record):
        return True
    values = [item for _, item in tree.children(parent) if item is not None]
    return 2 * sum(isinstance(item, LEAVES) or tree.local_part(item) is not None for item in values) >= len(values)


def _name(content: Content) -> None:
    """Names without the key of the container that every framework puts around the model's state dict."""
    parameters = [found for found in content.tensors if found.role in ("param", "buffer")]
    firsts = {found.path[0] for found in parameters if len(found.path) > 1}
    main = next((name for name in _MAIN if name in firsts), None)
    for found in parameters:
        if main is not None and found.path[0] == main and len(found.path) > 1:
            found.name = ".".join(found.path[1:])
        elif main == _LIVE and found.path[0] == "state_dict":
            found.name = ".".join(("averaged", *found.path[1:]))


# -- optimizers -------------------------------------------------------------------------------------------------------


def _plain_optimizer(value: Mapping[Any, Any], content: Content) -> dict[str, Any]:
    made = _plain(value, content, 0)
    return made if isinstance(made, dict) else {}


def _plain(value: Any, content: Content, depth: int) -> Any:
    """Containers and scalars as they are, tensors as references, anything else as None."""
    if isinstance(value, LEAVES):
        return _referred(value, content)
    local = tree.local_part(value)
    if local is not None:
        return _referred(local, content)
    if depth > 8:
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item, content, depth + 1) for key, item in value.items() if not isinstance(key, Record)}
    if isinstance(value, (list, tuple)):
        made = [_plain(item, content, depth + 1) for item in value]
        return tuple(made) if isinstance(value, tuple) else made
    return tree.scalar(value)


def _referred(leaf: Leaf, content: Content) -> TensorRef | Lost:
    if isinstance(leaf, Lost):
        return leaf
    try:
        ref = tree.reference(leaf, "")
    except RefusedError as error:
        return Lost(leaf.dtype, leaf.shape, str(error))
    content.leaves[id(ref)] = (ref, leaf)
    return ref


# -- counters and settings --------------------------------------------------------------------------------------------


def _note(content: Content, name: str, value: Any) -> None:
    """The scalars and short lists of a scheduler or scaler as facts."""
    entries = value.items() if isinstance(value, Mapping) else value.attributes().items()
    for key, item in entries:
        if not isinstance(key, str):
            continue
        single = tree.number(item)
        if single is not None:
            content.facts.setdefault(f"{name}.{key}", single)
        elif isinstance(item, (str, bool)):
            content.facts.setdefault(f"{name}.{key}", item)
        elif isinstance(item, (list, tuple)) and 0 < len(item) <= 64:
            numbers = [tree.number(part) for part in item]
            if all(part is not None for part in numbers):
                content.facts.setdefault(f"{name}.{key}", numbers)


def _counters(content: Content, root: Any) -> None:
    for key, value in _top(root):
        if key in _COUNTERS and (single := tree.number(value)) is not None:
            content.facts[key] = single
    for found in content.tensors:
        group = _FLAT_GROUP.search(".".join(found.path))
        if group and (single := tree.number(found.leaf)) is not None:
            content.flat_groups.setdefault(group["name"], {})[group["key"]] = single
    for path, value in _flat_values(root):
        if group := _FLAT_GROUP.search(path):
            content.flat_groups.setdefault(group["name"], {})[group["key"]] = value
    for key in _STEPS:
        value = content.facts.get(key)
        if value is not None and value == int(value) and value >= 0:
            content.step = int(value)
            return


def _top(root: Any) -> Iterator[tuple[str, Any]]:
    entries = (
        root.items() if isinstance(root, Mapping) else root.attributes().items() if isinstance(root, Record) else ()
    )
    yield from ((key, value) for key, value in entries if isinstance(key, str))


def _flat_values(root: Any) -> Iterator[tuple[str, Any]]:
    """Plain values whose key is a flattened path ("param_groups.layers.0.weight.lr"), at the top or one level below."""
    for key, value in _top(root):
        if ".param_groups." in f".{key}" and not isinstance(value, LEAVES):
            yield key, value
        if isinstance(value, Mapping):
            for inner, item in value.items():
                if isinstance(inner, str) and inner.startswith("param_groups.") and not isinstance(item, LEAVES):
                    yield inner, item


def _histories(value: Mapping[Any, Any] | list[Any]) -> Iterator[list[dict[str, float]]]:
    """The rows in a container: its lists of numbers by their length, or itself where it lists dictionaries."""
    if isinstance(value, list):
        if _HISTORY <= len(value) <= _MAX_HISTORY and all(isinstance(row, Mapping) for row in value):
            yield [{str(key): n for key, item in row.items() if (n := tree.number(item)) is not None} for row in value]
        return
    by_length: dict[int, dict[str, list[float]]] = {}
    for key, item in value.items():
        if isinstance(item, (list, tuple)) and _HISTORY <= len(item) <= _MAX_HISTORY and isinstance(key, str):
            numbers = [n for part in item if (n := tree.number(part)) is not None]
            if len(numbers) == len(item):
                by_length.setdefault(len(item), {})[key] = numbers
    for columns in by_length.values():
        yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _settings(content: Content, root: Any) -> None:
    if isinstance(root, Record):  # a pickled TrainingArguments or Namespace is all settings
        if not content.tensors:
            content.settings += tree.flatten(root)
        return
    for key, value in _top(root):
        if key.lower() in _SETTINGS and isinstance(value, (Mapping, Record)):
            content.settings += tree.flatten(value)
