"""A candidate's files -> one Checkpoint: every file opened safely, its parts put together, what is missing named."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from gradforensics.checkpoints import layout, naming, tree
from gradforensics.checkpoints.discover import (
    Candidate,
    is_side_state,
    is_state,
    is_weights,
    rank_at,
    rank_of,
    step_of,
)
from gradforensics.checkpoints.formats import dcp, deepspeed, safetensors, torch_file
from gradforensics.checkpoints.layout import Content, Found
from gradforensics.checkpoints.model import Call, Checkpoint, Checksum, Fault, Group, Placement, Role, Tensor
from gradforensics.checkpoints.optimizer import OptimizerState, read_optimizer
from gradforensics.checkpoints.refs import TensorRef
from gradforensics.notices import Notice, Progress
from gradforensics.secrecy import masked, of_setting
from gradforensics.untrusted import danger, pickles
from gradforensics.untrusted.dtypes import FLOATS
from gradforensics.untrusted.files import LFS_POINTER, Damage, DamagedError, Readable, RefusedError, RegularFile

_GLOBAL_STEP = re.compile(rb'"global_step"\s*:\s*(\d{1,15})\b')
_OTHER_CONTENT = re.compile(r"\.(?:bin|pkl|pickle|tar)$")  # suffixes that many other files have
_PICKLE = re.compile(r"\.(?:pt|pth|ckpt|pkl|pickle)$")
_TEXT_PICKLE = frozenset(bytes([code]) for code in b"c(]}lIVSiFN")  # how pickles of protocols 0 and 1 begin
_HEAD = 1 << 16
_MAX_INDEX = 64 << 20


@dataclass(slots=True)
class Optimizer:
    """One optimizer of a checkpoint before its states have names. `masters`: float32 copies by (group, position)."""

    state: OptimizerState
    key: str
    file: str
    rank: int | None
    sources: list[naming.NameSource]
    masters: dict[tuple[int, int], Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Loaded:
    """A checkpoint whose states have no names yet (see `assigning.name`). `folder`: where its first file lies."""

    checkpoint: Checkpoint
    folder: Path
    optimizers: list[Optimizer] = field(default_factory=list)
    sources: list[naming.NameSource] = field(default_factory=list)
    checks: list[Checksum] = field(default_factory=list)


def load(candidate: Candidate) -> Loaded:
    """Open all files of a candidate. Whatever cannot be read becomes a notice of the checkpoint."""
    return _Loading(candidate).run()


def load_all(candidates: Sequence[Candidate], *, progress: Progress | None = None) -> list[Loaded]:
    """What the candidates hold, in their order; those with neither content nor notices are left out."""
    found: list[Loaded] = []
    for index, candidate in enumerate(candidates):
        loaded = load(candidate)
        checkpoint = loaded.checkpoint
        if checkpoint.tensors or loaded.optimizers or checkpoint.settings or checkpoint.notices or checkpoint.calls:
            found.append(loaded)
        if progress is not None:
            progress("opening checkpoints", index + 1, len(candidates))
    return found


class _Loading:
    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        files = candidate.files
        self.checkpoint = Checkpoint(
            candidate.path, candidate.kind, bytes=sum(f.size for f in files), files=[f.name for f in files]
        )
        self.loaded = Loaded(self.checkpoint, files[0].path.parent)
        self.formats: set[str] = set()
        self.steps: dict[str, int] = {}
        self.schedulers: Counter[int | None] = Counter()
        self.whole = True

    def run(self) -> Loaded:
        rest: list[RegularFile] = []
        folders: dict[str, list[RegularFile]] = {}
        for file in self.candidate.files:
            base = PurePosixPath(file.name).name
            if base == ".metadata" or base.endswith(".distcp") or deepspeed.NAME.match(base):
                folders.setdefault(str(PurePosixPath(file.name).parent), []).append(file)
            else:
                rest.append(file)
        for folder, files in folders.items():
            self._folder(folder, files)
        for file in rest:
            self._guarded(file, self._file)
        self._finish()
        return self.loaded

    def _guarded(self, file: RegularFile, read: Any) -> None:
        try:
            read(file)
        except RefusedError as error:
            self.checkpoint.unread.add(file.name)
            self._uses(file.name, error.uses)
            self._broken(file.name, f"not read: {error}", error.damage)
        except OSError as error:
            self.checkpoint.unread.add(file.name)
            self._broken(file.name, f"not read: {error.strerror or error}")

    def _broken(self, file: str, text: str, damage: Damage | None = None) -> None:
        self.whole = False
        self.checkpoint.notices.append(Notice(file, None, text))
        if damage is not None:
            self.checkpoint.faults.append(Fault(damage, file, text))

    def _noted(self, file: str, texts: Iterable[str], damage: Damage | None, *, complete: bool) -> None:
        """What a reader says of a file: of a damaged one, its first notice tells how."""
        listed = list(texts)
        self.checkpoint.notices += [Notice(file, None, text) for text in listed]
        self.whole = self.whole and complete
        if damage is not None:
            self.checkpoint.faults.append(Fault(damage, file, listed[0]))

    # -- files of their own -------------------------------------------------------------------------------------------

    def _file(self, file: RegularFile) -> None:
        base = PurePosixPath(file.name).name
        with file.open() as opened:
            head = opened.read(0, min(_HEAD, opened.size))
        if not head.strip(b"\0"):
            self._refuse_lost(file, head)
        if head.startswith(LFS_POINTER):
            raise RefusedError("only a git-LFS pointer: the content was not fetched (git lfs pull)")
        if base == "trainer_state.json":
            self._trainer_state(file, head)
        elif base.endswith(".index.json"):
            self._index(file)
        elif base.endswith(".json"):
            return
        elif base.endswith(".safetensors"):
            self._safetensors(file)
        elif torch_file.looks_like_one(head) or (_PICKLE.search(base) and head[:1] in _TEXT_PICKLE):
            self._torch(file)
        elif not _OTHER_CONTENT.search(base):
            raise RefusedError("neither a zip archive nor a pickle: not written by torch.save")
        elif not (base == "training_args.bin" and head.lstrip().startswith(b"{")):
            self.checkpoint.unread.add(file.name)
            self.checkpoint.notices.append(Notice(file.name, None, "not read: no checkpoint by its content"))

    def _refuse_lost(self, file: RegularFile, head: bytes) -> NoReturn:
        """Refuse a file without content; it is damaged where its name is that of a checkpoint's part."""
        base = PurePosixPath(file.name).name
        part = is_weights(base) or is_state(base) or step_of(file.name) is not None
        text = f"its first {len(head)} bytes are zeros: the content was lost" if head else "empty file"
        if part and not base.endswith(".json"):
            raise DamagedError("changed" if head else "empty", text)
        raise RefusedError(text)

    def _trainer_state(self, file: RegularFile, head: bytes) -> None:
        matched = _GLOBAL_STEP.search(head)
        if matched:
            self.steps[file.name] = int(matched[1])
        self.formats.add("hf-trainer")

    def _index(self, file: RegularFile) -> None:
        """A sharded model's index: all of its files must be there."""
        if file.size > _MAX_INDEX:
            raise RefusedError(f"an index of {file.size} bytes")
        with file.open() as opened:
            raw = opened.read(0, opened.size)
        try:
            index = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"no valid JSON ({type(error).__name__})") from None
        weights = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weights, dict):
            raise RefusedError("an index without a weight_map")
        present = {PurePosixPath(f.name).name for f in self.candidate.files}
        wanted = sorted({name for name in weights.values() if isinstance(name, str)})
        absent = [name for name in wanted if name not in present]
        if absent:  # where none is there, the weights were left out on purpose
            text = f"{len(absent)} of {len(wanted)} shards are missing, such as {absent[0]}"
            self._broken(file.name, text, "missing" if len(absent) < len(wanted) else None)
        self.checkpoint.facts["index.tensors"] = len(weights)
        self.formats.add("sharded")

    def _safetensors(self, file: RegularFile) -> None:
        found = safetensors.read(file)
        self._noted(file.name, found.notices, None if found.complete else "cut", complete=found.complete)
        for name, ref in found.tensors.items():
            role: Role = "buffer" if ref.dtype not in FLOATS or layout.is_buffer(name) else "param"
            rank = rank_at(file.name) if self.candidate.kind == "ranks" else rank_of(file.name)
            self.checkpoint.tensors.append(Tensor(name, role, ref, file.name, name, rank))
        self.loaded.sources.append(naming.unordered_source(file.name, found.tensors))
        self.formats.add("safetensors")

    def _torch(self, file: RegularFile) -> None:
        opened = torch_file.read(file)
        self._opened(file.name, opened)
        content = layout.understand(opened.root)
        if self.candidate.kind != "file" and is_side_state(file.name):
            for found in content.tensors:  # random numbers, samplers, a user's own counters: no part of the model
                found.role = "other"
            content.step = None
        self._content(content, file.name, self._rank(file))
        self.formats.add(opened.kind)

    def _rank(self, file: RegularFile) -> int | None:
        if self.candidate.kind == "megatron":
            folders = sorted({str(PurePosixPath(f.name).parent) for f in self.candidate.files})
            return folders.index(str(PurePosixPath(file.name).parent)) if len(folders) > 1 else None
        return rank_at(file.name) if self.candidate.kind == "ranks" else None

    def _opened(self, name: str, opened: torch_file.TorchFile) -> None:
        self._noted(name, opened.notices, opened.damage, complete=opened.complete)
        self.loaded.checks += opened.checks()
        self._uses(name, opened.uses)

    def _uses(self, name: str, uses: Mapping[str, pickles.Use]) -> None:
        for item in danger.executable(uses):
            self.checkpoint.calls.append(Call(name, item.name, item.danger, masked(item.arguments)))

    # -- folders of files that belong together ------------------------------------------------------------------------

    def _folder(self, folder: str, files: Sequence[RegularFile]) -> None:
        by_name: dict[str, Readable] = {PurePosixPath(f.name).name: f for f in files}
        try:
            if any(deepspeed.NAME.match(name) for name in by_name):
                self._deepspeed(by_name)
            elif ".metadata" in by_name:
                self._dcp(by_name)
            else:
                self._broken(files[0].name, "the .metadata file that describes these data files is missing")
        except RefusedError as error:
            self._uses(files[0].name, error.uses)
            self._broken(files[0].name, f"not read: {error}", error.damage)
        except OSError as error:
            self._broken(files[0].name, f"not read: {error.strerror or error}")
        self.checkpoint.facts.setdefault("folder", folder)

    def _dcp(self, files: dict[str, Readable]) -> None:
        metadata = files[".metadata"]
        found = dcp.read(metadata, files)
        self._noted(metadata.name, found.notices, None, complete=found.complete)
        self.checkpoint.faults += found.faults
        self.loaded.checks += found.checks
        self._uses(metadata.name, found.uses)
        self._content(layout.understand(found.root), metadata.name, None, ordered=found.ordered)
        self.formats.add("dcp")

    def _deepspeed(self, files: dict[str, Readable]) -> None:
        found = deepspeed.read(files)
        for name, text in found.notices:
            self._noted(name, [text], None, complete=found.complete)
        self.checkpoint.faults += found.faults
        for name, uses in found.uses:
            self._uses(name, uses)
        for name, opened in found.opened:
            self._opened(name, opened)
        for part in found.parts:
            self._content(part.content, part.file, part.rank if len(found.parts) > 1 else None)
        self.formats.add("deepspeed")

    # -- what was found -----------------------------------------------------------------------------------------------

    def _content(self, content: Content, file: str, rank: int | None, *, ordered: bool = True) -> None:
        named: dict[str, dict[str, TensorRef]] = {}
        masters: dict[tuple[int, int], Tensor] = {}
        for found in content.tensors:
            tensor = self._tensor(found, file, rank)
            self.checkpoint.tensors.append(tensor)
            if found.role == "param":
                named.setdefault(_state_dict_of(found), {})[tensor.name] = tensor.ref
            elif (
                found.role == "master" and len(found.path) > 1 and found.path[-1].isdigit() and found.path[-2].isdigit()
            ):
                masters[int(found.path[-2]), int(found.path[-1])] = tensor
        make = naming.saved_source if ordered else naming.unordered_source
        self.loaded.sources += [make(file, tensors) for tensors in named.values()]
        for path, state_dict in content.optimizers:
            self._optimizer(state_dict, ".".join(path), file, rank, masters)
        self.checkpoint.groups += _flat_groups(content.flat_groups)
        for key, value in content.facts.items():
            self.checkpoint.facts.setdefault(key, of_setting(key, value))
        self.schedulers[rank] += content.schedulers
        self.checkpoint.histories += [(file, rows) for rows in content.histories]
        self.checkpoint.settings += [(name, of_setting(name, value), file) for name, value in content.settings]
        if content.step is not None:
            self.steps[file] = content.step

    def _tensor(self, found: Found, file: str, rank: int | None) -> Tensor:
        lost = ""
        try:
            ref = tree.reference(found.leaf, file)
        except RefusedError as error:
            ref, lost = TensorRef(found.leaf.dtype, found.leaf.shape, ()), str(error)
        placement: Placement = "sharded" if found.sharded else "unknown"
        return Tensor(found.name, found.role, ref, file, ".".join(found.path), rank, placement, None, lost)

    def _optimizer(
        self,
        state_dict: dict[str, Any],
        key: str,
        file: str,
        rank: int | None,
        masters: dict[tuple[int, int], Tensor],
    ) -> None:
        try:
            state = read_optimizer(state_dict)
        except RefusedError as error:
            self._broken(file, f"its optimizer state is not read: {error}")
            return
        for text in state.notices:
            self.checkpoint.notices.append(Notice(file, None, text))
        self.loaded.optimizers.append(Optimizer(state, key, file, rank, self.loaded.sources, masters))

    def _finish(self) -> None:
        checkpoint = self.checkpoint
        lost = [t for t in checkpoint.tensors if t.lost and "meta tensor" not in t.lost]
        if lost:
            self._broken(lost[0].file, f"{len(lost)} tensors are lost, such as {lost[0].key}: {lost[0].lost}")
        self._step()
        self._mixed()
        checkpoint.format = "+".join(sorted(self.formats)) or checkpoint.format
        weights = any(t.role in ("param", "master") for t in checkpoint.tensors)
        if not weights and checkpoint.tensors:
            self._broken(checkpoint.files[0], "no weights: only the state beside them was saved")
        unfinished = PurePosixPath(checkpoint.path).name.startswith("tmp-")
        if unfinished:
            text = "the folder has the name of one that was still being written"
            self._broken(checkpoint.path, text, "unfinished")
        if not any(t.ref.count for t in checkpoint.tensors if t.role in ("param", "master")):
            self._hollow()
        checkpoint.complete = self.whole if weights or not self.whole else None

    def _hollow(self) -> None:
        """A file of weights in which there are none: an adapter that was saved from parameters that are sharded."""
        readable = (PurePosixPath(f) for f in self.checkpoint.files if f not in self.checkpoint.unread)
        empty = [str(path) for path in readable if is_weights(path.name)]
        if empty and not self.checkpoint.faults:
            self._broken(empty[0], "a file of weights that holds no element of any parameter", "hollow")

    def _step(self) -> None:
        """The step of the checkpoint: what its files say, else its name; files that differ are named."""
        checkpoint = self.checkpoint
        stated = sorted(set(self.steps.values()))
        named = step_of(checkpoint.path)
        if len(stated) > 1:
            listed = ", ".join(
                f"{PurePosixPath(f).name} {s}" for f, s in sorted(self.steps.items(), key=lambda i: i[1])
            )
            self._broken(checkpoint.files[0], f"its files are of different steps: {listed[:300]}")
        trainer = next((s for f, s in self.steps.items() if f.endswith("trainer_state.json")), None)
        counted = [step for optimizer in self.loaded.optimizers for step in optimizer.state.steps.values()]
        if counted:
            checkpoint.facts["optimizer.step"] = max(counted)
        several = {"optimizers": Counter(o.rank for o in self.loaded.optimizers), "schedulers": self.schedulers}
        for name, by_rank in several.items():
            if (count := max(by_rank.values(), default=0)) > 1:
                checkpoint.facts[name] = count
        fallback = named if named is not None else max(counted, default=None)
        checkpoint.step = trainer if trainer is not None else (stated[-1] if stated else fallback)

    def _mixed(self) -> None:
        """Weights of one step and an optimizer of another: where optimizer and scheduler agree against the trainer.

        A loss scaler that skipped steps leaves both behind in the same way, so it must be absent. A loop may count
        micro-batches, and Lightning counts the steps of all optimizers: then the step is a multiple of theirs.
        """
        step, facts = self.checkpoint.step, self.checkpoint.facts
        own, scheduled = facts.get("optimizer.step"), facts.get("scheduler.last_epoch")
        if step is None or own is None or own in (step, 0) or own != scheduled:
            return
        scaled = any(key.startswith("scaler.") for key in facts)
        by_trainer = any(file.endswith("trainer_state.json") for file in self.steps)
        if not scaled and (by_trainer or step % own):
            text = f"its parts are of different steps: it says {step}, its optimizer and scheduler {own}"
            self._broken(self.checkpoint.files[0], text)


def _state_dict_of(found: Found) -> str:
    """The state dict that a parameter stands in, where a file holds several (of an actor and a critic)."""
    return found.path[0] if len(found.path) == 2 and "." in found.path[1] else ""


def _flat_groups(flat: dict[str, dict[str, Any]]) -> list[Group]:
    """Groups out of hyper-parameters by parameter name (a flattened optimizer state): equal ones are one group."""
    groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for name, values in flat.items():
        groups.setdefault(repr(sorted(values.items())), (values, []))[1].append(name)
    made: list[Group] = []
    for values, names in groups.values():
        try:
            state = read_optimizer({"state": {}, "param_groups": [{**values, "params": names}]})
        except RefusedError:
            continue
        made += state.groups
    for index, group in enumerate(made):
        group.group = index
    return made
