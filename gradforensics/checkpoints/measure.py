"""The checkpoints of one run, in order, as tables: what they hold, their tensors, moments, travels and groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gradforensics import weight_copies
from gradforensics.checkpoints import assigning, load, pairs
from gradforensics.checkpoints.adam import Hyper
from gradforensics.checkpoints.discover import find
from gradforensics.checkpoints.lines import lines
from gradforensics.checkpoints.load import Loaded
from gradforensics.checkpoints.model import Checkpoint, Checksum, Fault, Group, Tensor, is_mask
from gradforensics.checkpoints.refs import Run
from gradforensics.checkpoints.scan import scan
from gradforensics.checkpoints.stats import Stats
from gradforensics.notices import Notice
from gradforensics.untrusted.files import Damage, RegularFile

if TYPE_CHECKING:
    import polars as pl

Progress: TypeAlias = Callable[[str, int, int], None]
Applied: TypeAlias = Callable[[int, int, Group], pairs.Applied | None]

_COUNTED = ("param", "master", "buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum", "state")
_WORST: tuple[Damage, ...] = ("changed", "cut", "empty", "missing", "hollow", "unfinished")
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


@dataclass(slots=True)
class Survey:
    """Checkpoints in the order of their steps, and their tables by the names of gradforensics.tables.TABLES.

    Without measuring, `tensors` tells names, types and shapes only. `moments` and `travels` are absent where nothing
    was compared.
    """

    checkpoints: list[Checkpoint]
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)


def open_all(files: Sequence[RegularFile], *, progress: Progress | None = None) -> list[Loaded]:
    """Every checkpoint among the files, none of its tensors read; also files with settings only."""
    return load.load_all(find(files), progress=progress)


def survey(
    loaded: Iterable[Loaded],
    *,
    measured: bool = True,
    compared: bool = True,
    applied: Applied | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Order the checkpoints of one run, name their optimizer states, and measure every tensor.

    compared: whether moments and the travel between neighbours are measured too. applied: what the schedule says a
    group did between two steps (see pairs.Applied), None where it is not known.
    """
    ordered = sorted(loaded, key=lambda one: (one.checkpoint.step is None, one.checkpoint.step or 0))
    for part in [ordered] if measured else [[one] for one in ordered]:  # neighbours help by their numbers only
        assigning.name(part)
    found = Survey([one.checkpoint for one in ordered])
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("checkpoints", "tensors", "groups", "facts", "calls")
    }
    total = sum(t.ref.nbytes for c in found.checkpoints for t in c.tensors)
    done = 0
    for checkpoint in found.checkpoints:
        results = _scan(checkpoint, _part(progress, "measuring tensors", done, total)) if measured else {}
        done += sum(t.ref.nbytes for t in checkpoint.tensors)
        rows["tensors"] += [tensor_row(checkpoint, t, results.get(id(t))) for t in checkpoint.tensors]
        if checkpoint.tensors or checkpoint.groups or checkpoint.complete is False:
            rows["checkpoints"].append(_checkpoint_row(checkpoint, results, measured=measured))
        rows["groups"] += [_group_row(checkpoint, group) for group in checkpoint.groups]
        rows["facts"] += [_fact_row(checkpoint, key, value) for key, value in checkpoint.facts.items()]
        rows["calls"] += [
            {"source": call.file, "name": call.name, "danger": call.danger, "arguments": call.arguments}
            for call in checkpoint.calls
        ]
        found.notices += _once(checkpoint.notices)
    found.tables = {name: frame(name, part) for name, part in rows.items()}
    if measured and compared:
        _pairwise(found, applied, progress)
    return found


def _once(notices: Iterable[Notice]) -> list[Notice]:
    """Notices of the same words as one, which says how many files it is about."""
    alike: dict[str, list[Notice]] = {}
    for notice in notices:
        alike.setdefault(notice.text, []).append(notice)
    return [
        first if len(others) == 0 else Notice(first.source, first.line, f"{text} ({len(others) + 1} such files)")
        for text, (first, *others) in alike.items()
    ]


