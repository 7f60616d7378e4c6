"""The capsule: one training step, and the state before it, as a folder (a leaf: no torch, no polars, no pickle).

    capsule.json             everything that is no tensor; the classes below
    model.safetensors        parameters and buffers before the first step of the capsule, tied ones once
    optimizer.safetensors    optimizer states before it, keyed "<parameter>|<state>" (absent for a fresh optimizer)
    batches.safetensors      micro-batches and random states, keyed as capsule.json refers to them
    gradients.safetensors    what the last step's gradients were when the optimizer got them (may be absent)
    code/                    copies of the Python files that the program needs (may be absent)

A capsule usually holds one step. Where the fault is only seen after the optimizer has stepped, it holds the steps since
a saved state, and replay rolls forward to the last of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from gradforensics.errors import CapsuleError
from gradforensics.experiments import number_from_json, number_to_json
from gradforensics.own_files import CAPSULE_HEADER

SCHEMA = 1
HEADER = CAPSULE_HEADER
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
BATCHES = "batches.safetensors"
GRADIENTS = "gradients.safetensors"
CODE = "code"
_LARGEST_HEADER = 256 << 20
_LARGEST_STEP = 1 << 62
_DEEPEST = 32  # objects within objects of settings and states; configurations of transformers have fewer than 10
_NAME = re.compile(r"capsule-(\d+)(?:-rank(\d+))?")

Reason: TypeAlias = Literal[
    "nonfinite_loss", "nonfinite_gradient", "spike", "exception", "skipped_steps", "request", "at_step"
]
REASONS: tuple[Reason, ...] = get_args(Reason)
T = TypeVar("T")
_JSON = {
    str: "text", int: "whole number", float: "number", bool: "true or false", list: "list", dict: "object",
    type(None): "null",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Autocast:
    """The autocast state in which the model ran: device type, whether it was on, dtype ("bfloat16"), weight cache."""

    device: str
    enabled: bool
    dtype: str
    cache: bool = True


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward and backward of a step.

    batch: a tree (see `gradforensics.torch_state`) of what the loss function got. rng: the random states before the
    forward, as a tree. backward: the key of the gradient that `loss.backward()` started from, which is how a division
    by the number of micro-batches and a loss scale show (None: backward did not run). cleared: whether the gradients
    were cleared between the micro-batch before and this one.
    """

    batch: Any
    rng: Any = None
    autocast: Autocast | None = None
    backward: str | None = None
    loss: float | None = None
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step.

    options: of every parameter group when the optimizer stepped (lr, weight_decay ...). scale: the GradScaler's, None
    without one. max_grad_norm: of the clipping between backward and step, None without. loss: mean over the
    micro-batches. grad_norm: L2 norm of what the optimizer got, after unscaling and clipping. skipped: by the scaler.
    """

    step: int
    micro_batches: tuple[MicroBatch, ...]
    options: tuple[Mapping[str, Any], ...] = ()
    scale: float | None = None
    max_grad_norm: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """How to rebuild model and loss.

    kind "function": `function` of `file` (relative to code/) is called; settings: what it is given.
    kind "huggingface": the class `function` of transformers, built from the configuration in `settings`.
    """

    kind: Literal["function", "huggingface"]
    file: str
    function: str
    sha256: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """capsule.json.

    step: the number of the last step in `steps`, which is the one in question. tied: names of parameters that are
    other names of a stored one. frozen: names of parameters that do not require a gradient. evaluating: names of the
    modules that were in evaluation mode. optimizer: class, and the parameter names of every group. scaler: the
    GradScaler's state before the first step. settings: facts for the experiments (pad_token_id, eos_token_id,
    vocab_size, ignore_index, gradient_accumulation_steps ...). flags: what changes numbers (threads, TF32, ...).
    """

    tool: str
    step: int
    reason: Reason
    text: str
    steps: tuple[Step, ...]
    model: str = ""
    rank: int = 0
    world_size: int = 1
    device: str = "cpu"
    tied: Mapping[str, str] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    evaluating: tuple[str, ...] = ()
    optimizer: str = ""
    groups: tuple[tuple[str, ...], ...] = ()
    scalars: Mapping[str, Any] = field(default_factory=dict)  # optimizer states that are no tensors, keyed as those
    scaler: Mapping[str, Any] | None = None
    program: Program | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    time: float | None = None


def folder_name(step: int, rank: int, world_size: int) -> str:
    """The name of a capsule's folder: capsule-00001207, with -rank3 where there are several ranks."""
    return f"capsule-{step:08d}" + (f"-rank{rank}" if world_size > 1 else "")


