"""What `gradforensics diff` shows: the terminal text, and JSON, schema version 1 (diff.schema.json)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gradforensics import __version__
from gradforensics.checkpoints.compare import Change, Difference, Same, label
from gradforensics.languages import Language
from gradforensics.report.as_json import plain, text_of
from gradforensics.report.messages import message
from gradforensics.report.pen import Cell, Column, Pen, flat
from gradforensics.report.tensors import and_more, named, step_of
from gradforensics.report.words import Words, compact, share, shorten

if TYPE_CHECKING:
    from gradforensics.checkpoints.model import Checkpoint, Tensor
    from gradforensics.checkpoints.pairs import Travel

SCHEMA = 1
NAMES, NOTICES, CHANGES = 8, 8, 20  # how many of each kind the terminal shows; the JSON output has them all
_HEADS = (
    Column("h_parameter", numeric=False), Column("h_changed", 9), Column("h_travel", 0), Column("h_ratio_mean", 6),
    Column("h_ratio_std", 5),
)  # fmt: skip
_RECOVERED = (Column("h_lr", 8), Column("h_lr_error", 2), Column("h_decay", 7), Column("h_decay_error", 1))


# -- terminal ---------------------------------------------------------------------------------------------------------


def render(
    found: Difference, *, language: Language, limit: int, color: bool, width: int, written: Sequence[str] = ()
) -> str:
    """The text, ending in a newline. limit: of rows, 0 means all; written: where the outputs lie."""
    pen = Pen(color=color, width=width, words=Words(language))
    words = pen.words
    _checkpoint(pen, words("d_older" if found.ordered else "d_first"), found.older)
    _checkpoint(pen, words("d_newer" if found.ordered else "d_second"), found.newer)
    if not found.ordered:
        pen.row(words("d_order"), words("d_unordered"))
    pen.lines.append("")
    _tensors(pen, "d_appeared", found.appeared)
    _tensors(pen, "d_vanished", found.vanished)
    if found.reshaped:
        told = [shorten(f"{label(new)}: {_kind(old)} → {_kind(new)}", 120) for old, new in found.reshaped]
        pen.row(words("d_reshaped"), words("d_another", names=and_more(words, told, NAMES)))
    for key, changes in (("d_group", found.groups), ("d_fact", found.facts), ("d_setting", found.settings)):
        _changes(pen, key, changes)
    _parameters(pen, found, limit)
    for same in found.others:
        _split(pen, same)
    for skipped in found.skipped[:NOTICES]:
        reason = message(skipped.reason).in_(words.language)
        pen.row(words("d_not_compared"), words("d_listed", what=skipped.name, names=reason))
    _more(pen, len(found.skipped) - NOTICES)
    pen.lines.append(_tally(pen, found))
    pen.lines += [flat(words("written", path=path)) for path in written]
    return pen.text()


def _checkpoint(pen: Pen, what: str, checkpoint: Checkpoint) -> None:
    words = pen.words
    complete = f", {words('c_damaged')}" if checkpoint.complete is False else ""
    tensors = words.count("c_tensors", len(checkpoint.tensors))
    path = pen.paint(flat(checkpoint.path), "bold")
    about = f"({flat(checkpoint.format)}, {step_of(words, checkpoint)}, {tensors}{complete})"
    pen.lines.append(words("d_listed", what=what, names=f"{path} {about}"))
    for notice in checkpoint.notices[:NOTICES]:
        told = message(notice.text).in_(words.language)
        pen.row(words("c_notice"), f"{notice.source}: {shorten(told, 300)}")
    _more(pen, len(checkpoint.notices) - NOTICES)


def _tensors(pen: Pen, key: str, tensors: Sequence[Tensor]) -> None:
    _names(pen, pen.words(key), [label(tensor) for tensor in tensors], pen.words.count("c_tensors", len(tensors)))


def _names(pen: Pen, what: str, names: Sequence[str], told: str) -> None:
    """One line with the first names; nothing where there are none."""
    if names:
        listed = and_more(pen.words, [shorten(name, 120) for name in names], NAMES)
        pen.row(what, pen.words("d_listed", what=told, names=listed))


def _split(pen: Pen, same: Same) -> None:
    """How many tensors of a role changed, with the names of the fewer."""
    words = pen.words
    total = len(same.identical) + len(same.changed)
    if not same.identical or not same.changed:
        pen.row(same.role, words("d_all_changed" if same.changed else "d_all_identical", n=total))
    elif len(same.identical) <= len(same.changed):
        _names(pen, same.role, same.identical, words("d_some_changed", n=len(same.changed), total=total))
    else:
        _names(pen, same.role, same.changed, words("d_some_identical", n=len(same.identical), total=total))


def _changes(pen: Pen, key: str, changes: Sequence[Change]) -> None:
    words = pen.words
    for change in changes[:CHANGES]:
        what = words(key, what=change.what.removeprefix("group "))
        before, after = _value(words, change.before), _value(words, change.after)
        pen.row(words("d_changed"), words("d_change", what=what, before=before, after=after))
    _more(pen, len(changes) - CHANGES)


def _value(words: Words, value: Any) -> str:
    if value is None:
        return words("absent")
    if isinstance(value, float):
        return compact(value, 6)
    if isinstance(value, list | tuple):
        items = (words("none_") if item is None else _value(words, item) for item in value)
        return shorten(f"[{', '.join(items)}]", 120)
    return shorten(json.dumps(plain(value), ensure_ascii=False), 120)


def _kind(tensor: Tensor) -> str:
    return f"{tensor.ref.dtype} {list(tensor.ref.shape)}"


def _parameters(pen: Pen, found: Difference, limit: int) -> None:
    if found.moved:
        recovered = any(travel.recovered_lr is not None for travel in found.moved)
        shown = found.moved[:limit] if limit else found.moved
        bad = any(travel.nonfinite for travel in found.moved)
        heads = (*_HEADS, *(_RECOVERED if recovered else ()), *((Column("h_nonfinite", 10),) if bad else ()))
        pen.table(named(pen.words, heads), [_row(travel, recovered=recovered, bad=bad) for travel in shown])
        if len(shown) < len(found.moved):
            pen.lines.append(f"  {pen.words('d_more_rows', n=len(found.moved) - len(shown))}")
    total = len(found.moved) + len(found.identical)
    told = pen.words("d_bits", n=len(found.identical), total=total)
    _names(pen, pen.words("d_identical"), found.identical, told)


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
        pen.row("", pen.words("d_more", n=count))


def _tally(pen: Pen, found: Difference) -> str:
    words = pen.words
    changed = words.count("c_parameters", len(found.moved))
    parts = [words("d_tally", changed=changed, n=len(found.identical))]
    parts += [
        words(key, n=len(those))
        for key, those in (
            ("d_n_appeared", found.appeared),
            ("d_n_vanished", found.vanished),
            ("d_n_reshaped", found.reshaped),
        )
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
