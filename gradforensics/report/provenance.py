"""When a report was made, by which command and on what."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gradforensics import __version__
from gradforensics.secrecy import without_secrets

_DIGITS = 12  # of seconds since 1970 that a date can have


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a report comes from.

    date: ISO 8601, UTC. command: as a POSIX shell takes it, *** in place of what gives access. again: the same command
    with its options alone, for a path and an output to follow; "" where that is not known.
    """

    date: str
    command: str
    version: str
    python: str
    platform: str
    again: str = ""


def provenance(arguments: Sequence[str], *, options: Sequence[str] | None = None) -> Provenance:
    """The provenance of a report that is made now; arguments: of the program, as they were typed.

    options: those of them that another analysis of the same evidence needs, with the name of the command.
    """
    return Provenance(
        date=_now().isoformat(timespec="seconds").replace("+00:00", "Z"),
        command=_command(arguments),
        version=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        again="" if options is None else _command(options),
    )


def _now() -> datetime:
    """The time, or what SOURCE_DATE_EPOCH says it is: with that, the same evidence gives the same bytes."""
    told = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(told), UTC) if told.isdecimal() and len(told) < _DIGITS else datetime.now(UTC)


def _command(arguments: Sequence[str]) -> str:
    return shlex.join(["gradforensics", *_masked(arguments)])


def _masked(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without what gives access, also where an option and its NAME=VALUE are one of them."""
    for argument in without_secrets(arguments):
        option, equals, pair = argument.partition("=")
        if option.startswith("--") and "=" in pair:
            yield option + equals + next(without_secrets([pair]))
        else:
            yield argument
