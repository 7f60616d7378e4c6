"""A checkpoint and a program as a recording: the state after its step, and the steps from there to the one in question.

Checkpoints are read by the project's own reader: nothing of them is unpickled or imported. In the child only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradforensics.capsule import read_header
from gradforensics.checkpoints import assigning, naming, refs
from gradforensics.checkpoints.model import Checkpoint, Group, Tensor
from gradforensics.checkpoints.refs import TensorRef
from gradforensics.errors import CapsuleError, ReplayError
from gradforensics.evidence.named_checkpoints import open_one
from gradforensics.replay import huggingface
from gradforensics.replay.job import StateOf
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step, from_capsule
from gradforensics.untrusted.files import RefusedError

# Classes of torch.optim by the kinds of checkpoints/optimizer.py; Adafactor may be that of transformers.
_CLASSES = {
    "adam": "Adam", "amsgrad": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad",
    "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "adadelta": "Adadelta", "asgd": "ASGD", "rprop": "Rprop",
}  # fmt: skip
_KEYS = {
    "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "max_exp_avg_sq": "max_exp_avg_sq", "momentum": "momentum_buffer",
}  # fmt: skip
_STATES = frozenset({*_KEYS, "state"})
_SCALES = ("scaler.scale", "scaler.cur_scale")  # of torch's GradScaler and of DeepSpeed's


@dataclass(slots=True)
class State:
    """What a checkpoint holds, for a model: names are the model's.

    tensors: parameters and buffers. optimizer, groups, options: as in `Recording` and `Step`. settings: of pickled
    training arguments, by name. lacking: why there is no optimizer, "" where there is one.
    """

    step: int | None
    tensors: dict[str, torch.Tensor]
    optimizer_class: str = ""
    optimizer: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: tuple[tuple[str, ...], ...] = ()
    options: tuple[dict[str, Any], ...] = ()
    lacking: str = ""
    scale: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def record(source: StateOf, step: int, program: Program) -> Recording:
    """The recording that ends with a step. Raises ReplayError; what the program's `batches` raises is passed on."""
    path = Path(source.checkpoint)
    state = read_state(path, program.model)
    if state.lacking and program.optimizer is None and source.first < step:
        raise ReplayError(f"{state.lacking}: let the program return an `optimizer` to roll forward to step {step}")
    recorded = _recorded(source.capsules, state.notices)
    batch = huggingface.read_batches(Path(source.batch), program.settings) if source.batch else None
    steps: list[Step] = []
    for number in range(source.first, step + 1):
        if number == step and batch is not None:
            steps.append(_made(number, batch, state, program))
        elif number in recorded:
            steps.append(recorded[number])
        else:
            steps.append(_made(number, _batches(program, number, step), state, program))
    if program.learning_rate is None and any(number not in recorded for number in range(source.first, step)):
        rates = ", ".join(sorted({f"{one['lr']:.3g}" for one in state.options if one.get("lr") is not None}))
        state.notices.append(
            f"steps {source.first} to {step - 1} are run with the checkpoint's learning rate ({rates or 'unknown'}); "
            "where a schedule changes it, the program has to say so (`learning_rate`)"
        )
    return Recording(
        source=f"checkpoint {path.name}",
        steps=tuple(steps),
        model=state.tensors,
        optimizer_class=state.optimizer_class,
        optimizer=state.optimizer,
        groups=state.groups,
        settings=_facts(state.settings),
        notices=state.notices,
    )


def _batches(program: Program, number: int, step: int) -> Sequence[Any]:
    if program.batches is None:
        way = "" if number == step else f", on the way to step {step}"
        raise ReplayError(
            f"the batch of step {number}{way} is not known: no capsule holds it, and the program returns no `batches`"
        )
    found = list(program.batches(number))
    if not found:
        raise ReplayError(f"the program's batches({number}) returned no micro-batch")
    return found


def _made(number: int, batches: Sequence[Any], state: State, program: Program) -> Step:
    """A step out of its micro-batches; its learning rate is the program's, else that of the checkpoint."""
    options = state.options
    if program.learning_rate is not None:
        rate = program.learning_rate(number)
        rates = [float(rate)] * len(options) if isinstance(rate, (int, float)) else [float(r) for r in rate]
        if len(rates) != len(options):
            raise ReplayError(f"learning_rate({number}) gave {len(rates)} rates for {len(options)} parameter groups")
        options = tuple({**own, "lr": one} for own, one in zip(options, rates, strict=True))
    scale = program.loss_scale if program.loss_scale is not None else state.scale
    micros = tuple(Micro(batch) for batch in batches)
    return Step(number, micros, options, scale=scale, max_grad_norm=program.max_grad_norm)


