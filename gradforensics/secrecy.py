"""What may give access to something is not repeated: passwords in addresses, values of options such as --api_key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"
_SECRET = re.compile(r"(?i)(?:key|token|secret|passw(?:or)?d|credentials?|auth)$")
_OPAQUE = re.compile(r"[\w\-./+=:@]{8,}")
_ANYWHERE = re.compile(r"(?i)key|token|secret|passw|credential|auth|cookie|private")
_LIKE_A_KEY = re.compile(r"(?:hf|gh[opusr]|github_pat|sk|xox[abprs]|AKIA|ASIA|glpat|eyJ)[-_A-Z]?[A-Za-z0-9_\-.]{12,}")
_LONG = re.compile(r"[A-Za-z0-9+_=\-]{32,}")


def without_credentials(url: str) -> str:
    """An address without user name, password and query."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments of a program, with *** for the values of options such as --api_key."""
    hidden = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if hidden and not argument.startswith("-"):
            yield HIDDEN
        elif equals and is_secret(name, value):
            yield f"{name}={HIDDEN}"
        else:
            yield without_credentials(argument)
        hidden = not equals and argument.startswith("-") and _SECRET.search(argument) is not None


def is_secret(name: str, value: Any) -> bool:
    """Whether a setting looks like one that gives access: a name such as hub_token, a value that could be one."""
    return isinstance(value, str) and _SECRET.search(name) is not None and _OPAQUE.fullmatch(value) is not None


def of_variable(name: str, value: str) -> str:
    """The value of an environment variable, *** where its name or its value looks like what gives access."""
    secret = _ANYWHERE.search(name) or _LIKE_A_KEY.search(value) or _LONG.fullmatch(value.strip())
    return HIDDEN if secret else without_credentials(value)