def frame(name: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a table of TABLES; columns that a row lacks are null."""
    import polars as pl  # noqa: PLC0415  whoever only lists tensors need not wait for it

    from gradforensics.tables import TABLES  # noqa: PLC0415

    schema = TABLES[name]
    cells = [[row.get(column) for column in schema] for row in rows]
    try:
        return pl.DataFrame(cells, schema=schema, orient="row")
    except UnicodeEncodeError:  # a name in a pickle may hold halves of surrogate pairs, which no table can
        return pl.DataFrame([[_encodable(cell) for cell in row] for row in cells], schema=schema, orient="row")


def _encodable(value: Any) -> Any:
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _part(progress: Progress | None, what: str, done: int, total: int) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda now, _: progress(what, done + now, max(total, 1))


# -- one checkpoint ---------------------------------------------------------------------------------------------------


def _scan(checkpoint: Checkpoint, progress: Callable[[int, int], None] | None) -> dict[int, Stats]:
    """The statistics of every tensor that could be read, by id() of the tensor; what could not be is a notice."""
    tensors = [t for t in checkpoint.tensors if not t.lost]
    found = scan(tensors, checkpoint.checksums, progress=progress)
    results: dict[int, Stats] = {}
    for tensor, result in zip(tensors, found.results, strict=True):
        if isinstance(result, Stats):
            results[id(tensor)] = result
        else:
            checkpoint.notices.append(Notice(tensor.file, None, f"tensor {tensor.key} was not measured: {result}"))
    damaged = _damaged(found.failed, tensors)
    checkpoint.notices += damaged
    checkpoint.faults += [Fault("changed", notice.source or checkpoint.path, notice.text) for notice in damaged]
    if found.failed or len(results) < len(tensors):
        checkpoint.complete = False
    return results


def _damaged(failed: Sequence[Checksum], tensors: Sequence[Tensor]) -> list[Notice]:
    """One notice for every file with records whose checksum is wrong, with the tensors that lie in the first ones."""
    by_file: dict[str, list[Checksum]] = {}
    for check in failed:
        by_file.setdefault(check.file.name, []).append(check)
    notices: list[Notice] = []
    for file, checks in by_file.items():
        hurt = [t.key for check in checks[:3] for t in tensors if any(_inside(run, check) for run in t.ref.runs)]
        which = f", such as tensor {hurt[0]}" if hurt else f", such as the one at byte {checks[0].offset}"
        count = "the CRC-32 of 1 record is" if len(checks) == 1 else f"the CRC-32 of {len(checks)} records is"
        notices.append(Notice(file, None, f"{count} wrong{which}: bytes were changed or damaged"))
    return notices


def _inside(run: Run, check: Checksum) -> bool:
    return run.file is check.file and check.offset <= run.offset < check.offset + check.count


def tensor_row(checkpoint: Checkpoint, tensor: Tensor, stats: Stats | None = None) -> dict[str, Any]:
    """A row of the table of tensors; without statistics, what is known without reading the tensor."""
    row: dict[str, Any] = {
        "checkpoint": checkpoint.path, "step": checkpoint.step, "rank": tensor.rank, "placement": tensor.placement,
        "role": tensor.role, "name": tensor.name, "dtype": tensor.ref.dtype, "shape": list(tensor.ref.shape),
        "count": tensor.ref.count, "key": tensor.key, "source": tensor.file,
    }  # fmt: skip
    if stats is not None:
        row |= {
            "nan": stats.nan, "posinf": stats.posinf, "neginf": stats.neginf, "zero": stats.zero, "one": stats.one,
            "subnormal": stats.subnormal, "min": stats.min, "max": stats.max, "mean": stats.mean, "std": stats.std,
            "l2": stats.l2, "fingerprint": stats.fingerprint, "row_l2_min": stats.row_l2_min,
            "row_l2_max": stats.row_l2_max, "row_l2_max_index": stats.row_l2_max_index, "zero_rows": stats.zero_rows,
        }  # fmt: skip
    return row


def _checkpoint_row(checkpoint: Checkpoint, results: Mapping[int, Stats], *, measured: bool) -> dict[str, Any]:
    counted = [(t, results[id(t)]) for t in checkpoint.tensors if t.role in _COUNTED and id(t) in results]
    bad = sum(_nonfinite(t, stats) for t, stats in counted)
    return {
        "path": checkpoint.path, "format": checkpoint.format, "step": checkpoint.step, "complete": checkpoint.complete,
        "bytes": checkpoint.bytes, "source": checkpoint.files[0] if checkpoint.files else None,
        "tensors": len(checkpoint.tensors), **_fault_cells(checkpoint),
        "parameters": sum(t.ref.count for t in checkpoint.tensors if t.role == "param"),
        "nonfinite": bad if measured else None,
        "naming": checkpoint.naming.how if checkpoint.naming else None,
        "naming_sure": checkpoint.naming.sure if checkpoint.naming else None,
    }  # fmt: skip


def _nonfinite(tensor: Tensor, stats: Stats) -> int:
    """NaN and infinities of a tensor; -inf in a mask, which is a buffer if the file tells, is not counted."""
    masked = tensor.role == "buffer" or is_mask(tensor.name)
    return (stats.nan or 0) + (stats.posinf or 0) + (0 if masked else stats.neginf or 0)


def _fault_cells(checkpoint: Checkpoint) -> dict[str, Any]:
    """The worst fault of a checkpoint, as cells of its row."""
    worst = min(checkpoint.faults, key=lambda fault: _WORST.index(fault.kind), default=None)
    return {} if worst is None else {"damage": worst.kind, "damaged": worst.file, "damage_text": worst.text}


def _group_row(checkpoint: Checkpoint, group: Group) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint.path, "rank": group.rank, "group": group.group, "lr": group.lr,
        "betas": None if group.betas is None else list(group.betas), "eps": group.eps,
        "weight_decay": group.weight_decay, "names": group.names, "step_min": group.step_min,
        "step_max": group.step_max, "optimizer": group.optimizer, "momentum": group.momentum,
        "values": json.dumps(dict(group.values), default=str),
    }  # fmt: skip


def _fact_row(checkpoint: Checkpoint, key: str, value: Any) -> dict[str, Any]:
    return {"checkpoint": checkpoint.path, "step": checkpoint.step, "key": key, "value": json.dumps(value, default=str)}


# -- neighbours -------------------------------------------------------------------------------------------------------


def parameters(checkpoint: Checkpoint) -> list[pairs.Parameter]:
    """Every parameter with its optimizer state: its float32 master where the checkpoint holds one.

    Of a parameter that several ranks hold, whole or in parts, each rank's is one: "name@rank". Adam's states whose
    parameter is not known stand alone, without a weight, as "state.ID".
    """
    by_name: dict[tuple[str, int | None], dict[str, Tensor]] = {}
    for tensor in checkpoint.tensors:
        if tensor.role in ("param", "master", *_MOMENTS) and not tensor.lost:
            unnamed = tensor.role in _MOMENTS and tensor.name == tensor.key
            name = tensor.key.rpartition(".")[0] if unnamed else tensor.name
            by_name.setdefault((name, tensor.rank), {}).setdefault(tensor.role, tensor)
    found: list[pairs.Parameter] = []
    groups: dict[str, list[Group]] = {}
    for group in checkpoint.groups:
        for name in group.names:
            groups.setdefault(name, []).append(group)
    for (name, rank), roles in by_name.items():
        weight = roles.get("master") or roles.get("param")
        if weight is None and not {"exp_avg", "exp_avg_sq"} <= roles.keys():
            continue
        identity = name if weight is not None else name.rpartition(".")[2]
        hyper = _hyper(checkpoint, identity, groups.get(identity) or checkpoint.groups)
        # exp_avg of another optimizer than Adam follows other formulas
        states = {role: roles[role].ref for role in _MOMENTS if role in roles and hyper.beta1 is not None}
        if weight is not None or states:
            ref = None if weight is None else weight.ref
            found.append(pairs.Parameter(_label(name, rank), ref, **states, hyper=hyper))
    return found


def _label(name: str, rank: int | None) -> str:
    return name if rank is None else f"{name}@{rank}"


def _hyper(checkpoint: Checkpoint, name: str, candidates: Sequence[Group]) -> Hyper:
    """The constants of a parameter, as far as all groups that may be its own share them."""
    if any(g.optimizer not in ("adam", "adamw", "amsgrad", "") for g in candidates):
        return Hyper()
    betas = {g.betas for g in candidates}
    eps = {g.eps for g in candidates}
    pair = betas.pop() if len(betas) == 1 else None
    step = checkpoint.counters.get(name)
    if step is None and len({s for g in candidates for s in (g.step_min, g.step_max)}) == 1:
        step = candidates[0].step_max
    beta1, beta2 = pair or (None, None)
    return Hyper(beta1, beta2, eps.pop() if len(eps) == 1 else None, step, any(g.varied for g in candidates))


def _pairwise(found: Survey, applied: Applied | None, progress: Progress | None) -> None:
    """Moments of every checkpoint and travels between neighbours; the first's moments with its first travel."""
    rows = _Rows(found)
    previous: _Measurable | None = None
    waiting = False  # whether the moments of the previous one are still to be measured
    paths = [checkpoint.path for checkpoint in found.checkpoints]
    compared = [c for c in found.checkpoints if not weight_copies.lies_beside(c.path, paths)]  # no step leads there
    line = lines([(c.path, c.step) for c in compared])
    compared.sort(key=lambda c: line.get(c.path, ""))  # one training after the other, each in the order of its steps
    for index, checkpoint in enumerate(compared):
        mine = (checkpoint, parameters(checkpoint))
        same = previous is not None and line.get(previous[0].path) == line.get(checkpoint.path)
        if previous is not None and same and _follows(previous, mine):
            before, theirs = previous
            assert before.step is not None
            assert checkpoint.step is not None
            measured = pairs.travels(
                theirs, mine[1], first_step=before.step, step=checkpoint.step, both=waiting,
                applied=_applied(applied, before, checkpoint),
            )  # fmt: skip
            rows.add(checkpoint, measured, before)
            waiting = False
        elif checkpoint.step is None or not mine[1]:
            rows.add(checkpoint, pairs.moments(mine[1]))
            continue
        else:
            if previous is not None and waiting:
                rows.add(previous[0], pairs.moments(previous[1]))
            waiting = True
        previous = mine
        if progress is not None:
            progress("comparing checkpoints", index + 1, len(compared))
    if previous is not None and waiting:
        rows.add(previous[0], pairs.moments(previous[1]))
    found.tables["moments"] = frame("moments", rows.moments)
    if len(found.checkpoints) > 1:
        found.tables["travels"] = frame("travels", rows.travels)


@dataclass(slots=True)
class _Rows:
    """Rows of moments and travels; what could not be measured goes to the survey's notices."""

    found: Survey
    moments: list[dict[str, Any]] = field(default_factory=list)
    travels: list[dict[str, Any]] = field(default_factory=list)

    def add(self, checkpoint: Checkpoint, measured: pairs.Measured, before: Checkpoint | None = None) -> None:
        """Add what was measured of a checkpoint, and of the one before it in the same pass."""
        for of, part in ((before, measured.earlier), (checkpoint, measured.moments)):
            if of is not None:
                self.moments += [{"checkpoint": of.path, "step": of.step, **_fields(row)} for row in part]
        self.travels += [{"checkpoint": checkpoint.path, **_fields(row)} for row in measured.travels]
        self.found.notices += [
            Notice(checkpoint.path, None, f"{one.name}: moments or travel not measured: {one.reason}")
            for one in measured.skipped
        ]


_Measurable: TypeAlias = tuple[Checkpoint, list[pairs.Parameter]]


def _follows(previous: _Measurable, following: _Measurable) -> bool:
    """Whether two checkpoints are of one model at two steps."""
    (before, theirs), (checkpoint, mine) = previous, following
    if before.step is None or checkpoint.step is None or before.step >= checkpoint.step:
        return False
    return bool({p.name for p in theirs} & {p.name for p in mine})


def _applied(applied: Applied | None, before: Checkpoint, checkpoint: Checkpoint) -> dict[str, pairs.Applied] | None:
    if applied is None or before.step is None or checkpoint.step is None:
        return None
    found: dict[str, pairs.Applied] = {}
    for group in checkpoint.groups:
        said = applied(before.step, checkpoint.step, group)
        if said is not None:
            found.update({_label(name, group.rank): said for name in group.names})
    return found


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}
