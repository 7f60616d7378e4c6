"""What decides a training step besides the weights, between PyTorch and plain data: batches, random states, autocast.

Both sides of a capsule meet here: the recorder encodes, replay decodes. Tensors go into a dictionary by key (later a
safetensors file), everything else into a tree of JSON that refers to them:

    {"tensor": key} {"array": key} {"value": plain} {"float": "nan"} {"dtype": "float16"}
    {"dict": [[key, tree], ...]} {"list": [tree, ...]} {"tuple": [tree, ...]}
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradforensics.capsule import Autocast
from gradforensics.experiments import number_from_json, number_to_json

_DEEPEST = 16
_WORDS = 624  # of a state of MT19937


class UnrecordableError(Exception):
    """A part of a batch that is neither a tensor, an array, plain data nor a container of those; says where."""


def encode(value: Any, tensors: MutableMapping[str, torch.Tensor], key: str, depth: int = 0) -> dict[str, Any]:
    """A batch as a tree; its tensors are added to `tensors` under keys that begin with `key`, as they are (no copy).

    Raises UnrecordableError.
    """
    if depth > _DEEPEST:
        raise UnrecordableError(f"{key}: nested more than {_DEEPEST} deep")
    while key in tensors:  # {"a": {"b": x}, "a.b": y}
        key += "'"
    if isinstance(value, torch.Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, (np.ndarray, np.generic)) and np.asarray(value).dtype.kind in "biuf":
        tensors[key] = torch.from_numpy(np.array(value))
        return {"array": key}
    if isinstance(value, float):
        return {"float": number_to_json(value)}
    if value is None or isinstance(value, (bool, int, str)):
        return {"value": value}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Mapping):
        wrong = next((k for k in value if not isinstance(k, (str, int))), None)
        if wrong is not None:
            raise UnrecordableError(f"{key}: a key of type {type(wrong).__name__}")
        return {"dict": [[k, encode(v, tensors, f"{key}.{k}", depth + 1)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(v, tensors, f"{key}.{i}", depth + 1) for i, v in enumerate(value)]}
    raise UnrecordableError(f"{key}: a {type(value).__module__}.{type(value).__qualname__} cannot be recorded")


def decode(tree: Any, tensors: Mapping[str, torch.Tensor], device: torch.device | str = "cpu", depth: int = 0) -> Any:
    """The batch that a tree stands for, its tensors on `device` (copies). Raises ValueError for no tree."""
    if depth > _DEEPEST:
        raise ValueError(f"a batch nested more than {_DEEPEST} deep")
    match tree:
        case {"tensor": str(key)}:
            return _held(tensors, key).to(device, copy=True)
        case {"array": str(key)}:
            return _held(tensors, key).numpy().copy()
        case {"float": number}:
            return number_from_json(number)
        case {"value": value}:
            return value
        case {"dtype": str(name)}:
            return dtype_called(name)
        case {"dict": list(items)}:
            return {key: decode(item, tensors, device, depth + 1) for key, item in items}
        case {"list": list(items)}:
            return [decode(item, tensors, device, depth + 1) for item in items]
        case {"tuple": list(items)}:
            return tuple(decode(item, tensors, device, depth + 1) for item in items)
    raise ValueError(f"{str(tree)[:60]!r} is no part of a batch")


def dtype_called(name: str) -> torch.dtype:
    """The dtype of this name ("bfloat16"). Raises ValueError."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")  # noqa: TRY004  bad content, not a wrong call
    return dtype


def _held(tensors: Mapping[str, torch.Tensor], key: str) -> torch.Tensor:
    if key not in tensors:
        raise ValueError(f"the tensor {key!r} is missing")
    return tensors[key]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


