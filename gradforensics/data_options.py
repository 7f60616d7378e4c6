"""The options of `gradforensics analyze` that speak of training data, for cli.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
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
)


def data_options(function: F) -> F:
    """Give a command the options on training data, in their order."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
