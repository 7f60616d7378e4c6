"""--redact: host names, user names, paths, addresses and e-mail addresses leave a report; its proofs stay.

Hosts and users become host-1, user-1 ... throughout, so that it can still be told which of them is meant. Absolute
paths lose their folders; names of files and paths inside of the run directory stay: the evidence is cited by them.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gradforensics.patterns import lazy
from gradforensics.report.comparison.model import Comparison
from gradforensics.report.model import HitRow, Report, RunReport
from gradforensics.rewriting import rewritten, texts_in
from gradforensics.tables import Evidence

T = TypeVar("T")

_LEAST = 3  # letters of a name that is looked for in texts: shorter ones are syllables
# accounts and words that tell nobody's name, and would be found everywhere
_NOT_TELLING = frozenset(
    ("root", "user", "users", "admin", "ubuntu", "nobody", "ec2-user", "centos", "debian", "docker", "jovyan", "runner")
) | frozenset(("localhost", "none", "unknown", "true", "false", "null", "home", "data", "work", "shared", "public"))
_OWN = frozenset({"references", "rule", "slug", "family", "sha256", "tool"})  # fields without evidence

_HOST_KEYS = lazy(r"(?i)(?:^|[._:])(?:host|hostname|host_?name|node|nodename|node_?list|master_?addr)$")
_NAME = lazy(r"[A-Za-z0-9][\w.\-]*")
_USER_KEYS = lazy(r"(?i)(?:^|[._:])(?:user|username|user_?name|logname|owner|author|email|account|entity)$")
_EMAIL = lazy(r"(?<![\w.+\-])[\w.+\-]+@(?:[\w\-]+\.)+[A-Za-z]{2,}(?![\w\-])")
_HOME = lazy(r"(?:/(?:home|Users|users|scratch/users|gpfs/users|nfs/home|nfs/users)/|[A-Za-z]:\\+Users\\+)([\w.\-]+)")
_LOGIN = lazy(r"(?<![\w.+\-])([A-Za-z_][\w.\-]*)@([A-Za-z][\w.\-]*)(?=:[~/]|\s*[$#]\s)")  # scp, shell prompts
_IPV4 = r"(?<![\w.\-])(?<!==)(?<!version )(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"
_IPV6 = r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}(?![\w:])"
_ADDRESS = lazy(rf"{_IPV4}|{_IPV6}")
_PART = 255  # of an address of version 4
_LOCAL = frozenset({"127.0.0.1", "0.0.0.0"})  # noqa: S104  # recognised in texts, nothing is bound to it
# of launchers and of NCCL: "[node-3]:29500", "[node-3, 29500]", "tcp://node-3:29500"; names of private domains
_NAMED_HOST = lazy(
    r"\[([A-Za-z][\w.\-]+)\]:\d{2,5}\b"
    r"|\[([A-Za-z][\w.\-]+), ?\d{4,5}\]"
    r"|\b(?:tcp|ssh|grpc|nfs|redis|gloo|nccl|env)://(?:[^/\s@]*@)?([A-Za-z][\w.\-]*)"
    r"|(?<![\w.\-/])([A-Za-z0-9][\w\-]*(?:\.[\w\-]+)*\.(?:local|internal|lan|corp|intra|intranet|cluster|svc|compute))\b"
    r"|\b(?:hostname|nodename|node name|host)\s*[:=]\s*[\"']?([A-Za-z][\w.\-]+)"
)
_URL = lazy(r"(?<![\w])([a-z][a-z0-9+\-]{1,12})://([^\s\"'<>)\]]+)")
_POSIX = lazy(r"(?<![\w:/.…\-])~?/(?:[\w.@%+~,=\-]+/)+([\w.@%+~,=\-]*)")
_WINDOWS = lazy(r"(?<![\w])(?:[A-Za-z]:\\+|\\\\)(?:[^\\\s\"'<>|:*?]+\\+)+([^\\\s\"'<>|:*?]*)")
_PACKAGES = lazy(r"(?:site|dist)-packages/(.+)$")
_CUT = "…/"


class Redactor:
    """Takes out what names people, machines and places; the same name always becomes the same word."""

    def __init__(self, hosts: Iterable[str], users: Iterable[str], folders: Iterable[str] = ()) -> None:
        self._words: dict[str, str] = {}
        for kind, names in (("host", hosts), ("user", users)):
            number = 0
            for name in names:
                if len(name) >= _LEAST and name.lower() not in _NOT_TELLING and name not in self._words:
                    number += 1
                    self._words[name] = f"{kind}-{number}"
        longest = sorted({one.rstrip("/") for one in folders} - {"", ".", ".."}, key=len, reverse=True)
        above = "|".join(re.escape(one) for one in longest)
        self._folders = re.compile(rf"(?<![\w/.\-])(?:{above})/") if above else None
        self._addresses: dict[str, str] = {}
        listed = sorted(self._words, key=len, reverse=True)
        named = "|".join(re.escape(name) for name in listed)
        self._named = re.compile(rf"(?<![A-Za-z0-9])(?:{named})(?![A-Za-z0-9])") if named else None

    def text(self, text: str) -> str:
        """One text without them."""
        if self._folders is not None:
            text = self._folders.sub("", text)
        text = _EMAIL.sub("e-mail", text)
        text = _URL.sub(self._url, text)
        text = _POSIX.sub(self._path, text)
        text = _WINDOWS.sub(lambda m: _CUT + m[1], text)
        if self._named is not None:
            text = self._named.sub(lambda m: self._words[m[0]], text)
        return _ADDRESS.sub(self._address, text)

    def of(self, value: T) -> T:
        """A value with every text in it rewritten."""
        return rewritten(value, self.text, keep=_OWN)

    def _url(self, match: re.Match[str]) -> str:
        scheme, rest = match[1], match[2]
        host, slash, path = rest.partition("/")
        bare, colon, port = host.rpartition("@")[2].partition(":")
        if not slash:  # tcp://node-3:29500: which of the hosts it is may matter
            return f"{scheme}://{self._words.get(bare, 'address')}{colon}{port}"
        return f"{scheme}://{_CUT}{path.rpartition('/')[2]}" if scheme == "file" else f"{scheme}://…"

    def _path(self, match: re.Match[str]) -> str:
        library = _PACKAGES.search(match[0])
        return _CUT + (library[1] if library else match[1])

    def _address(self, match: re.Match[str]) -> str:
        whole = match.string == match[0]  # a value of its own may be a version such as 12.4.5.8
        if whole or match[0] in _LOCAL or any(part.isdigit() and int(part) > _PART for part in match[0].split(".")):
            return match[0]
        return self._addresses.setdefault(match[0], f"address-{len(self._addresses) + 1}")


def redactor_for(values: Sequence[object], named: Iterable[tuple[str, str]], folders: Iterable[str]) -> Redactor:
    """A redactor that knows the hosts and users of these values, and of this machine.

    named: (key, value) of settings and facts, whose keys tell hosts and users; folders: the inputs as they were named.
    """
    texts = list(dict.fromkeys(texts_in(list(values), keep=_OWN)))
    hosts: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for key, value in named:
        words = [word for word in re.split(r"[\s,;]+", value.strip()) if _NAME.fullmatch(word)]
        (hosts if _HOST_KEYS.search(key) else users if _USER_KEYS.search(key) else Counter()).update(words)
    for text in texts:
        users.update(_HOME.findall(text))
        for user, host in _LOGIN.findall(text):
            users[user] += 1
            hosts[host] += 1
        hosts.update(name for groups in _NAMED_HOST.findall(text) for name in groups if name)
    with suppress(OSError, KeyError):
        users[getpass.getuser()] += 1
    hosts[socket.gethostname()] += 1
    short = [name.partition(".")[0] for name in hosts if not name[:1].isdigit()]
    return Redactor(dict.fromkeys([*hosts, *short]), users, folders)


def redacted(report: Report, inputs: Sequence[Path]) -> Report:
    """A report for readers who need not know where the run ran and who started it. inputs: as the user named them."""
    found = redactor_for([report], _named(report.runs), _above(inputs)).of(report)
    runs = zip(report.runs, found.runs, strict=True)
    return replace(found, runs=tuple(_marked_anew(before, after) for before, after in runs))


def redacted_comparison(comparison: Comparison, runs: Sequence[Evidence], inputs: Sequence[Path]) -> Comparison:
    """The same for a comparison of two runs."""
    return redactor_for([comparison], _named(runs), _above(inputs)).of(comparison)


def _named(runs: Sequence[RunReport | Evidence]) -> list[tuple[str, str]]:
    """What states a host or a user: settings, facts of the environment, and who wrote a line."""
    named: list[tuple[str, str]] = []
    for run in runs:
        environment, events = run.environment or (), run.events or ()
        named += [(row.key, str(row.value)) for row in run.settings or ()]
        named += [(fact.key, fact.value) for fact in environment]
        named += [("host", fact.host) for fact in environment if fact.host]
        named += [("host", event.host) for event in events if event.host]
    return named


def _above(inputs: Sequence[Path]) -> list[str]:
    """The folders in which the inputs lie, as they were named and in full."""
    return [str(place) for path in inputs for place in (path.parent, path.absolute().parent, path.resolve().parent)]


def _marked_anew(before: RunReport, after: RunReport) -> RunReport:
    """A run whose quoted lines were rewritten: what was marked in them stands elsewhere now, if it is there at all."""
    rows = {
        v.rule: replace(v, hits=tuple(map(_moved, old.hits, v.hits)))
        for old, v in zip(before.verdicts, after.verdicts, strict=True)
    }
    primary = None if after.primary is None else rows[after.primary.rule]
    findings = tuple(rows[v.rule] for v in after.findings)
    return replace(after, verdicts=tuple(rows.values()), findings=findings, primary=primary)


def _moved(before: HitRow, after: HitRow) -> HitRow:
    if before.excerpt == after.excerpt:
        return after
    spans: list[tuple[int, int]] = []
    for start, end in before.marked:
        piece = before.excerpt[start:end]
        at = after.excerpt.find(piece, spans[-1][1] if spans else 0)
        if at >= 0:
            spans.append((at, at + len(piece)))
    return replace(after, marked=tuple(spans))