def _recorded(capsules: Sequence[str], notices: list[str]) -> dict[int, Step]:
    """The steps that capsules hold, by number."""
    found: dict[int, Step] = {}
    for folder in map(Path, capsules):
        try:
            recording = from_capsule(folder, read_header(folder))
        except CapsuleError as error:
            notices.append(str(error))
            continue
        found |= {one.step: one for one in recording.steps}
    return found


def _facts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the training arguments say that experiments ask for."""
    wanted = ("gradient_accumulation_steps", "per_device_train_batch_size", "gradient_checkpointing")
    return {name: settings[name] for name in wanted if name in settings}


# -- reading a checkpoint ----------------------------------------------------------------------------------------------


def read_state(path: Path, model: nn.Module) -> State:
    """Weights and optimizer of the one checkpoint at `path`, named as in the model. Raises ReplayError, UsageError."""
    loaded = open_one(path).loaded[0]
    checkpoint = loaded.checkpoint
    own = dict(_named(model))
    weights, notices = _weights(checkpoint, model)
    spelled = _spelled([tensor.name for tensor in weights], own)
    back = {name: stored for stored, name in spelled.items()}
    loaded.sources.append(
        naming.config_source(
            "the program",
            [(back.get(n, n), tuple(p.shape), p.requires_grad) for n, p in model.named_parameters()],
        )
    )
    assigning.name([loaded])
    notices += [f"{notice.source}: {notice.text}" for notice in checkpoint.notices]
    state = State(checkpoint.step, {}, notices=notices)
    with_type = {name: value.dtype for name, value in own.items()}
    for tensor in weights:
        name = spelled.get(tensor.name)
        if name is not None:
            value = _tensor(tensor, path)
            # fp32 copies of the optimizer stand for weights that were not saved: the model computes with its own type
            state.tensors[name] = value.to(with_type[name]) if tensor.role == "master" else value
    left = [tensor.name for tensor in weights if tensor.name not in spelled]
    if left:
        notices.append(f"{len(left)} tensors of {path.name}, such as {left[0]}, are not in the program's model")
    _fill_tied(model, state.tensors)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    _optimizer(checkpoint, spelled, trained, path, state)
    state.scale = next((float(checkpoint.facts[key]) for key in _SCALES if key in checkpoint.facts), None)
    state.settings = {name.rpartition(".")[2]: value for name, value, _ in checkpoint.settings}
    return state


def _named(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Parameters and buffers under all of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _weights(checkpoint: Checkpoint, model: nn.Module) -> tuple[list[Tensor], list[str]]:
    """Parameters and buffers of the lowest rank. Raises ReplayError where they are split or lost."""
    found = _of_lowest_rank([t for t in checkpoint.tensors if t.role in ("param", "buffer")])
    notices: list[str] = []
    if not any(t.role == "param" for t in found):
        found += _of_lowest_rank([t for t in checkpoint.tensors if t.role == "master"])
        if any(t.role == "master" for t in found):
            notices.append("the weights are the optimizer's float32 copies: the model's own were not saved")
    count = sum(1 for _ in model.parameters())
    if count and not any(t.role in ("param", "master") for t in found):
        raise ReplayError(f"{checkpoint.path} holds no weights")
    split = next((t for t in found if t.placement == "sharded"), None)
    if split is not None:
        raise ReplayError(
            f"{checkpoint.path} holds each rank's part of the weights (such as {split.name}): save or convert it whole "
            "(torch.distributed.checkpoint.format_utils), or let the recorder write a capsule"
        )
    return found, notices


def _of_lowest_rank(tensors: Sequence[Tensor]) -> list[Tensor]:
    lowest = min((t.rank for t in tensors if t.rank is not None), default=None)
    return [t for t in tensors if t.rank in (None, lowest)]


def _spelled(stored: Sequence[str], own: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The model's name of every stored tensor that has one.

    Wrappers (DDP, torch.compile, FSDP) add parts to names, and a module that holds the model (Lightning's) a prefix: a
    frequent one is dropped, or put before the names, where more of them fit then.
    """
    ways: list[Callable[[str], str]] = [lambda name: name]
    ways += [lambda name, p=prefix: name.removeprefix(p) for prefix in _prefixes(stored)]  # type: ignore[misc]  # mypy cannot infer a lambda's default
    ways += [lambda name, p=prefix: p + name for prefix in _prefixes(list(own))]  # type: ignore[misc]  # likewise
    best: dict[str, str] = {}
    for way in ways:
        changed = {name: way(name) for name in stored}
        known = naming.aligned(changed.values(), own)
        found = {name: known[other] for name, other in changed.items() if other in known}
        if len(found) > len(best):
            best = found
    return best