@dataclass(frozen=True, slots=True)
class RandomState:
    """The random states of Python, NumPy, torch on the CPU and torch on every CUDA device.

    cuda: one uint8 tensor per device, empty where CUDA was not in use.
    """

    python: tuple[Any, ...]
    numpy: Mapping[str, Any]
    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...] = ()

    @classmethod
    def capture(cls) -> RandomState:
        """The states now. Reading those of CUDA devices reads the generator on the host: no kernel, no wait."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]  # torch's own
        return cls(random.getstate(), _numpy_state(), torch.get_rng_state(), cuda)

    @classmethod
    def seeded(cls, seed: int) -> RandomState:
        """The states after seeding all generators with `seed`; the present ones are left as they are."""
        with kept_random_state():
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002  the legacy generator is the one that training code uses
            torch.manual_seed(seed)
            return cls.capture()

    def restore(self) -> None:
        """Set all generators to these states; CUDA devices that this machine lacks are left out."""
        random.setstate(self.python)
        np.random.set_state(dict(self.numpy))  # noqa: NPY002  likewise
        torch.set_rng_state(self.cpu)
        if self.cuda and torch.cuda.is_available():
            for device, state in enumerate(self.cuda[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, device)

    def encode(self, tensors: MutableMapping[str, torch.Tensor], key: str) -> dict[str, Any]:
        """As a tree that refers to tensors."""
        _, words, gauss = self.python
        inner = self.numpy["state"]
        tensors[f"{key}.python"] = torch.tensor(words, dtype=torch.int64, device="cpu")
        tensors[f"{key}.numpy"] = torch.from_numpy(np.asarray(inner["key"]).astype(np.int64))
        tensors[f"{key}.cpu"] = self.cpu
        for index, state in enumerate(self.cuda):
            tensors[f"{key}.cuda{index}"] = state
        return {
            "python": {"words": f"{key}.python", "gauss": gauss},
            "numpy": {
                "key": f"{key}.numpy", "pos": int(inner["pos"]), "has_gauss": int(self.numpy["has_gauss"]),
                "gauss": float(self.numpy["gauss"]),
            },
            "cpu": f"{key}.cpu",
            "cuda": [f"{key}.cuda{index}" for index in range(len(self.cuda))],
        }  # fmt: skip

    @classmethod
    def decode(cls, tree: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> RandomState:
        """The inverse of `encode`. Raises ValueError, KeyError, TypeError, RuntimeError or OverflowError."""
        python, numpy = tree["python"], tree["numpy"]
        gauss = python["gauss"]
        if not 0 <= int(numpy["pos"]) <= _WORDS:
            raise ValueError("the position in NumPy's random state lies outside of it")  # NumPy does not look
        state = cls(
            (3, tuple(_held(tensors, python["words"]).tolist()), None if gauss is None else float(gauss)),
            {
                "bit_generator": "MT19937",
                "state": {
                    "key": _held(tensors, numpy["key"]).numpy().astype(np.uint32), "pos": int(numpy["pos"]),
                },
                "has_gauss": int(numpy["has_gauss"]),
                "gauss": float(numpy["gauss"]),
            },
            _held(tensors, tree["cpu"]),
            tuple(_held(tensors, key) for key in tree["cuda"]),
        )  # fmt: skip
        with kept_random_state():
            state.restore()  # one that does not fit shows here, and not as a failure of the step
        return state


def _numpy_state() -> Mapping[str, Any]:
    state = np.random.get_state(legacy=False)  # noqa: NPY002  the legacy generator is the one that training code uses
    assert isinstance(state, dict)  # legacy=False
    return state


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leaves every random generator as it found it."""
    state = RandomState.capture()
    try:
        yield
    finally:
        state.restore()


def autocast_state(device: str) -> Autocast:
    """The autocast state of this thread for a device type ("cpu", "cuda")."""
    return Autocast(
        device,
        torch.is_autocast_enabled(device),
        str(torch.get_autocast_dtype(device)).removeprefix("torch."),
        torch.is_autocast_cache_enabled(),
    )


@contextmanager
def autocast(state: Autocast | None, device: str) -> Iterator[None]:
    """Run under a recorded autocast state, on the device type of the replay."""
    if state is None:
        yield
        return
    dtype = dtype_called(state.dtype)
    with torch.autocast(device, dtype=dtype, enabled=state.enabled, cache_enabled=state.cache):
        yield


def each_norm(gradients: Sequence[torch.Tensor]) -> list[tuple[int, torch.Tensor]]:
    """(place, L2 norm) of every gradient, in the order in which `total_norm` adds them; float32 for half precision."""
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, gradient in enumerate(gradients):
        alike.setdefault((gradient.device, gradient.dtype), []).append(place)
    found: list[tuple[int, torch.Tensor]] = []
    for (_, dtype), places in alike.items():
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else None  # a norm beyond 65504 is no overflow
        norms = torch._foreach_norm([gradients[place] for place in places], dtype=wide)  # noqa: SLF001  as clip_grad_norm_ does
        found += zip(places, norms, strict=True)
    return found


def total_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """L2 norm over all gradients, a tensor of shape (), summed as clip_grad_norm_ of torch sums it; 0 for none."""
    held = [g.detach() for g in gradients]
    if not held:
        return torch.zeros((), device="cpu")
    norms = [norm.to(held[0].device) for _, norm in each_norm(held)]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
