"""The argument and the options of `gradforensics replay`, for cli.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from gradforensics.questions import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("run", metavar="RUN_DIR", type=click.Path()),
    click.option("--step", type=click.IntRange(min=0), help="The optimizer step (default: that of the only capsule)."),
    click.option(
        "--from",
        "checkpoint",
        type=click.Path(),
        metavar="CHECKPOINT",
        help="Start from this checkpoint and roll forward (default: a capsule of the step, else the last before it).",
    ),
    click.option(
        "--experiment",
        "experiments",
        multiple=True,
        type=click.Choice(list(QUESTIONS)),
        help="Run these only. Repeatable.",
    ),
    click.option(
        "--program",
        metavar="FILE.py:FUNCTION",
        help="Your code that builds model and loss; it runs in a child process.",
    ),
    click.option("--fix", metavar="FILE.py:FUNCTION", help="The same with a fix: is the failure gone with it?"),
    click.option("--trust-run-code", is_flag=True, help="Run the program that a capsule brings along."),
    click.option(
        "--batch",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="The batch for a checkpoint: input_ids, labels, attention_mask as JSON, JSON lines or safetensors.",
    ),
    click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Whose capsules to take."),
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to run."
    ),
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        default=600.0,
        show_default=True,
        metavar="S",
        help="Seconds that one experiment may take.",
    ),
    click.option(
        "--memory-limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GB",
        help="Memory that the child may take, and with it of a GPU (default: 80 % of what is available).",
    ),
    click.option(
        "--budget",
        type=click.FloatRange(min=0),
        metavar="STEPS",
        help="Leave out experiments that do not fit into so many steps.",
    ),
    click.option("--runs", type=click.IntRange(min=2), default=3, show_default=True, help="How often to reproduce."),
    click.option(
        "-o",
        "output",
        type=click.Path(),
        help="The replay directory (default: gradforensics-replay-<run>-<step> here); it replaces an earlier one.",
    ),
    click.option("--force", is_flag=True, help="Write into a folder that no replay wrote."),
)


def replay_options(function: F) -> F:
    """Give a command the argument and the options of `replay`, in their order."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
