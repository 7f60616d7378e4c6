"""What a capsule says about code and machine: the program with copies of its files, facts of the model, versions."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gradforensics.capsule import Program

_MOST_FILES = 200
_MOST_BYTES = 5_000_000
_NOT_THE_USERS = {"site-packages", "dist-packages"}
_FACTS = ("pad_token_id", "eos_token_id", "bos_token_id", "vocab_size", "model_type", "num_labels")


@dataclass(slots=True)
class Sources:
    """A program and the files that it needs, as they were when they were first seen.

    problem: why there is no program, "" where there is one or none was asked for. files: path below code/ -> contents.
    """

    program: Program | None = None
    problem: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    _folder: Path | None = None

    def take_new(self) -> None:
        """Add the user's modules that were imported since; files that changed on disk keep their first contents."""
        if self._folder is not None:
            _add_modules(self.files, self._folder)


def of_program(build: Callable[..., Any] | None, model: nn.Module, settings: Mapping[str, Any]) -> Sources:
    """The program that a user's function is, or that of a transformers model."""
    if build is None:
        return Sources(_huggingface(model))
    name = getattr(build, "__qualname__", "")
    try:
        path = Path(inspect.getsourcefile(inspect.unwrap(build)) or "").resolve()
        contents = path.read_bytes()
    except (TypeError, OSError):  # a callable object; a notebook
        name = ""
    if not name.isidentifier():
        return Sources(problem=f"{build!r} is no function at the top level of a Python file")
    found = Sources(
        Program("function", path.name, name, hashlib.sha256(contents).hexdigest(), plain(settings)),
        files={path.name: contents},
        _folder=path.parent,
    )
    found.take_new()
    return found


def _add_modules(files: dict[str, bytes], folder: Path) -> None:
    room = _MOST_BYTES - sum(map(len, files.values()))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if not path.is_relative_to(folder) or _NOT_THE_USERS & set(path.parts):
            continue
        name = path.relative_to(folder).as_posix()
        if name in files or len(files) >= _MOST_FILES:
            continue
        try:
            contents = path.read_bytes()
        except OSError:
            continue
        if len(contents) <= room:
            files[name] = contents
            room -= len(contents)


def _huggingface(model: nn.Module) -> Program | None:
    config: Any = getattr(model, "config", None)
    if not type(model).__module__.startswith("transformers.") or not hasattr(config, "to_dict"):
        return None
    settings = {"config": plain(config.to_dict())}
    attention = getattr(config, "_attn_implementation", None)
    if isinstance(attention, str):  # the configuration does not keep it, and it decides the last bits
        settings["attn_implementation"] = attention
    return Program("huggingface", "", type(model).__name__, "", settings)


def facts(model: nn.Module) -> dict[str, Any]:
    """What a transformers configuration says about tokens and classes."""
    config = getattr(model, "config", None)
    found = {name: getattr(config, name, None) for name in _FACTS}
    return {name: value for name, value in found.items() if isinstance(value, (int, str, list))}


def plain(value: Any) -> Any:
    """Settings as strict JSON; what JSON cannot hold becomes its text."""
    return json.loads(json.dumps(value, default=str, skipkeys=True))


def versions() -> dict[str, str]:
    """Of Python, torch and the frameworks that are imported."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for name in ("transformers", "lightning", "accelerate"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", ""))
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def flags() -> dict[str, Any]:
    """What changes the last bits of a step."""
    return {
        "num_threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "tf32": torch.get_float32_matmul_precision() != "highest",
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
    }
