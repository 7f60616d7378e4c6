"""The checkpoints of `gradforensics scan` on a terminal: what each holds, and its tensors, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradforensics.report.pen import Cell, Column, Pen, flat
from gradforensics.report.words import Words, compact, counted, magnitude, share, shorten

if TYPE_CHECKING:
    import polars as pl

    from gradforensics.checkpoints.measure import Survey
    from gradforensics.checkpoints.model import Call, Checkpoint, Group
    from gradforensics.notices import Notice

# How many of each kind are shown; the JSON output has them all.
GROUPS, NOTICES, CALLS, IMPORTS = 6, 12, 12, 4
_HEADS = (
    Column("name", numeric=False), Column("role", 18, numeric=False), Column("dtype", 4, numeric=False),
    Column("shape", 5, numeric=False),
)  # fmt: skip
_NUMBERS = (
    Column("nan", 20), Column("inf", 19), Column("zero", 8), Column("min", 7), Column("max", 9), Column("mean", 1),
    Column("std", 2),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scanned:
    """One checkpoint and the first `rows` of its `total` tensors.

    nonfinite: how many hold NaN or infinity, None where they were not read; roles: theirs.
    """

    checkpoint: Checkpoint
    rows: Sequence[Mapping[str, Any]]
    total: int
    nonfinite: int | None = None
    roles: frozenset[str] = frozenset()


def _sick(one: Scanned) -> bool:
    """Whether a tensor of the model or of its optimizer holds NaN or infinity."""
    return bool(one.roles - {"other", "grad"})


HAS: Mapping[str, Callable[[Scanned], bool]] = {
    "nonfinite": _sick,
    "damaged": lambda one: one.checkpoint.complete is False,
    "dangerous": lambda one: any(call.danger for call in one.checkpoint.calls),
}
"""What --fail-on names -> whether a checkpoint has it."""


def listed(checkpoints: Iterable[Checkpoint], limit: int) -> list[Scanned]:
    """The tensors of each checkpoint in the order of its files, none of them read. limit: 0 means all."""
    return [
        Scanned(
            checkpoint,
            [
                {
                    "name": t.name,
                    "rank": t.rank,
                    "role": t.role,
                    "dtype": t.ref.dtype,
                    "shape": t.ref.shape,
                    "key": t.key,
                }
                for t in checkpoint.tensors[: limit or None]
            ],
            len(checkpoint.tensors),
        )
        for checkpoint in checkpoints
    ]


def measured(found: Survey, limit: int) -> list[Scanned]:
    """The tensors of each checkpoint of a survey, the worst first. limit: 0 means all."""
    tensors, at = found.tables["tensors"], 0
    scanned = []
    for checkpoint in found.checkpoints:
        mine = tensors.slice(at, len(checkpoint.tensors))
        at += len(checkpoint.tensors)
        bad = mine.filter(mine["nan"] + mine["posinf"] + mine["neginf"] > 0)
        worst = worst_first(mine)
        rows = (worst.head(limit) if limit else worst).to_dicts()
        scanned.append(Scanned(checkpoint, rows, mine.height, bad.height, frozenset(bad["role"])))
    return scanned


def worst_first(tensors: pl.DataFrame) -> pl.DataFrame:
    """Rows of the table of tensors in the order in which to look at them.

    Those with NaN or infinities (most of them first), those that are all zero, those with subnormal numbers (by their
    share), then by max|w| / RMS, of second moments by sqrt(max / mean), which is that of gradients. What is no part of
    the model or its optimizer follows what is, with NaN or without; what was not measured stands at the end.
    """
    import polars as pl  # noqa: PLC0415  a mere list of tensors does not wait for it

    bad = (pl.col("nan") + pl.col("posinf") + pl.col("neginf")).fill_null(0)
    own = pl.col("role") != "other"
    peak = pl.max_horizontal(pl.col("min").abs(), pl.col("max").abs())
    rms = (pl.col("mean") ** 2 + pl.col("std") ** 2).sqrt()
    squared = pl.col("role").is_in(["exp_avg_sq", "max_exp_avg_sq"]) & (pl.col("mean") > 0)
    kind = (
        pl.when(bad > 0).then(pl.when(own).then(0).otherwise(1))
        .when(~own | pl.col("nan").is_null() | (pl.col("count") == 0)).then(5)
        .when((pl.col("min") == 0) & (pl.col("max") == 0)).then(2)
        .when(pl.col("subnormal") > 0).then(3)
        .otherwise(4)
    )  # fmt: skip
    within = (
        pl.when(kind < 2).then(bad.cast(pl.Float64))
        .when(kind == 3).then(pl.col("subnormal") / pl.col("count"))
        .when((kind == 4) & squared).then((peak / pl.col("mean")).sqrt())
        .when((kind == 4) & (rms > 0)).then(peak / rms)
        .otherwise(0.0)
    )  # fmt: skip
    return tensors.sort(kind, -within, maintain_order=True)


def render(
    scanned: Sequence[Scanned], notices: Sequence[Notice], *, color: bool, width: int, written: Sequence[str] = ()
) -> str:
    """The text, ending in a newline. notices: on files of no checkpoint; written: where the outputs lie."""
    pen = Pen(color=color, width=width, words=Words("en"))
    for one in scanned:
        _checkpoint(pen, one)
        pen.lines.append("")
    if len(scanned) > 1:
        _overview(pen, scanned)
        pen.lines.append("")
    for notice in notices[:NOTICES]:
        pen.row("notice", f"{notice.source}: {shorten(notice.text, 500)}")
    _more(pen, len(notices) - NOTICES, "notice")
    pen.lines.append(_tally(pen, scanned))
    pen.lines += [flat(f"Written: {path}") for path in written]
    return pen.text()


def _checkpoint(pen: Pen, one: Scanned) -> None:
    checkpoint = one.checkpoint
    pen.lines.append(f"{pen.paint(flat(checkpoint.path), 'bold')} ({_headline(checkpoint)})")
    roles = Counter(t.role for t in checkpoint.tensors)
    parameters = sum(t.ref.count for t in checkpoint.tensors if t.role == "param")
    kinds = f" ({', '.join(f'{n} {role}' for role, n in roles.items())})" if roles else ""
    size = f"{magnitude(checkpoint.bytes)}B in {counted(len(checkpoint.files), 'file')}"
    told = [f"{counted(one.total, 'tensor')}{kinds}", *([counted(parameters, "parameter")] if parameters else []), size]
    pen.row("holds", ", ".join(told))
    if checkpoint.naming is not None:
        pen.row("names", f"{checkpoint.naming.sure}: {checkpoint.naming.how}")
    for group in checkpoint.groups[:GROUPS]:
        pen.row(f"group {group.group}", describe_group(group))
    _more(pen, len(checkpoint.groups) - GROUPS, "group")
    calls(pen, checkpoint.calls)
    for notice in checkpoint.notices[:NOTICES]:
        pen.row("notice", f"{notice.source}: {shorten(notice.text, 500)}")
    _more(pen, len(checkpoint.notices) - NOTICES, "notice")
    if one.rows:
        _tensors(pen, one)


def _headline(checkpoint: Checkpoint) -> str:
    complete = {True: "complete", False: "incomplete or damaged", None: "completeness unknown"}
    step = "step unknown" if checkpoint.step is None else f"step {checkpoint.step}"
    return f"{flat(checkpoint.format)}, {step}, {complete[checkpoint.complete]}"


def describe_group(group: Group) -> str:
    """The settings of a parameter group in one line."""
    told = [group.optimizer or "optimizer unknown"]
    given = (("lr", group.lr), ("betas", group.betas), ("eps", group.eps), ("momentum", group.momentum))
    for name, value in (*given, ("weight decay", group.weight_decay)):
        if value is not None:
            shown = " ".join(compact(v, 6) for v in value) if isinstance(value, tuple) else compact(value, 6)
            told.append(f"{name} {shown}")
    if group.step_min is not None:
        last = "" if group.step_max == group.step_min else f" to {group.step_max}"
        told.append(f"step {group.step_min}{last}")
    rank = [] if group.rank is None else [f"rank {group.rank}"]
    return ", ".join([*told, counted(len(group.names), "parameter"), *rank])


def calls(pen: Pen, found: Sequence[Call]) -> None:
    """What loading the pickles would have run, the dangerous first; the others in one line."""
    dangerous = [call for call in found if call.danger]
    for call in dangerous[:CALLS]:
        text = f"would run {would_run(call.name, call.arguments)} when {call.file} is unpickled; nothing was run here"
        pen.row("DANGER", text, colour="red")
    _more(pen, len(dangerous) - CALLS, "dangerous call")
    others = list(dict.fromkeys(call.name for call in found if not call.danger))
    if others:
        more = f" and {len(others) - IMPORTS} more" if len(others) > IMPORTS else ""
        pen.row("imports", f"unpickling would import {', '.join(shorten(n, 100) for n in others[:IMPORTS])}{more}")


def would_run(name: str, arguments: str) -> str:
    """A call as text, such as posix.system('id')."""
    inner = arguments.removeprefix("(").removesuffix(")")
    return f"{shorten(name, 200)}({shorten(inner, 200)})"


def _tensors(pen: Pen, one: Scanned) -> None:
    heads = _HEADS if one.nonfinite is None else (*_HEADS, *_NUMBERS)
    rows: list[list[Cell]] = []
    for row in one.rows:
        rank = "" if row["rank"] is None else f"@{row['rank']}"
        of = f" {row['key'].rpartition('.')[2]}" if row["role"] == "state" and row["name"] != row["key"] else ""
        cells: list[Cell] = [
            f"{row['name']}{rank}",
            row["role"] + of,
            row["dtype"],
            "×".join(map(str, row["shape"])) or "scalar",
        ]
        rows.append(cells if one.nonfinite is None else [*cells, *_numbers(row)])
    pen.table(heads, rows)
    if one.total > len(one.rows):
        pen.lines.append(f"  {one.total - len(one.rows)} more tensors: --limit 0 shows all")
    if one.nonfinite is not None:
        aside = ", none of them of the model or its optimizer" if one.nonfinite and not _sick(one) else ""
        text = f"  {one.nonfinite} of {counted(one.total, 'tensor')} hold NaN or infinity{aside}"
        pen.lines.append(pen.paint(text, "red" if _sick(one) else "green"))


def _numbers(row: Mapping[str, Any]) -> list[Cell]:
    if row["nan"] is None:
        return ["", "", "", "", "", "", ""]
    infinite = row["posinf"] + row["neginf"]
    numbers = row["count"] * (2 if row["dtype"].startswith("complex") else 1)
    bad = [(str(n), "red") if n else "0" for n in (row["nan"], infinite)]
    return [*bad, share(row["zero"], numbers), *(compact(row[key]) for key in ("min", "max", "mean", "std"))]


def _overview(pen: Pen, scanned: Sequence[Scanned]) -> None:
    heads = (
        Column("checkpoint", numeric=False),
        Column("step", 4),
        Column("complete", 3, numeric=False),
        Column("tensors", 1),
        Column("with NaN or infinity", 5),
    )
    complete = {True: "yes", False: "no", None: "?"}
    rows: list[list[Cell]] = [
        [
            one.checkpoint.path,
            "" if one.checkpoint.step is None else str(one.checkpoint.step),
            complete[one.checkpoint.complete],
            str(one.total),
            "not read" if one.nonfinite is None else (str(one.nonfinite), "red") if _sick(one) else str(one.nonfinite),
        ]
        for one in scanned
    ]
    pen.table(heads, rows, indent="")


def _tally(pen: Pen, scanned: Sequence[Scanned]) -> str:
    tensors = counted(sum(one.total for one in scanned), "tensor")
    parts = [f"{counted(len(scanned), 'checkpoint')}, {tensors}"]
    bad, sick = sum(one.nonfinite or 0 for one in scanned), any(map(_sick, scanned))
    danger = sum(call.danger for one in scanned for call in one.checkpoint.calls)
    damaged = sum(one.checkpoint.complete is False for one in scanned)
    if any(one.nonfinite is not None for one in scanned):
        parts.append(f"{bad} with NaN or infinity")
    if damaged:
        parts.append(f"{counted(damaged, 'checkpoint')} incomplete or damaged")
    if danger:
        parts.append(f"{counted(danger, 'dangerous call')} in pickles")
    return pen.paint(", ".join(parts), "red" if sick or danger else "bold")


def _more(pen: Pen, count: int, what: str) -> None:
    if count > 0:
        pen.row("", f"{counted(count, f'more {what}')} in the JSON output")
