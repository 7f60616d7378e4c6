"""Run as a script, in a process of its own: a model's configuration on stdin -> its parameters' names on stdout.

It is given the parsed configuration and nothing else: isolated mode, an empty working directory, no cache of remote
code, no network and no further processes (an audit hook refuses them). The model is built on the meta device, without
memory for its weights, from transformers' own classes. The script imports nothing of this package, so that it runs
wherever transformers does.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

_MEMORY = 8 << 30  # bytes of data; a configuration may ask for any number of layers
_MOST = 200_000
_REFUSED = frozenset({
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty",
})  # fmt: skip


def main() -> None:
    """Write {"names": [[name, shape, trained], ...]} or {"refused": why} to what is stdout at the start."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print
    _confine()
    try:
        found: dict[str, Any] = {"names": names(json.load(sys.stdin))}
    except BaseException as error:  # noqa: BLE001  # whatever a library raises on a forged configuration is an answer
        found = {"refused": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
    json.dump(found, answer)
    answer.flush()


def _confine() -> None:
    def refuse(event: str, _: object) -> None:
        if event in _REFUSED:
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(refuse)
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows has none
        return
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))


def names(config: dict[str, Any]) -> list[tuple[str, list[int], bool]]:
    """Parameters in model order, tied ones once. Raises whatever building the model raises."""
    model_class, made = model_of(config)
    torch: Any = importlib.import_module("torch")
    with torch.device("meta"):
        model = model_class(made)
    found = [(name, list(value.shape), value.requires_grad) for name, value in model.named_parameters()]
    if len(found) > _MOST:
        raise ValueError(f"a model of {len(found)} parameters")
    return found


def model_of(config: dict[str, Any]) -> tuple[Any, Any]:
    """The class of transformers' own that a configuration names, and the configuration made for it.

    Raises ImportError without transformers, ValueError for a class that is none of its models of this type.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(f"transformers cannot be imported ({error})") from None
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    kind, architecture = config["model_type"], config["architectures"][0]
    known = [value for name, value in vars(auto).items() if name.endswith("_NAMES") and hasattr(value, "get")]
    if not any(architecture in _classes(mapping.get(kind)) for mapping in known):
        raise ValueError(f"{architecture!r} is none of transformers' models of type {kind!r}")
    return getattr(transformers, architecture), transformers.CONFIG_MAPPING[kind].from_dict(config)


def _classes(value: Any) -> tuple[str, ...]:
    """The class names under one model type: one, several or none."""
    return (value,) if isinstance(value, str) else tuple(value or ())


if __name__ == "__main__":
    main()
