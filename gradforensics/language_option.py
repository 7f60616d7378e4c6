"""The option --lang of the commands that show something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from gradforensics.languages import LANGUAGES

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

VARIABLE = "GRADFORENSICS_LANG"


def language_option(function: F) -> F:
    """Give a command --lang; without it the environment variable GRADFORENSICS_LANG decides, else it is English."""
    option: Callable[[F], F] = click.option(
        "--lang",
        "language",
        type=click.Choice(LANGUAGES),
        default="en",
        show_default=True,
        envvar=VARIABLE,
        show_envvar=True,
        help="Language of what is shown and of the report's texts; messages of errors are English.",
    )
    return option(function)
