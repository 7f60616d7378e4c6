"""What `gradforensics diff` shows: the terminal text, and JSON, schema version 1 (diff.schema.json)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gradforensics import __version__
from gradforensics.checkpoints.compare import Change, Difference, Same, label
from gradforensics.report.as_json import plain, text_of
from gradforensics.report.pen import Cell, Column, Pen, flat
from gradforensics.report.words import Words, compact, counted, share, shorten

if TYPE_CHECKING:
    from gradforensics.checkpoints.model import Checkpoint, Tensor
    from gradforensics.checkpoints.pairs import Travel

SCHEMA = 1
NAMES, NOTICES, CHANGES = 8, 8, 20  # how many of each kind the terminal shows; the JSON output has them all
_HEADS = (
    Column("parameter", numeric=False), Column("changed", 9), Column("rel. travel", 0), Column("ratio mean", 6),
    Column("ratio std", 5),
)  # fmt: skip
_RECOVERED = (Column("lr", 8), Column("± lr", 2), Column("weight decay", 7), Column("± wd", 1))


# -- terminal ---------------------------------------------------------------------------------------------------------


def render(found: Difference, *, limit: int, color: bool, width: int, written: Sequence[str] = ()) -> str:
    """The text, ending in a newline. limit: of rows, 0 means all; written: where the outputs lie."""
    pen = Pen(color=color, width=width, words=Words("en"))
    _checkpoint(pen, "older" if found.ordered else "first", found.older)
    _checkpoint(pen, "newer" if found.ordered else "second", found.newer)
    if not found.ordered:
        pen.row("order", "their steps do not tell which one is older: compared in the order in which they were named")
    pen.lines.append("")
    _tensors(pen, "appeared", found.appeared)
    _tensors(pen, "vanished", found.vanished)
    told = [f"{label(new)}: {_kind(old)} → {_kind(new)}" for old, new in found.reshaped]
    _names(pen, "reshaped", told, "another shape or type: ")
    for what, changes in (("group", found.groups), ("fact", found.facts), ("setting", found.settings)):
        _changes(pen, what, changes)
    _parameters(pen, found, limit)
    for same in found.others:
        _split(pen, same)
    for skipped in found.skipped[:NOTICES]:
        pen.row("not compared", f"{skipped.name}: {skipped.reason}")
    _more(pen, len(found.skipped) - NOTICES)
    pen.lines.append(_tally(pen, found))
    pen.lines += [flat(f"Written: {path}") for path in written]
    return pen.text()


def _checkpoint(pen: Pen, what: str, checkpoint: Checkpoint) -> None:
    step = "step unknown" if checkpoint.step is None else f"step {checkpoint.step}"
    complete = ", incomplete or damaged" if checkpoint.complete is False else ""
    tensors = counted(len(checkpoint.tensors), "tensor")
    path = pen.paint(flat(checkpoint.path), "bold")
    pen.lines.append(f"{what}: {path} ({flat(checkpoint.format)}, {step}, {tensors}{complete})")
    for notice in checkpoint.notices[:NOTICES]:
        pen.row("notice", f"{notice.source}: {shorten(notice.text, 300)}")
    _more(pen, len(checkpoint.notices) - NOTICES)


def _tensors(pen: Pen, what: str, tensors: Sequence[Tensor]) -> None:
    _names(pen, what, [label(tensor) for tensor in tensors], counted(len(tensors), "tensor"))


def _names(pen: Pen, what: str, names: Sequence[str], told: str) -> None:
    """One line with the first names; nothing where there are none."""
    if names:
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        between = "" if told.endswith(" ") else ": "
        pen.row(what, f"{told}{between}{', '.join(shorten(name, 120) for name in names[:NAMES])}{more}")


def _split(pen: Pen, same: Same) -> None:
    """How many tensors of a role changed, with the names of the fewer."""
    total = len(same.identical) + len(same.changed)
    if not same.identical or not same.changed:
        pen.row(same.role, f"all {total} changed" if same.changed else f"all {total} identical")
    elif len(same.identical) <= len(same.changed):
        _names(pen, same.role, same.identical, f"{len(same.changed)} of {total} changed; identical")
    else:
        _names(pen, same.role, same.changed, f"{len(same.identical)} of {total} identical; changed")


def _changes(pen: Pen, what: str, changes: Sequence[Change]) -> None:
    for change in changes[:CHANGES]:
        head = "" if change.what.startswith("group ") else f"{what} "
        pen.row("changed", f"{head}{change.what}: {_value(change.before)} → {_value(change.after)}")
    _more(pen, len(changes) - CHANGES)


def _value(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, float):
        return compact(value, 6)
    if isinstance(value, list | tuple):
        return shorten(f"[{', '.join('none' if item is None else _value(item) for item in value)}]", 120)
    return shorten(json.dumps(plain(value), ensure_ascii=False), 120)


def _kind(tensor: Tensor) -> str:
    return f"{tensor.ref.dtype} {list(tensor.ref.shape)}"


def _parameters(pen: Pen, found: Difference, limit: int) -> None:
    if found.moved:
        recovered = any(travel.recovered_lr is not None for travel in found.moved)
        shown = found.moved[:limit] if limit else found.moved
        bad = any(travel.nonfinite for travel in found.moved)
        heads = (*_HEADS, *(_RECOVERED if recovered else ()), *((Column("non-finite", 10),) if bad else ()))
        pen.table(heads, [_row(travel, recovered=recovered, bad=bad) for travel in shown])
        if len(shown) < len(found.moved):
            pen.lines.append(f"  {len(found.moved) - len(shown)} more parameters changed: --limit 0 shows all")
    total = len(found.moved) + len(found.identical)
    _names(pen, "identical", found.identical, f"{len(found.identical)} of {total} parameters are bit-identical")


def _row(travel: Travel, *, recovered: bool, bad: bool) -> list[Cell]:
    cells: list[Cell] = [
        travel.name,
        share(round(travel.changed * travel.count), travel.count),
        compact(travel.rel_travel),
        compact(travel.ratio_mean, 6),
        compact(travel.ratio_std),
    ]
    if recovered:
        cells += [compact(travel.recovered_lr, 4), compact(travel.lr_error, 1)]
        cells += [compact(travel.recovered_wd, 4), compact(travel.wd_error, 1)]
    if bad:
        cells.append((str(travel.nonfinite), "red") if travel.nonfinite else "0")
    return cells


def _more(pen: Pen, count: int) -> None:
    if count > 0:
        pen.row("", f"{count} more in the JSON output")


def _tally(pen: Pen, found: Difference) -> str:
    parts = [f"{counted(len(found.moved), 'parameter')} changed, {len(found.identical)} bit-identical"]
    parts += [
        f"{len(those)} {what}"
        for what, those in (("appeared", found.appeared), ("vanished", found.vanished), ("reshaped", found.reshaped))
        if those
    ]
    return pen.paint(", ".join(parts), "bold")


# -- JSON -------------------------------------------------------------------------------------------------------------


def render_json(found: Difference) -> str:
    """The difference as JSON text. Additions keep the version."""
    return text_of(data(found))


def data(found: Difference) -> dict[str, Any]:
    """The difference as plain lists, dictionaries, strings and numbers."""
    return {
        "schema": SCHEMA,
        "tool": f"gradforensics {__version__}",
        "command": "diff",
        "ordered": found.ordered,
        "older": _checkpoint_data(found.older),
        "newer": _checkpoint_data(found.newer),
        "moved": [_travel_data(travel) for travel in found.moved],
        "identical": list(found.identical),
        "others": [asdict(same) for same in found.others],
        "appeared": [_tensor_data(tensor) for tensor in found.appeared],
        "vanished": [_tensor_data(tensor) for tensor in found.vanished],
        "reshaped": [{"before": _tensor_data(old), "after": _tensor_data(new)} for old, new in found.reshaped],
        **{
            name: [plain(change._asdict()) for change in getattr(found, name)]
            for name in ("groups", "facts", "settings")
        },
        "skipped": [asdict(skipped) for skipped in found.skipped],
    }


def _checkpoint_data(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "path": checkpoint.path, "format": checkpoint.format, "step": checkpoint.step, "complete": checkpoint.complete,
        "bytes": checkpoint.bytes, "files": checkpoint.files, "tensors": len(checkpoint.tensors),
        "notices": [asdict(notice) for notice in checkpoint.notices],
    }  # fmt: skip


def _travel_data(travel: Travel) -> dict[str, Any]:
    row: dict[str, Any] = plain(asdict(travel))
    return {key: value for key, value in row.items() if key not in ("first_step", "step")}


def _tensor_data(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name, "rank": tensor.rank, "role": tensor.role, "dtype": tensor.ref.dtype,
        "shape": list(tensor.ref.shape), "key": tensor.key, "source": tensor.file,
    }  # fmt: skip


FORMATS: Mapping[str, Callable[[Difference], str]] = {"json": render_json}
"""Name of an output format -> what renders a difference in it."""
