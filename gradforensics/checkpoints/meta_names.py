"""Names of a model's parameters in model order, from its config.json: asked of transformers in a child process.

Only where the user allows it: everything else here runs no library of a framework. The child gets the configuration's
values and nothing else of the run directory; see `meta_child`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gradforensics.checkpoints.naming import config_source
from gradforensics.notices import Notice
from gradforensics.untrusted.files import RefusedError, open_regular

if TYPE_CHECKING:
    from gradforensics.checkpoints.load import Loaded

_MAX_CONFIG = 4 << 20
_CHILD = Path(__file__).with_name("meta_child.py")
# Keys that make transformers load more than its own classes: code beside the weights, kernels of a hub, other models.
_FORBIDDEN = frozenset({
    "auto_map", "trust_remote_code", "custom_pipelines", "backbone", "use_pretrained_backbone", "use_timm_backbone",
    "quantization_config",
})  # fmt: skip
# Keys whose text may name a kernel on a hub; without them the default is used, which has the same parameters.
_LEFT_OUT = frozenset({"attn_implementation", "_attn_implementation", "experts_implementation", "use_kernels"})
# What the child keeps of our environment: to find shared libraries, temporary files and, on Windows, the system.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG")

Parameters = list[tuple[str, tuple[int, ...], bool]]


class Found(NamedTuple):
    """Parameters (name, shape, whether it is trained) in model order, tied ones once; None with the reason why."""

    parameters: Parameters | None
    why: str = ""


def ask_for_names(loaded: Iterable[Loaded]) -> None:
    """Let transformers say what the parameters of every checkpoint's config.json are called, before `assigning.name`.

    Equal configurations are asked for once. Where it gives no names, a notice of the checkpoint says why.
    """
    answers: dict[bytes, Found] = {}
    for one in loaded:
        if not one.optimizers:
            continue
        content = _content(one.folder / "config.json")
        if content is None:
            answer = Found(None, "no config.json beside it: transformers was not asked for names")
        else:
            answer = answers.get(content) or answers.setdefault(content, names_from_config(one.folder))
        if answer.parameters is None:
            one.checkpoint.notices.append(Notice(one.checkpoint.path, None, answer.why))
        else:
            one.sources.append(config_source("config.json", answer.parameters))


def _content(path: Path) -> bytes | None:
    try:
        with open_regular(path) as file:
            return file.read(_MAX_CONFIG)
    except OSError:
        return None


def names_from_config(folder: Path, *, timeout: float = 120.0) -> Found:
    """Ask transformers for the parameters of the model that `folder`/config.json describes.

    timeout: seconds after which the child is killed. Never raises; what went wrong is in `why`.
    """
    try:
        config = read_config(folder / "config.json")
        return Found(_ask(config, timeout))
    except RefusedError as error:
        return Found(None, str(error))
    except RecursionError:
        return Found(None, "config.json is nested too deeply")
    except OSError as error:
        return Found(None, f"config.json is not read: {error.strerror or error}")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json that names a model of transformers' own code. Raises RefusedError and OSError."""
    with open_regular(path) as file:
        raw = file.read(_MAX_CONFIG + 1)
    if len(raw) > _MAX_CONFIG:
        raise RefusedError("config.json is larger than any configuration")
    try:
        config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"config.json is no valid JSON ({type(error).__name__})") from None
    if not isinstance(config, dict):
        raise RefusedError("config.json is no JSON object")
    kind, architectures = config.get("model_type"), config.get("architectures")
    if (
        not isinstance(kind, str)
        or not isinstance(architectures, list)
        or not isinstance(next(iter(architectures), None), str)
    ):
        raise RefusedError("config.json names no model_type and architectures of transformers")
    return own_code_only(config)


def own_code_only(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without what names a kernel of a hub. Raises RefusedError where it asks for foreign code."""
    return {key: _cleaned(key, value) for key, value in config.items() if key not in _LEFT_OUT}


def _cleaned(key: str, value: Any) -> Any:
    """A value without what names a kernel. Raises RefusedError where a key asks for code that is not transformers'."""
    if key in _FORBIDDEN and value:
        raise RefusedError(f"config.json has {key}: its model is not made of transformers' own code alone")
    if isinstance(value, dict):
        return {inner: _cleaned(inner, item) for inner, item in value.items() if inner not in _LEFT_OUT}
    return [_cleaned("", item) for item in value] if isinstance(value, list) else value


def _ask(config: dict[str, Any], timeout: float) -> Parameters:
    """Run the child in an empty folder. Raises RefusedError."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {
            "HOME": empty, "TMPDIR": empty, "TEMP": empty, "HF_HOME": empty, "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603  # our own script; the configuration goes in as data
                [sys.executable, "-I", "-B", str(_CHILD)],
                input=json.dumps(config).encode(),
                capture_output=True,
                cwd=empty,
                env=environment,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RefusedError(f"transformers did not build the model in {timeout:g} seconds") from None
        except OSError as error:
            raise RefusedError(f"no process could be started for transformers: {error.strerror or error}") from None
    try:
        answer = json.loads(done.stdout)
        if "refused" in answer:
            raise RefusedError(f"transformers gave no names: {answer['refused']}")
        return [(str(name), tuple(int(n) for n in shape), trained is True) for name, shape, trained in answer["names"]]
    except (ValueError, KeyError, TypeError):
        raise RefusedError(f"transformers gave no names: its process ended with status {done.returncode}") from None
