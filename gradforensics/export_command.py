"""gradforensics export: the canonical tables of a run directory as Parquet, for analyses of one's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from gradforensics.command_support import inputs_of, pair, show
from gradforensics.errors import OutputError
from gradforensics.language_option import language_option
from gradforensics.progress_bar import Bar

if TYPE_CHECKING:
    from pathlib import Path

    from gradforensics.languages import Language
    from gradforensics.tables import Evidence

EPILOG = "Exit codes: 0 exported; 2 usage error; 3 internal error; 4 no readable training evidence."


class _Table(NamedTuple):
    """A table that was written; size in bytes of the file."""

    name: str
    rows: int
    columns: int
    size: int


@click.command(epilog=EPILOG)
@click.argument("paths", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--to", "target", required=True, metavar="DIR", help="The folder for the tables; made where it does not exist."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A fact that the files lack (vocab_size=32000). Repeatable.",
)
@click.option(
    "--map",
    "columns",
    multiple=True,
    metavar="COLUMN=SERIES",
    help="What a column means (objective=loss). Repeatable.",
)
@click.option(
    "--with",
    "replayed",
    multiple=True,
    metavar="REPLAY_DIR",
    help="What a replay of a step of the run found: the table experiments. Repeatable.",
)
@click.option(
    "--data", "data", multiple=True, metavar="FILE", help="Training data to audit: the table data. Repeatable."
)
@click.option("--no-tensors", is_flag=True, help="List the tensors of checkpoints, but do not read them.")
@language_option
@click.option("--force", is_flag=True, help="Overwrite tables that gradforensics did not write.")
def export(
    paths: Sequence[str],
    target: str,
    settings: Sequence[str],
    columns: Sequence[str],
    replayed: Sequence[str],
    data: Sequence[str],
    no_tensors: bool,
    language: Language,
    force: bool,
) -> int:
    """Write everything that was read from RUN_DIR as Parquet: one file for each table, all runs told apart by `run`.

    Nothing is judged, and nothing is written into RUN_DIR. Tables of an earlier export into the same folder are
    replaced; those that this one does not have are removed.
    """
    from gradforensics.evidence.gather import gather
    from gradforensics.report.targets import folder

    inputs = inputs_of(paths)
    (named,) = inputs_of([target])
    place = folder(inputs, str(named), target)
    facts, mapped = dict(pair(s, "--set") for s in settings), dict(pair(c, "--map") for c in columns)
    _check(place, force=force)
    with Bar(language) as bar:
        found = gather(
            inputs,
            settings=facts,
            columns=mapped,
            tensors=not no_tensors,
            replayed=inputs_of(replayed),
            data=inputs_of(data),
            progress=bar,
        )
    written, absent = _write(found, place, force=force)
    show(partial(_summary, written, absent, runs=len(found), folder=str(place), language=language), sys.stdout)
    return 0


def _check(folder: Path, *, force: bool) -> None:
    """Raise OutputError where a table could not be written, before anything is read."""
    from gradforensics.report.canonical import NAMES
    from gradforensics.report.write import check

    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is no folder")
    try:
        for name in NAMES:
            check(_path(folder, name), force=force)
    except OSError as error:
        raise OutputError(f"{error.filename or folder}: {error.strerror or error}") from error


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.parquet"


def _write(found: Sequence[Evidence], folder: Path, *, force: bool) -> tuple[list[_Table], list[str]]:
    """Write every table; those written, and the names of those that are not available."""
    from gradforensics.report.canonical import as_parquet, frames
    from gradforensics.report.write import write

    written: list[_Table] = []
    contents: dict[str, bytes | None] = {}
    for name, frame in frames(found):
        content = contents[name] = None if frame is None else as_parquet(frame)
        if frame is not None and content is not None:
            written.append(_Table(name, frame.height, frame.width, len(content)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            if content is None:
                _path(folder, name).unlink(missing_ok=True)  # of an earlier export; _check has seen that it is ours
            else:
                write(_path(folder, name), content, force=force)
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}") from error
    return written, [name for name, content in contents.items() if content is None]


def _summary(
    written: Sequence[_Table],
    absent: Sequence[str],
    *,
    runs: int,
    folder: str,
    language: Language,
    color: bool,
    width: int,
) -> str:
    from gradforensics.report.pen import Column, Pen, flat
    from gradforensics.report.words import Words

    words = Words(language)
    pen = Pen(color=color, width=width, words=words)
    heads = (Column(words("table")), *(Column(words(key), 1) for key in ("rows", "columns", "bytes")))
    pen.table(heads, [(t.name, f"{t.rows:,}", str(t.columns), f"{t.size:,}") for t in written])
    if absent:
        pen.row(words("t_absent"), ", ".join(absent))
    told = words("exported", tables=words.count("tables_n", len(written)), runs=words.count("runs_n", runs))
    pen.lines.append(f"{told} {flat(folder)}")
    return pen.text()