def _prefixes(names: Sequence[str]) -> list[str]:
    """The first parts of names that have more than one, most frequent first: "model." of "model.fc.weight"."""
    counts: dict[str, int] = {}
    for name in names:
        head, dot, _ = name.partition(".")
        if dot:
            counts[head + dot] = counts.get(head + dot, 0) + 1
    return sorted(counts, key=lambda prefix: -counts[prefix])[:3]


def _fill_tied(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Files hold a parameter that has several names under one of them: give it the one that torch lists first."""
    first: dict[int, str] = {}
    for name, value in _named(model):
        listed = first.setdefault(id(value), name)
        if listed not in tensors and name in tensors:
            tensors[listed] = tensors[name]


def _tensor(tensor: Tensor, path: Path) -> torch.Tensor:
    if tensor.lost:
        raise ReplayError(f"{path.name}: {tensor.name} is lost: {tensor.lost}")
    try:
        return to_tensor(tensor.ref)
    except (RefusedError, OSError, RuntimeError, TypeError) as error:
        raise ReplayError(f"{path.name}: {tensor.name} cannot be read: {error}") from None


def to_tensor(ref: TensorRef) -> torch.Tensor:
    """A tensor of a checkpoint as one of torch, contiguous, of the same type. Raises RefusedError and OSError."""
    dtype = getattr(torch, ref.dtype)
    if not ref.count:
        return torch.empty(ref.shape, dtype=dtype)
    stored = torch.from_numpy(refs.read(ref, limit=ref.nbytes)).view(dtype)
    if ref.repeat > 1:
        if len(stored) > 1:
            raise RefusedError("a view whose elements stand for several others")
        return stored.expand(ref.count).reshape(ref.shape).clone()
    if ref.order is None:
        return stored.reshape(ref.shape)
    back = sorted(range(len(ref.order)), key=ref.order.__getitem__)
    return stored.reshape([ref.shape[axis] for axis in ref.order]).permute(back).contiguous()


# -- the optimizer -----------------------------------------------------------------------------------------------------


def _optimizer(
    checkpoint: Checkpoint, spelled: Mapping[str, str], trained: Sequence[str], path: Path, state: State
) -> None:
    """States, groups and options, where every parameter of the groups has a name. trained: those of the model."""
    groups = _groups(checkpoint.groups)
    if not groups:
        state.lacking = f"{path.name} holds no optimizer"
        return
    named = [tuple(spelled.get(name, "") for name in group.names) for group in groups]
    if not all(all(names) for names in named) and len(named) == 1 and len(named[0]) == len(trained):
        held = any(tensor.role in _STATES for tensor in checkpoint.tensors)
        named = named if held else [tuple(trained)]  # without states there is nothing to mistake: one group, in order
    if not all(all(names) for names in named):
        how = checkpoint.naming.how if checkpoint.naming else "nothing tells."
        state.lacking = f"whose states the optimizer of {path.name} holds is not known: {how.rstrip('.')}"
        return
    kinds = {group.optimizer for group in groups if group.names}
    kind = _CLASSES.get(next(iter(kinds))) if len(kinds) == 1 else None
    state.optimizer_class = f"torch.optim.{kind}" if kind else ""
    state.groups = tuple(named)
    state.options = tuple(_options(group) for group in groups)
    for tensor in _of_lowest_rank([t for t in checkpoint.tensors if t.role in _STATES]):
        name = spelled.get(tensor.name)
        key = _KEYS.get(tensor.role, tensor.key.rpartition(".")[2])
        if name is not None and not key.isdigit():
            state.optimizer.setdefault(name, {})[key] = _tensor(tensor, path)
    for stored, count in checkpoint.counters.items():
        if spelled.get(stored) in state.optimizer:
            state.optimizer[spelled[stored]]["step"] = torch.tensor(float(count))


def _groups(groups: Sequence[Group]) -> list[Group]:
    lowest = min((g.rank for g in groups if g.rank is not None), default=None)
    return [g for g in groups if g.rank in (None, lowest)]


def _options(group: Group) -> dict[str, Any]:
    stated = {
        "lr": group.lr, "betas": group.betas, "eps": group.eps, "weight_decay": group.weight_decay,
        "momentum": group.momentum,
    }  # fmt: skip
    return {**group.values, **{key: value for key, value in stated.items() if value is not None}}
