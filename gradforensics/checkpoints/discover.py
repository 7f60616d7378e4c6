"""Which files of a run directory are checkpoints, and which of them belong to one checkpoint. By names alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from gradforensics.patterns import lazy
from gradforensics.untrusted.files import RegularFile

Kind: TypeAlias = Literal["folder", "dcp", "deepspeed", "megatron", "file", "ranks"]

_SUFFIX = lazy(r"\.(?:pt|pth|ckpt|bin|safetensors|pkl|pickle|pdparams|tar)$|\.pth\.tar$")
_WEIGHTS = lazy(
    r"^(?:model|pytorch_model|adapter_model|diffusion_pytorch_model|consolidated|tf_model|unet|vae)"
    r"(?:[-_.]\d+(?:-of-\d+)?)?\.(?:safetensors|bin|pt|pth)$|^model-\d+-of-\d+\.safetensors$"
)
_INDEX = lazy(r"\.(?:safetensors|bin)\.index\.json$")
_STATE = lazy(
    r"^(?:optimizer(?:_\d+)?\.(?:pt|bin)|scheduler(?:_\d+)?\.(?:pt|bin)|scaler\.pt|rng_state(?:_\d+)?\.pth|"
    r"random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl|sampler(?:_\d+)?\.bin|dl_state_dict(?:_\d+)?\.bin)$"
)
_BESIDE = lazy(
    r"^(?:training_args\.bin|trainer_state\.json|config\.json|adapter_config\.json|metadata\.json|common\.pt)$"
)
_DEEPSPEED = lazy(r"_(?:model|optim)_states\.pt$")
_MEGATRON = lazy(r"^mp_rank_\d+(?:_\d+){0,2}$")
_MEGATRON_FILE = lazy(r"^(?:model_optim_rng|model_rng|distrib_optim|optim)\.pt$")
_RANK = lazy(r"((?:^|[._-])rank[._-]?)(\d{1,6})(?=[._-]|$)")
_RANK_FOLDER = lazy(r"^rank[._-]?\d{1,6}$")
_NO_CHECKPOINT = lazy(
    r"^(?:vocab|merges|tokenizer|spiece|dataset|data|train|val|valid|test|cache|indices)(?:[-_.]?\d+)?\.(?:bin|pt|pkl)$"
)


@dataclass(slots=True)
class Candidate:
    """The files of what may be one checkpoint. path: its folder, or its file where it is one file."""

    path: str
    kind: Kind
    files: list[RegularFile] = field(default_factory=list)


def may_be_part(name: str) -> bool:
    """Whether a file of this name can belong to a checkpoint."""
    base = PurePosixPath(name).name.lower()
    return (
        base == ".metadata"
        or base.endswith(".distcp")
        or (bool(_SUFFIX.search(base)) and not _NO_CHECKPOINT.match(base))
    )


def may_be_beside(name: str) -> bool:
    """Whether a file of this name, itself no part of a checkpoint, tells of the one in its folder (an index ...)."""
    base = PurePosixPath(name).name
    return bool(_BESIDE.match(base) or _INDEX.search(base))


def find(files: Sequence[RegularFile]) -> list[Candidate]:
    """Every candidate among the files of one input, in the order of their paths; other files are left out."""
    found: dict[tuple[str, Kind], Candidate] = {}
    beside: list[RegularFile] = []
    for file in files:
        path = PurePosixPath(file.name)
        base, folder = path.name, path.parent
        if may_be_beside(file.name):
            beside.append(file)
            continue
        if not may_be_part(file.name):
            continue
        home, kind = _home(path, folder, base)
        found.setdefault((home, kind), Candidate(home, kind)).files.append(file)
    _attach(found, beside)
    _merge(found)
    _ranks(found)
    return sorted(found.values(), key=lambda c: _natural(c.path))


def _home(path: PurePosixPath, folder: PurePosixPath, base: str) -> tuple[str, Kind]:
    """The folder or file that a file's checkpoint is called after, and its kind."""
    if base == ".metadata" or base.endswith(".distcp"):
        return str(folder), "dcp"
    if _DEEPSPEED.search(base):
        return str(folder), "deepspeed"
    if _MEGATRON.match(folder.name) and _MEGATRON_FILE.match(base):
        return str(folder.parent), "megatron"
    if is_weights(base) or is_state(base):
        return str(folder), "folder"
    return str(path), "file"


