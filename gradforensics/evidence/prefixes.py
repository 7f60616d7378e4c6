"""What stands in front of a log line: the rank, the host and the moment, as launchers and loggers write them.

Formats: torchrun's tee (`[default0]:`, `[trainer3]:`) and per-rank prefix (`[rank3]:`), `srun --label` (`12: `),
pdsh and the DeepSpeed launcher (`worker-1: `, `10.0.0.3: `), Ray, vLLM and verl (`(WorkerDict pid=12, ip=10.0.0.2)`),
Open MPI (`[1,3]<stdout>:`), `[node07:0]`, Lightning (`[rank: 0]`); moments in ISO 8601, of `date`, of syslog, of glog
(which names no year) and of `journalctl -o short-unix`; the stream names of Kubernetes' log files.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

_MOST = 8  # labels and moments that stand in front of one line
_HEAD = 160  # characters in which a logger's own rank is looked for
_LATEST = 32503680000.0  # the year 3000; a larger number of seconds is no moment

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_DATE = rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[ ](?:{_MONTHS})[ ][ \d]\d[ ]\d\d:\d\d:\d\d[ ]\d{{4}}"
_HOST = (
    r"\d{1,3}(?:\.\d{1,3}){3}|ip-\d+(?:-\d+){3}[\w.-]*|"
    r"(?:node|worker|host|server|compute|master|slave|instance|machine|dgx|hgx|nid|cn|gpu-?node)[a-z]*[-_]?\d[\w.-]*|"
    r"[A-Za-z][\w-]*(?:\.[\w-]+)*\.(?:local|internal|cluster|lan|svc)"
)
_AHEAD = r"(?=:\s?(?:\[(?:rank|default|trainer)\d|\[\d{4}-\d\d-\d\d|\(\w+[ ]pid=))"  # any name in front of these

# Every part takes the one blank behind it, no more: what follows may be the indented line of a traceback.
_PART = re.compile(
    rf"""
      \[[Rr]ank[ :=]*(?P<rank>\d{{1,6}})\]:?[ ]?
    | [Rr]ank[ :=_]?(?P<said>\d{{1,6}}):[ ]?
    | \[(?:default|trainer|worker|role|train)(?P<local>\d{{1,6}})(?:\|\d{{1,6}})?\]:[ ]?
    | \[(?:[\w.@-]{{1,80}}@)?\d{{1,10}},(?P<mpi>\d{{1,6}})\]<std(?:out|err|diag)>:?[ ]?
    | \[(?![\w.-]*\.(?:py|cc|cpp|cu|cuh|c|h|hpp|rs|go|ts):)(?=[\w.-]*\d)(?P<node>[A-Za-z][\w.-]{{0,63}}):
        (?P<there>0|[1-9]\d{{0,2}})\]:?[ ]?
    | \((?P<actor>(?:[^()]|\(\w*\)){{1,120}}?\bpid=\d+[^()]{{0,120}})\)[ ]?
    | \[?(?P<iso>{_ISO})\]?(?:[ ]std(?:out|err)[ ][FP])?:?[ ]?
    | \[?(?P<date>{_DATE})\]?:?[ ]?
    | (?P<syslog>(?:{_MONTHS})[ ][ \d]\d[ ]\d\d:\d\d:\d\d)[ ](?P<on>[\w.-]{{1,63}})[ ]
    | (?P<epoch>1\d{{9}}\.\d{{1,9}})[ ]
    | \[?(?P<glog>[IWEF]\d{{3,4}}[ ]\d\d:\d\d:\d\d\.\d{{3,9}}[ ]+(?:\d+[ ]+)?[\w./-]{{1,120}}:\d+)\]?[ ]?
    | \[?(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?)\]?[ ]
    | (?P<host>{_HOST}|[A-Za-z][\w.-]{{0,63}}(?<=[\d.-]){_AHEAD}):[ ]?
    """,
    re.VERBOSE,
)
_TASK = re.compile(r" *(?P<task>\d{1,5}):(?: |$)")
_IP = re.compile(r"\bip=([\w.:-]{1,64})")
_RANK_SAID = re.compile(r"\brank=(\d{1,6})\b")
_RANK = re.compile(
    r"\[(?:default|[Rr]ank)\s?:?\s?(\d{1,6})\]|\brank[ :=_]?(\d{1,6})\]?:\s|\(\w+[^()]*\brank=(\d{1,6})[^()]*\)|"
    r"\[PG [^\]]{0,80}\bRank (\d{1,6})\]"
)


class Prefix(NamedTuple):
    """What a line says about its writer.

    rank: the global rank; of `[default3]:` and `[node07:3]`, where nothing names a global one, that on its node. Behind
    the label of srun, which then numbers the launchers of the nodes, `host` is "task N". host: name or address.
    time: Unix seconds, None where date or year are missing; a moment without a zone counts as UTC. rest: the line
    without all this. label: what names the writer, as written: lines of one process share it.
    """

    rank: int | None
    host: str | None
    time: float | None
    rest: str
    label: str


@lru_cache(maxsize=16)  # one line is asked for several times in a row
def read(line: str) -> Prefix:
    """Take the labels and moments off the front of a line; `rest` keeps the blanks that the line was indented by."""
    ranks: dict[str, int] = {}
    host: str | None = None
    time: float | None = None
    labels: list[str] = []
    place = 0
    for _ in range(_MOST):
        part = _PART.match(line, place)
        if part is None:
            # srun writes its label at the very front, Kubernetes its moment before that
            part = _TASK.match(line, place) if not labels else None
            if part is None:
                break
        place = part.end()
        said = part.groupdict()
        moment = _moment(said)
        if moment is not None and time is None:
            time = moment
        named = [name for name in _RANKS if said.get(name)]
        repeated = bool(named) and bool(ranks.keys() & _GLOBAL)  # c10d names, behind its moment, the rank in a group
        for name in named if not repeated else ():
            ranks[name] = int(said[name] or 0)
        host = said.get("host") or said.get("node") or said.get("on") or host
        if said.get("actor"):
            address, own = _IP.search(part[0]), _RANK_SAID.search(part[0])
            host = address[1] if address else host
            if own:
                ranks["said"] = int(own[1])
        if not repeated and not any(said.get(name) for name in _MOMENTS):
            labels.append(part[0].strip())
    if not ranks.keys() & _GLOBAL and (inner := _within(line, place)) is not None:
        ranks["rank"] = inner
    if "task" in ranks and host is None and not ranks.keys() & _GLOBAL and ranks.keys() & _LOCAL:
        host = f"task {ranks['task']}"
    rank = next((ranks[name] for name in _RANKS if name in ranks), None)
    return Prefix(rank, host, time, line[place:], " ".join(labels))


_GLOBAL = frozenset({"rank", "mpi", "said"})
_LOCAL = frozenset({"local", "there"})
_RANKS = ("rank", "mpi", "said", "local", "there", "task")  # the best first
_MOMENTS = ("iso", "date", "syslog", "epoch", "glog", "clock")


def rank_of(line: str) -> int | None:
    """The rank that a line names in brackets at its front, or None: cheap, and deaf to a number without a word."""
    head = line[:80]
    found = _RANK.search(head) if "ank" in head or "[default" in line[:20] else None
    return int(next(g for g in found.groups() if g is not None)) if found else None


def _within(line: str, place: int) -> int | None:
    """The rank that a logger wrote behind its own moment and level, as DeepSpeed, Lightning and c10d do."""
    head = line[place : place + _HEAD]
    found = _RANK.search(head) if "ank" in head else None
    return int(next(g for g in found.groups() if g is not None)) if found else None


def _moment(said: dict[str, str | None]) -> float | None:
    if text := said.get("iso"):
        return iso_seconds(text)
    if text := said.get("date"):
        return date_seconds(text)
    if text := said.get("epoch"):
        return float(text)
    return None


def iso_seconds(text: str) -> float | None:
    """Unix seconds of "2026-01-01 00:00:00,123" and other ISO 8601 moments; UTC where no zone stands. None if none."""
    try:
        moment = datetime.fromisoformat(text.replace("/", "-"))
    except ValueError:
        return None
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return seconds if 0 < seconds < _LATEST else None


def date_seconds(text: str) -> float | None:
    """Unix seconds of "Mon Nov 30 00:12:10 2026", taken as UTC; None where there is no such day."""
    try:
        return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
