"""What may give access to something is not repeated: keys, tokens and passwords in texts, settings and addresses.

Three nets, one behind the other: settings by their names (`of_setting`), free text by what stands around a value
(`masked`), and the finished outputs by the shape of the keys that services issue (`without_keys`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from gradforensics.patterns import lazy

T = TypeVar("T")

HIDDEN = "***"
_OPAQUE = lazy(r"[\w\-./+=:@]{8,}")
_ANYWHERE = lazy(r"(?i)key|token|secret|passw|credential|auth|cookie|private")
_LONG = lazy(r"[A-Za-z0-9+_=\-]{32,}")

# Names of settings whose values give access. "eos_token" and "label_key" are none: a token of a vocabulary, a column.
_HOLDERS = "api|access|secret|private|auth|account|service|client|session|refresh|bearer|signing|encryption|ssh|hub|hf|"
_HOLDERS += "hugging_?face|wandb|openai|anthropic|azure|aws|gcp|github|gitlab|slack|telegram|comet|neptune|clearml|bot"
_WORD = rf"(?:(?:{_HOLDERS})[_.\-]?(?:access[_.\-]?)?(?:key|token)(?:[_.\-]?id)?|passw(?:or)?d|passphrase|secret|"
_WORD += r"credentials?|webhook(?:[_.\-]?url)?|connection[_.\-]?string|cookie)"
_SECRET = lazy(rf"(?i)(?:^|[_.\-]){_WORD}$")
_MAYBE = lazy(r"(?i)(?:key|token|auth)$")

# The keys of services, by their published prefixes; each with the piece of text that has to be there.
_ISSUED: Mapping[str, str] = {
    "hf_": r"hf_[A-Za-z0-9]{16,}",
    "api_org_": r"api_org_[A-Za-z0-9]{16,}",
    # names such as sk-learn-baseline-with-long-words have their hyphens early
    "sk-": r"sk-(?:(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_\-]{20,}|[A-Za-z0-9]{20,})",
    "gh": r"gh[opusr]_[A-Za-z0-9]{20,}",
    "github_pat_": r"github_pat_[A-Za-z0-9_]{22,}",
    "glpat-": r"glpat-[A-Za-z0-9_\-]{16,}",
    "xox": r"xox[abeprs]-[A-Za-z0-9\-]{10,}",
    "AKIA": r"AKIA[A-Z0-9]{16}",
    "ASIA": r"ASIA[A-Z0-9]{16}",
    "AIza": r"AIza[A-Za-z0-9_\-]{35}",
    "ya29.": r"ya29\.[A-Za-z0-9_\-]{20,}",
    "eyJ": r"eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]*)?",
    "npm_": r"npm_[A-Za-z0-9]{36}",
    "pypi-": r"pypi-[A-Za-z0-9_\-]{50,}",
    "nvapi-": r"nvapi-[A-Za-z0-9_\-]{20,}",
    "gsk_": r"gsk_[A-Za-z0-9]{20,}",
    "r8_": r"r8_[A-Za-z0-9]{30,}",
    "dop_v1_": r"dop_v1_[a-f0-9]{40,}",
    "SG.": r"SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}",
    "wandb_v1_": r"wandb_v1_[A-Za-z0-9_\-]{20,}",
    "local-": r"local-[0-9a-f]{40}",
    "hooks.": r"hooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
}
_KEYS = lazy(rf"(?<![A-Za-z0-9_])(?:{'|'.join(_ISSUED.values())})")

# What stands around a value: an assignment to a name, an option with its value, a header, an address.
_IN_TEXT = lazy(
    rf"""(?ix)
    (?P<assigned> (?<![a-z0-9_.\-]) (?:[a-z0-9_.\-]{{0,40}}[_.\-])? {_WORD} ["']? \s* [:=] \s* ["']? )
      [^\s"',;&)}}\]<>]{{4,}}
    | (?P<option> (?<!\S) --? [a-z0-9_\-]{{0,40}} {_WORD} \s+ ["']? ) (?!-) [^\s"',;]{{4,}}
    | (?P<header> \b (?:authorization["']?\s*[:=]\s*["']? (?:bearer|basic|token)? | bearer) \s+ )
      [a-z0-9._~+/=\-]{{12,}}
    | (?P<address> \b [a-z][a-z0-9+.\-]{{1,20}}:// ) [^\s/@"']{{1,200}} @
    | (?P<query> [?&] (?:[a-z0-9_\-]{{0,40}}(?:signature|token|secret|passw(?:or)?d|api[_\-]?key)|sig|key) = )
      [^\s&"'<>]{{4,}}
    | (?P<netrc> \b login \s+ \S+ \s+ password \s+ ) \S{{4,}}
    | (?P<wandb> \b wandb \b [^\n]{{0,60}}? [\s:='"] ) [0-9a-f]{{40}} (?![0-9a-f])
    """
)
# one of these has to stand in a text that the expression above could match
_HINTS = lazy(
    r"(?i)key|token|secret|passw|passphrase|credential|webhook|connection|cookie|authorization|bearer|://|sig|wandb"
)
_PEM = lazy(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)")


def without_keys(text: str) -> str:
    """The text with *** for every key of a service that its shape gives away; fast enough for a finished report."""
    return _KEYS.sub(HIDDEN, text) if any(piece in text for piece in _ISSUED) else text


def masked(text: str) -> str:
    """The text with *** for what gives access: issued keys, assigned passwords, headers, addresses, private keys."""
    if _HINTS.search(text):
        text = _IN_TEXT.sub(_keep_what_names_it, text)
    if "PRIVATE KEY-----" in text:
        text = _PEM.sub(HIDDEN, text)
    return without_keys(text)


def _keep_what_names_it(match: re.Match[str]) -> str:
    kept = next(part for part in match.groups() if part is not None)
    return f"{kept}{HIDDEN}@" if match["address"] is not None else f"{kept}{HIDDEN}"


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
            yield masked(without_credentials(argument))
        hidden = not equals and argument.startswith("-") and _SECRET.search(argument.lstrip("-")) is not None


def is_secret(name: str, value: Any) -> bool:
    """Whether a setting looks like one that gives access: a name such as hub_token, a value that could be one."""
    if not isinstance(value, str) or value == HIDDEN:
        return False
    if _SECRET.search(name):
        return bool(value.strip()) and value.lower() not in _NOTHING
    return bool(_MAYBE.search(name)) and _random(value)


_SHORTEST = 20  # characters of a key that a service issues
_NOTHING = frozenset({"none", "null", "true", "false", "0", "1"})


def _random(value: str) -> bool:
    """Whether a value is long, without blanks, and mixes digits and letters, as no word of a vocabulary does."""
    return len(value) >= _SHORTEST and bool(_OPAQUE.fullmatch(value)) and bool(re.search(r"\d.*\d.*\d", value))


def of_variable(name: str, value: str) -> str:
    """The value of an environment variable, *** where its name or its value looks like what gives access."""
    secret = _ANYWHERE.search(name) or _LONG.fullmatch(value.strip())
    return HIDDEN if secret else masked(without_credentials(value))


def of_setting(name: str, value: T) -> T:
    """The value of a setting with *** in place of what gives access, also inside of lists and tables."""
    return _of_setting(name, value)  # type: ignore[no-any-return]  # every kind of value keeps its type


def _of_setting(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return HIDDEN if is_secret(name, value) else masked(value)
    if isinstance(value, dict):
        return {key: _of_setting(str(key), one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_of_setting(name, one) for one in value)
    return value
