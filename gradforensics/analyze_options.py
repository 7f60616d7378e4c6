"""The options of `gradforensics analyze`, for cli.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from gradforensics.language_option import language_option

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

DEFAULT_OUTPUT = "gradforensics-report.html"
DEFAULT_IGNORES = "gradforensics-ignore.toml"

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "-o",
        "output",
        type=click.Path(dir_okay=False),
        help=f"HTML report (default: {DEFAULT_OUTPUT} in the current folder).",
    ),
    click.option(
        "--output",
        "outputs",
        multiple=True,
        metavar="FORMAT=PATH",
        help="Another output: html, json, md (for issues and chats), sarif or junit; '-' is stdout. Repeatable.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="A fact that the files lack (vocab_size=32000). Repeatable.",
    ),
    click.option(
        "--map",
        "columns",
        multiple=True,
        metavar="COLUMN=SERIES",
        help="What a column means (objective=loss). Repeatable.",
    ),
    click.option(
        "--with",
        "replayed",
        multiple=True,
        metavar="REPLAY_DIR",
        help="What a replay of a step of the run found (gradforensics replay). Repeatable.",
    ),
    click.option(
        "--data",
        "data",
        multiple=True,
        metavar="FILE",
        help="Training data to audit: JSON lines, a JSON array, CSV, Parquet or Arrow, also .gz. Repeatable.",
    ),
    click.option(
        "--tokenizer",
        metavar="tokenizer.json",
        help="Encode the texts of the data with it, to audit ids and lengths in tokens (needs the library tokenizers).",
    ),
    click.option(
        "--baseline",
        type=click.Path(),
        metavar="RUN_DIR",
        help="A healthy run of the same task to compare with: levels, rates and settings are judged beside its own.",
    ),
    click.option(
        "--rules",
        "rules_folder",
        type=click.Path(file_okay=False),
        help="Use the rule files below this folder instead of the catalogue.",
    ),
    click.option(
        "--ignore",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help=f"Findings to ignore, each with its reason (default: {DEFAULT_IGNORES} in the current folder, if there is "
        "one; never one in the run directory). They are shown, but fail nothing.",
    ),
    click.option(
        "--fail-on",
        type=click.Choice(["S1", "S2", "S3", "S4"]),
        default="S2",
        show_default=True,
        help="Exit with 1 at this severity or graver.",
    ),
    language_option,
    click.option("--no-tensors", is_flag=True, help="List the tensors of checkpoints, but do not read them."),
    click.option(
        "--names-from-config",
        is_flag=True,
        help="Ask transformers, in a child process, what the parameters that config.json describes are called.",
    ),
    click.option(
        "--redact",
        is_flag=True,
        help="Leave host names, user names, folders of paths and e-mail addresses out of all outputs.",
    ),
    click.option("--force", is_flag=True, help="Overwrite outputs that gradforensics did not write."),
)


def analyze_options(function: F) -> F:
    """Give a command the options of `analyze`, in their order."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
