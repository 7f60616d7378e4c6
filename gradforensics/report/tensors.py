"""The checkpoints of `gradforensics scan` on a terminal: what each holds, and its tensors, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradforensics.languages import Language
from gradforensics.report.messages import message
from gradforensics.report.pen import Cell, Column, Pen, flat
from gradforensics.report.words import Words, compact, magnitude, share, shorten

if TYPE_CHECKING:
    import polars as pl

    from gradforensics.checkpoints.measure import Survey
    from gradforensics.checkpoints.model import Call, Checkpoint, Group
    from gradforensics.notices import Notice

# How many of each kind are shown; the JSON output has them all.
GROUPS, NOTICES, CALLS, IMPORTS = 6, 12, 12, 4
_HEADS = (
    Column("h_name", numeric=False), Column("h_role", 18, numeric=False), Column("h_dtype", 4, numeric=False),
    Column("h_shape", 5, numeric=False),
)  # fmt: skip
_NUMBERS = (
    Column("h_nan", 20), Column("h_inf", 19), Column("h_zero", 8), Column("h_min", 7), Column("h_max", 9),
    Column("h_mean", 1), Column("h_std", 2),
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
    scanned: Sequence[Scanned],
    notices: Sequence[Notice],
    *,
    language: Language,
    color: bool,
    width: int,
    written: Sequence[str] = (),
) -> str:
    """The text, ending in a newline. notices: on files of no checkpoint; written: where the outputs lie."""
    pen = Pen(color=color, width=width, words=Words(language))
    for one in scanned:
        _checkpoint(pen, one)
        pen.lines.append("")
    if len(scanned) > 1:
        _overview(pen, scanned)
        pen.lines.append("")
    _notices(pen, notices)
    pen.lines.append(_tally(pen, scanned))
    pen.lines += [flat(pen.words("written", path=path)) for path in written]
    return pen.text()


def _checkpoint(pen: Pen, one: Scanned) -> None:
    checkpoint, words = one.checkpoint, pen.words
    pen.lines.append(f"{pen.paint(flat(checkpoint.path), 'bold')} ({_headline(words, checkpoint)})")
    roles = Counter(t.role for t in checkpoint.tensors)
    parameters = sum(t.ref.count for t in checkpoint.tensors if t.role == "param")
    kinds = f" ({', '.join(f'{n} {role}' for role, n in roles.items())})" if roles else ""
    told = [f"{words.count('c_tensors', one.total)}{kinds}"]
    told += [words.count("c_parameters", parameters)] if parameters else []
    told.append(words("size_in", size=magnitude(checkpoint.bytes), files=words.count("c_files", len(checkpoint.files))))
    pen.row(words("holds"), ", ".join(told))
    if checkpoint.naming is not None:
        how = message(checkpoint.naming.how).in_(words.language)
        pen.row(words("state_names"), f"{words(f'sure_{checkpoint.naming.sure}')}: {how}")
    for group in checkpoint.groups[:GROUPS]:
        pen.row(words("c_group", n=group.group), describe_group(words, group))
    _more(pen, len(checkpoint.groups) - GROUPS, "more_group")
    calls(pen, checkpoint.calls)
    _notices(pen, checkpoint.notices)
    if one.rows:
        _tensors(pen, one)


def _notices(pen: Pen, notices: Sequence[Notice]) -> None:
    for notice in notices[:NOTICES]:
        told = message(notice.text).in_(pen.words.language)
        pen.row(pen.words("c_notice"), f"{notice.source}: {shorten(told, 500)}")
    _more(pen, len(notices) - NOTICES, "more_notice")


def step_of(words: Words, checkpoint: Checkpoint) -> str:
    """The step of a checkpoint in words."""
    return words("c_step_unknown") if checkpoint.step is None else words("c_step", n=checkpoint.step)


def _headline(words: Words, checkpoint: Checkpoint) -> str:
    complete = {True: "c_complete", False: "c_damaged", None: "c_unsure"}
    return f"{flat(checkpoint.format)}, {step_of(words, checkpoint)}, {words(complete[checkpoint.complete])}"


def describe_group(words: Words, group: Group) -> str:
    """The settings of a parameter group in one line."""
    told = [group.optimizer or words("optimizer_unknown")]
    if group.lr is not None:
        told.append(words("c_lr", value=compact(group.lr, 6)))
    if group.betas is not None:
        told.append(f"betas {' '.join(compact(v, 6) for v in group.betas)}")
    if group.eps is not None:
        told.append(f"eps {compact(group.eps, 6)}")
    if group.momentum is not None:
        told.append(words("c_momentum", value=compact(group.momentum, 6)))
    if group.weight_decay is not None:
        told.append(words("c_decay", value=compact(group.weight_decay, 6)))
    if group.step_min is not None:
        first, last = group.step_min, group.step_max
        told.append(words("c_step", n=first) if first == last else words("c_step_span", first=first, last=last))
    rank = [] if group.rank is None else [f"rank {group.rank}"]
    return ", ".join([*told, words.count("c_parameters", len(group.names)), *rank])


def calls(pen: Pen, found: Sequence[Call]) -> None:
    """What loading the pickles would have run, the dangerous first; the others in one line."""
    words = pen.words
    dangerous = [call for call in found if call.danger]
    for call in dangerous[:CALLS]:
        text = words("c_would_run", call=would_run(call.name, call.arguments), source=call.file)
        pen.row(words("danger"), text, colour="red")
    _more(pen, len(dangerous) - CALLS, "more_call")
    others = list(dict.fromkeys(call.name for call in found if not call.danger))
    if others:
        names = and_more(words, [shorten(name, 100) for name in others], IMPORTS)
        pen.row(words("imports_head"), words("would_import", names=names))


def and_more(words: Words, names: Sequence[str], limit: int) -> str:
    """The first names, and how many more there are."""
    listed = ", ".join(names[:limit])
    return words("c_names_and_more", names=listed, n=len(names) - limit) if len(names) > limit else listed


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
            "×".join(map(str, row["shape"])) or pen.words("scalar"),
        ]
        rows.append(cells if one.nonfinite is None else [*cells, *_numbers(row)])
    pen.table(named(pen.words, heads), rows)
    if one.total > len(one.rows):
        pen.lines.append(f"  {pen.words('more_tensors', n=one.total - len(one.rows))}")
    if one.nonfinite is not None:
        aside = "bad_aside" if one.nonfinite and not _sick(one) else "hold_bad"
        text = f"  {pen.words(aside, n=one.nonfinite, tensors=pen.words.count('c_tensors', one.total))}"
        pen.lines.append(pen.paint(text, "red" if _sick(one) else "green"))


def named(words: Words, heads: Sequence[Column]) -> list[Column]:
    """The columns with their heads, which are keys of the label table, in words."""
    return [column._replace(head=words(column.head)) for column in heads]


def _numbers(row: Mapping[str, Any]) -> list[Cell]:
    if row["nan"] is None:
        return ["", "", "", "", "", "", ""]
    infinite = row["posinf"] + row["neginf"]
    numbers = row["count"] * (2 if row["dtype"].startswith("complex") else 1)
    bad = [(str(n), "red") if n else "0" for n in (row["nan"], infinite)]
    return [*bad, share(row["zero"], numbers), *(compact(row[key]) for key in ("min", "max", "mean", "std"))]


def _overview(pen: Pen, scanned: Sequence[Scanned]) -> None:
    heads = (
        Column("h_checkpoint", numeric=False),
        Column("h_step", 4),
        Column("h_complete", 3, numeric=False),
        Column("h_tensors", 1),
        Column("h_bad", 5),
    )
    words = pen.words
    complete = {True: words("yes"), False: words("no"), None: "?"}
    rows: list[list[Cell]] = [
        [
            one.checkpoint.path,
            "" if one.checkpoint.step is None else str(one.checkpoint.step),
            complete[one.checkpoint.complete],
            str(one.total),
            _bad(words, one),
        ]
        for one in scanned
    ]
    pen.table(named(words, heads), rows, indent="")


def _bad(words: Words, one: Scanned) -> Cell:
    if one.nonfinite is None:
        return words("c_not_read")
    return (str(one.nonfinite), "red") if _sick(one) else str(one.nonfinite)


def _tally(pen: Pen, scanned: Sequence[Scanned]) -> str:
    words = pen.words
    tensors = words.count("c_tensors", sum(one.total for one in scanned))
    parts = [f"{words.count('c_checkpoints', len(scanned))}, {tensors}"]
    bad, sick = sum(one.nonfinite or 0 for one in scanned), any(map(_sick, scanned))
    danger = sum(call.danger for one in scanned for call in one.checkpoint.calls)
    damaged = sum(one.checkpoint.complete is False for one in scanned)
    if any(one.nonfinite is not None for one in scanned):
        parts.append(words("tally_bad", n=bad))
    if damaged:
        parts.append(words("tally_damaged", checkpoints=words.count("c_checkpoints", damaged)))
    if danger:
        parts.append(words("tally_danger", calls=words.count("dangerous_calls", danger)))
    return pen.paint(", ".join(parts), "red" if sick or danger else "bold")


def _more(pen: Pen, count: int, key: str) -> None:
    if count > 0:
        pen.row("", pen.words.count(key, count))
