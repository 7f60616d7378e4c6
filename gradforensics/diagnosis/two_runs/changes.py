"""In what two runs differ besides their results: settings, seed, data, environment, code.

Names and places do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gradforensics.diagnosis.setting_differences import differences, telling
from gradforensics.diagnosis.two_runs.partings import parting
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence

Kind: TypeAlias = Literal["setting", "rate", "batch", "seed", "data", "environment", "code"]

_SEED = lazy(r"(?:^|[._])(?:\w+_)?seeds?$")
_RATE = lazy(r"(?:^|[._])(?:lr|lrs)(?:$|_)|_lr$|learning_rate|warmup|schedul|decay_steps|max_steps|num_train_epochs")
# They decide which samples a step sees, or how many.
_BATCH = lazy(
    r"batch_size|accumulation_steps|world_size|shuffle|group_by_length|drop_last|packing|max_seq_length|dataset_size|"
    r"num_workers|sampler"
)
# Settings that name the training data; as places they are no telling settings, and their contents are not known.
_DATA = lazy(
    r"(?:^|[._])(?:train_)?(?:data|dataset|datasets|corpus|data_files?|train_files?|data_paths?|data_dir|dataset_name|"
    r"dataset_path|train_data|train_path|dataset_config_name|data_mixture)$"
)
# Packages whose version may change numbers; others are listed, and count for nothing.
_NUMERICAL = frozenset({
    "torch", "torchvision", "numpy", "triton", "pytorch-triton", "transformers", "accelerate", "deepspeed", "lightning",
    "pytorch-lightning", "flash-attn", "xformers", "apex", "transformer-engine", "bitsandbytes", "peft", "trl",
    "datasets", "tokenizers", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax", "megatron-core", "liger-kernel",
    "vllm", "torchao", "torchtitan", "fairscale", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12",
})  # fmt: skip
_FACTS = frozenset({
    "torch_cuda", "cudnn", "nccl", "driver", "cuda", "gpu", "gpu_count", "compute_capability", "python", "glibc", "os",
    "cpu", "kernel",
})  # fmt: skip
_COUNTED_FACTS = _FACTS - {"python", "glibc", "os", "kernel"}
_VARIABLES = lazy(r"^env:(?:NCCL|TORCH|PYTORCH|CUBLAS|CUDNN|NVIDIA_TF32|XLA|OMP_NUM|MKL_NUM)")
_COMMIT = "git_commit"
FEWEST = 5  # settings that both must state before the rest of the recipe can be called the same; as for siblings


@dataclass(frozen=True, slots=True)
class Change:
    """Something that both runs state, differently. Of kind rate, "lr" is the rate as logged, where it first differs."""

    kind: Kind
    key: str
    here: Any
    there: Any


@dataclass(frozen=True, slots=True)
class OneSided:
    """A setting that one run states only: it may have its default in the other one, or another name."""

    key: str
    value: Any
    here: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """All in which two runs differ, as far as it was recorded.

    counted: what may change the numbers; uncertain: places of data, whose contents may be the same, and versions and
    facts that hardly change numbers; one_sided: settings of one run only. shared: how many telling settings both
    state; unknown: of settings (few in common), seed, data, environment and code, what not both state.
    """

    counted: tuple[Change, ...]
    uncertain: tuple[Change, ...]
    one_sided: tuple[OneSided, ...]
    shared: int
    unknown: tuple[Kind, ...]

    @property
    def things(self) -> tuple[tuple[Change, ...], ...]:
        """The counted changes as things that could be changed alone.

        Every setting is one of its own; the seeds together are one, and so are the environment, the data and the code.
        """
        grouped: dict[str, list[Change]] = {}
        for change in self.counted:
            own = change.kind in ("setting", "rate", "batch")
            grouped.setdefault(f"{change.kind}:{change.key}" if own else change.kind, []).append(change)
        return tuple(map(tuple, grouped.values()))

    @property
    def confounded(self) -> bool:
        """Whether more than one thing was changed: what parts the runs cannot be pinned on one of them then."""
        return len(self.things) > 1


def changes(here: Evidence, there: Evidence) -> Changes:
    """In what two runs differ, as far as both state it."""
    mine, theirs = telling(here), telling(there)
    counted = [Change(_kind(one.key), one.key, one.here, one.there) for one in differences(here, there)]
    if not any(one.kind == "rate" for one in counted):
        counted += _logged_rates(here, there)
    code, machine, minor = _surroundings(here, there)
    places = [one for one in _data_places(here, there) if one.key not in {change.key for change in counted}]
    sides = [OneSided(key, mine[key], here=True) for key in sorted(mine.keys() - theirs.keys())]
    sides += [OneSided(key, theirs[key], here=False) for key in sorted(theirs.keys() - mine.keys())]
    shared = len(mine.keys() & theirs.keys())
    stated = {
        "setting": shared >= FEWEST,
        "seed": _any(mine, _SEED) and _any(theirs, _SEED),
        "environment": bool(_facts(here).keys() & _facts(there).keys() - {_COMMIT}),
        "code": _COMMIT in _facts(here).keys() & _facts(there).keys(),
        "data": here.table("data") is not None and there.table("data") is not None,
    }
    unknown: list[Kind] = [kind for kind in _STATED if not stated[kind]]
    return Changes(
        counted=(*counted, *_data(here, there), *machine, *code),
        uncertain=(*places, *minor),
        one_sided=tuple(sides),
        shared=shared,
        unknown=tuple(unknown),
    )


def _logged_rates(here: Evidence, there: Evidence) -> list[Change]:
    """The logged learning rates where they differ, though no setting that makes them does: something set them."""
    rates = parting(here, there, "lr")
    if rates is None or rates.step is None:
        return []
    return [Change("rate", "lr", rates.here, rates.there)]


_STATED: tuple[Kind, ...] = ("setting", "seed", "data", "environment", "code")


def _any(settings: Mapping[str, Any], pattern: Any) -> bool:
    return any(pattern.search(key) for key in settings)


def _kind(key: str) -> Kind:
    for kind, pattern in _KINDS:
        if pattern.search(key):
            return kind
    return "setting"


_KINDS: tuple[tuple[Kind, Any], ...] = (("seed", _SEED), ("rate", _RATE), ("batch", _BATCH), ("data", _DATA))


def _data_places(here: Evidence, there: Evidence) -> list[Change]:
    """Settings that name the training data, where the names differ: their contents may be the same all the same."""
    keys = sorted({s.key for s in here.settings or [] if _DATA.search(s.key)})
    pairs = [(key, here.setting(key), there.setting(key)) for key in keys]
    return [Change("data", key, a, b) for key, a, b in pairs if a is not None and b is not None and a != b]


def _data(here: Evidence, there: Evidence) -> list[Change]:
    """Files of training data of one name that an audit measured in both runs, with different results."""
    mine, theirs = _audited(here), _audited(there)
    return [
        Change("data", file, mine[file], theirs[file])
        for file in sorted(mine.keys() & theirs.keys())
        if mine[file] != theirs[file]
    ]


def _audited(evidence: Evidence) -> dict[str, dict[str, float | None]]:
    """Per file the quantities that an audit measured."""
    table = evidence.table("data")
    found: dict[str, dict[str, float | None]] = {}
    for row in [] if table is None else table.select("file", "column", "quantity", "value").iter_rows():
        found.setdefault(row[0], {})[f"{row[1]}:{row[2]}"] = row[3]
    return found


def _facts(evidence: Evidence) -> dict[str, set[str]]:
    """The facts of the environment by key, all values that ranks, hosts and launches state."""
    found: dict[str, set[str]] = {}
    for fact in evidence.environment or []:
        found.setdefault(fact.key, set()).add(fact.value)
    hosts = {fact.host for fact in evidence.environment or [] if fact.host} | found.get("host", set())
    if hosts:
        found["hosts"] = {str(len(hosts))}
    return found


def _surroundings(here: Evidence, there: Evidence) -> tuple[list[Change], list[Change], list[Change]]:
    """(code, what may change numbers, the rest) of the facts that both runs state, differently."""
    mine, theirs = _facts(here), _facts(there)
    code: list[Change] = []
    machine: list[Change] = []
    minor: list[Change] = []
    for key in sorted(mine.keys() & theirs.keys()):
        if mine[key] == theirs[key]:
            continue
        told = [", ".join(sorted(values)) for values in (mine[key], theirs[key])]
        if key == _COMMIT:
            code.append(Change("code", key, *told))
        elif _counts(key):
            machine.append(Change("environment", key, *told))
        elif key.startswith(("package:", "conda:")) or key in _FACTS:
            minor.append(Change("environment", key, *told))
    return code, machine, minor


def _counts(key: str) -> bool:
    kind, _, name = key.partition(":")
    numerical = kind == "package" and name in _NUMERICAL
    return numerical or key in _COUNTED_FACTS or key == "hosts" or _VARIABLES.search(key) is not None
