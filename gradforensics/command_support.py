"""What the commands share: reading their arguments, writing their outputs, printing their summaries."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gradforensics.errors import UsageError
from gradforensics.secrecy import masked, without_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from gradforensics.diagnosis.rules import Rule


def load(folder: str | None) -> list[Rule]:
    """The rules below a folder, or the catalogue."""
    from pathlib import Path

    from gradforensics.diagnosis.rules import load_rules

    return load_rules(Path(folder) if folder else None)


def pair(text: str, option: str) -> tuple[str, str]:
    """NAME and VALUE of an option that is written NAME=VALUE. Raises UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} {text!r}: write {option} NAME=VALUE")
    return key.strip(), value.strip()


def inputs_of(paths: Sequence[str]) -> list[Path]:
    """The paths that the user named. Raises UsageError for an empty one."""
    from pathlib import Path

    if not all(p.strip() for p in paths):
        raise UsageError("a PATH is empty (an unset variable?)")
    return [Path(p) for p in paths]


def wanted_of(outputs: Sequence[str]) -> list[tuple[str, str]]:
    """(format, place) of every --output. Raises UsageError."""
    return [pair(text, "--output") for text in outputs]


def again(context: click.Context, without: Collection[str]) -> list[str]:
    """The name of the command that runs and its options as they were given, without those `without`."""
    given = [str(context.command.name)]
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if not isinstance(option, click.Option) or option.name in without or source != ParameterSource.COMMANDLINE:
            continue
        value = context.params[str(option.name)]
        for one in value if option.multiple else [value]:
            given += [option.opts[-1]] if option.is_flag else [option.opts[-1], str(one)]
    return given


def deliver(
    rendered: Sequence[tuple[Path | None, str | bytes]],
    summary: Callable[..., str],
    *,
    force: bool,
) -> None:
    """Write everything, then print the summary (to stderr where stdout carries an output).

    rendered: (path, content), None for stdout. summary: called with color, width and written.
    """
    from gradforensics.report.write import write

    written: list[str] = []
    for path, content in rendered:
        if path is not None:
            write(path, without_keys(content) if isinstance(content, str) else content, force=force)
            written.append(str(path))
    piped = next((content for path, content in rendered if path is None), None)
    if piped is not None:
        click.echo(without_keys(piped) if isinstance(piped, str) else piped, nl=False)
    show(partial(summary, written=written), sys.stderr if piped is not None else sys.stdout)


def show(summary: Callable[..., str], stream: Any) -> None:
    """Print a summary, which is called with color and width."""
    import shutil

    color = stream.isatty() and "NO_COLOR" not in os.environ
    text = summary(color=color, width=shutil.get_terminal_size((100, 24)).columns)
    click.echo(without_keys(text), file=stream, nl=False, color=color)


def harmless(text: str) -> str:
    """Without control characters and keys: a message may quote the evidence, which must not steer the terminal."""
    from gradforensics.evidence.discover import printable

    return "".join(one if one.isprintable() or one == "\n" else printable(one) for one in masked(text))