def numbers_of(folder: Path) -> tuple[int, int] | None:
    """The step and the rank that a capsule's folder is called after, None for a folder that is called otherwise."""
    match = _NAME.fullmatch(folder.name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def find(root: Path) -> list[Path]:
    """The capsules in a folder and up to two folders below it, by step and rank. Symbolic links are not followed."""
    found: list[tuple[tuple[int, int], Path]] = []
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        try:
            inside = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
        except OSError:
            continue
        numbers = numbers_of(folder)
        if numbers and (folder / HEADER).is_file():
            found.append((numbers, folder))
        elif depth < 3:
            pending += [(p, depth + 1) for p in inside]
    return [path for _, path in sorted(found)]


def write_header(folder: Path, header: Header) -> None:
    """Write capsule.json."""
    text = json.dumps({"schema": SCHEMA, **_plain(header)}, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / HEADER).write_text(text + "\n", encoding="utf-8")


def read_header(folder: Path) -> Header:
    """Read and check capsule.json. Raises CapsuleError."""
    path = folder / HEADER
    try:
        if path.stat().st_size > _LARGEST_HEADER:
            raise CapsuleError(f"{path}: larger than any capsule's header")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CapsuleError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise CapsuleError(f"{path}: no valid JSON ({error})") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise CapsuleError(f"{path}: schema {schema!r}; this version reads schema {SCHEMA}")
    try:
        return _header(data)
    except (KeyError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CapsuleError(f"{path}: not as a capsule should be: {what}") from None


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and numbers as strict JSON."""
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return number_to_json(value)
    return value


def _header(data: Mapping[str, Any]) -> Header:
    if data["reason"] not in REASONS:
        raise ValueError(f"reason {data['reason']!r} is none of {', '.join(REASONS)}")
    steps = tuple(_step(s) for s in _list(data, "steps"))
    step = _whole(data, "step")
    if not steps or steps[-1].step != step:
        raise ValueError("the last of its steps is not its step")
    return Header(
        tool=_text(data, "tool"),
        step=step,
        reason=data["reason"],
        text=_text(data, "text"),
        steps=steps,
        model=_text(data, "model"),
        rank=_whole(data, "rank", 0),
        world_size=_whole(data, "world_size", 1),
        device=_text(data, "device", "cpu"),
        tied={name: _as(str, other, f"tied {name}") for name, other in _object(data, "tied").items()},
        frozen=_texts(data, "frozen"),
        evaluating=_texts(data, "evaluating"),
        optimizer=_text(data, "optimizer"),
        groups=tuple(tuple(map(str, _as(list, names, "a group"))) for names in _list(data, "groups")),
        scalars=_object(data, "scalars"),
        scaler=None if data.get("scaler") is None else _object(data, "scaler"),
        program=None if data.get("program") is None else _program(_object(data, "program")),
        settings=_object(data, "settings"),
        versions={name: str(version) for name, version in _object(data, "versions").items()},
        flags=_object(data, "flags"),
        notices=_texts(data, "notices"),
        time=number_from_json(data.get("time")),
    )


def _program(data: Mapping[str, Any]) -> Program:
    if data["kind"] not in ("function", "huggingface"):
        raise ValueError(f"program kind {data['kind']!r}")
    return Program(
        data["kind"], _text(data, "file"), _text(data, "function"), _text(data, "sha256"), _object(data, "settings")
    )


def _step(data: Any) -> Step:
    _as(dict, data, "a step")
    numbers = {key: number_from_json(data.get(key)) for key in ("scale", "max_grad_norm", "loss", "grad_norm")}
    options = _list(data, "options")
    return Step(
        step=_whole(data, "step"),
        micro_batches=tuple(_micro_batch(m) for m in _as(list, data["micro_batches"], "micro_batches")),
        options=tuple(_object({"options": one}, "options") for one in options),
        skipped=_flag(data, "skipped", default=False),
        **numbers,
    )


def _micro_batch(data: Any) -> MicroBatch:
    _as(dict, data, "a micro-batch")
    autocast = data.get("autocast")
    return MicroBatch(
        batch=data["batch"],
        rng=data.get("rng"),
        autocast=None if autocast is None else _autocast(_as(dict, autocast, "autocast")),
        backward=None if data.get("backward") is None else _text(data, "backward"),
        loss=number_from_json(data.get("loss")),
        cleared=_flag(data, "cleared", default=False),
    )


def _autocast(data: Mapping[str, Any]) -> Autocast:
    enabled = _as(bool, data["enabled"], "enabled")
    return Autocast(_text(data, "device"), enabled, _text(data, "dtype"), _flag(data, "cache", default=True))


# -- values of the type that they should have; ValueError names the key of another ------------------------------------


def _as(kind: type[T], value: Any, what: str) -> T:
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{what} is {_JSON[type(value)]}, no {_JSON[kind]}")


def _text(data: Mapping[str, Any], key: str, default: str = "") -> str:
    return _as(str, data.get(key, default), key)


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(map(str, _list(data, key)))


def _flag(data: Mapping[str, Any], key: str, *, default: bool) -> bool:
    return _as(bool, data.get(key, default), key)


def _whole(data: Mapping[str, Any], key: str, default: int | None = None) -> int:
    number = _as(int, data[key] if default is None else data.get(key, default), key)
    if not 0 <= number < _LARGEST_STEP:
        raise ValueError(f"{key} is out of range")
    return number


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    return _as(list, data.get(key, []), key)


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object that is not nested so deeply that code which copies it could give up."""
    found = _as(dict, data.get(key, {}), key)
    layer: list[Any] = [found]
    for _ in range(_DEEPEST):
        inside = (item for one in layer for item in (one.values() if isinstance(one, dict) else one))
        layer = [item for item in inside if isinstance(item, (dict, list))]
        if not layer:
            return found
    raise ValueError(f"{key} is nested more than {_DEEPEST} deep")