def _attach(found: dict[tuple[str, Kind], Candidate], beside: Sequence[RegularFile]) -> None:
    """Configurations, indices and counters go to the checkpoint of their folder."""
    for file in beside:
        folder = str(PurePosixPath(file.name).parent)
        home = next(
            (found[key] for key in ((folder, "folder"), (folder, "dcp"), (folder, "deepspeed")) if key in found), None
        )
        if home is None and (_INDEX.search(file.name) or _has_deepspeed_below(found, folder)):
            home = found.setdefault((folder, "folder"), Candidate(folder, "folder"))
        if home is None and PurePosixPath(file.name).name == "training_args.bin":
            home = found[file.name, "file"] = Candidate(file.name, "file")  # settings, whether or not weights lie there
        if home is not None:
            home.files.append(file)


def _has_deepspeed_below(found: dict[tuple[str, Kind], Candidate], folder: str) -> bool:
    return any(kind == "deepspeed" and str(PurePosixPath(path).parent) == folder for path, kind in found)


def _merge(found: dict[tuple[str, Kind], Candidate]) -> None:
    """Parts that a folder's checkpoint keeps in folders of its own (FSDP, DeepSpeed) are parts of it.

    Folders that are called after a step, in one that is not, are checkpoints of a run: a final model or a config.json
    beside them does not make them one.
    """
    for key in [k for k in found if k[1] in ("dcp", "deepspeed")]:
        folder = PurePosixPath(key[0])
        is_part = step_of(folder.name) is None or step_of(folder.parent.name) is not None
        for home in ((key[0], "folder"), (str(folder.parent), "folder")) if is_part else ((key[0], "folder"),):
            if home in found and home != key:
                found[home].files += found.pop(key).files
                break


def _ranks(found: dict[tuple[str, Kind], Candidate]) -> None:
    """Files, or folders, that are called after ranks and otherwise alike are one checkpoint."""
    alike: dict[str, list[Candidate]] = {}
    for candidate in found.values():
        pattern = _any_rank(candidate)
        if pattern is not None:
            alike.setdefault(pattern, []).append(candidate)
    for pattern, candidates in alike.items():
        if len(candidates) > 1:
            for candidate in candidates:
                del found[candidate.path, candidate.kind]
            files = sorted((f for c in candidates for f in c.files), key=lambda f: rank_at(f.name) or 0)
            found[pattern, "ranks"] = Candidate(pattern, "ranks", files)


def _any_rank(candidate: Candidate) -> str | None:
    """The path of a candidate with a star in place of its rank: ckpt/rank*.pt, rank_*/ckpt.pt, ckpt/rank*."""
    path = PurePosixPath(candidate.path)
    if candidate.kind == "file" and rank_of(candidate.path) is not None:
        return str(path.parent / _RANK.sub(r"\1*", path.name))
    folder = {"file": path.parent, "folder": path}.get(candidate.kind)
    if folder is None or not _RANK_FOLDER.match(folder.name.lower()):
        return None
    named = folder.parent / _RANK.sub(r"\1*", folder.name.lower())
    return str(named / path.name if candidate.kind == "file" else named)


def rank_at(name: str) -> int | None:
    """The rank that a file, or else its folder, is called after (rank0.pt, rank_3/model.pt), or None."""
    own, folder = rank_of(name), PurePosixPath(name).parent.name.lower()
    return rank_of(folder) if own is None and _RANK_FOLDER.match(folder) else own


def rank_of(name: str) -> int | None:
    """The rank that a file is called after (rank0.pt, optim_rank_3.pt), or None."""
    matched = _RANK.search(PurePosixPath(name).name.lower())
    return None if matched is None else int(matched[2])


_STEP = lazy(
    r"(?:^|[/._=-])(?:checkpoint|ckpt|global_?step|steps?|iter|iteration|it|update|train_step)"
    r"[-_=]?0*(\d+)(?=$|[/._=-])"
)


def step_of(path: str) -> int | None:
    """The step that a folder or file is called after (checkpoint-500, epoch=0-step=4.ckpt, iter_0000010), or None."""
    parts = [part for part in reversed(PurePosixPath(path).parts) if part not in (".", "/")]
    for part in parts[:2]:
        matched = _STEP.findall(part.lower())
        if matched:
            return int(matched[-1])
    return None


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def is_weights(base: str) -> bool:
    """Whether a file is called as the frameworks call the weights, or a shard of them, in a checkpoint's folder."""
    return bool(_WEIGHTS.match(base.lower()))


def is_state(base: str) -> bool:
    """Whether a file is called as they call what stands beside the weights: an optimizer, random states ..."""
    return bool(_STATE.match(base))


def is_side_state(name: str) -> bool:
    """Whether a file of a checkpoint's folder holds neither weights nor an optimizer: random states, schedulers ..."""
    base = PurePosixPath(name).name
    return is_state(base) and not base.startswith("optimizer")
