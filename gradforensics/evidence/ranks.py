"""The place of a file in a distributed job, by its name: rank, node, host, attempt.

Names as launchers and loggers write them: torchrun (--log-dir: attempt_0/3/stdout.log), Slurm (srun -o %x-%j-%t.out,
stdout.%t), Open MPI and Horovod (rank.3/stdout), NeMo (globalrank-3_localrank-3), PaddlePaddle (workerlog.3), MindSpore
(worker_3.log), TensorBoard (events.out.tfevents.<time>.<host>...), Megatron, Lightning and DeepSpeed (rank_3.log).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal

from gradforensics.tables import Setting

_Kind = Literal["rank", "local", "node", "attempt"]
_TOKEN = re.compile(r"[a-z]+|\d+|[^a-z\d]+")
_MARKS = re.compile(r"[._=-]{1,2}")
_WORDS: dict[str, _Kind] = {
    "rank": "rank",
    "globalrank": "rank",
    "worldrank": "rank",
    "procid": "rank",
    "worker": "rank",
    "workerlog": "rank",
    "process": "rank",
    "proc": "rank",
    "task": "rank",
    "localrank": "local",
    "node": "node",
    "noderank": "node",
    "host": "node",
    "attempt": "attempt",
    "restart": "attempt",
}
# Words that are called after something else than a rank as often: only a whole family of such names counts.
_WEAK = frozenset({"worker", "process", "proc", "task"})
_OTHER_RANKS = frozenset({"lora", "low", "dp", "tp", "pp", "cp", "ep", "sp", "mp", "machine", "bm", "top"})
_BEFORE_RANK: dict[str, _Kind] = {"local": "local", "node": "node", "global": "rank", "world": "rank"}
_HYPERPARAMETERS = frozenset({"alpha", "lora", "dropout", "lr"})
_STREAMS = frozenset({"stdout", "stderr", "out", "err"})
_JOB = re.compile(r"^(?P<job>.*-\d{4,})-(?P<task>\d{1,5})$")
_BEHIND_RANK = re.compile(r"^(?:-\d+)+-([a-z][\w.-]*?)$")
_EVENT_FILE = re.compile(r"^events\.out\.tfevents\.\d+\.(?P<host>.+?)(?:\.\d+){0,2}(?:\.v2)?$")
_SUFFIXES = re.compile(r"(?:\.(?:log|txt|out|err|stdout|stderr|csv|tsv|json|jsonl|gz))+$")
_SHORTEST_JOB = 2
_MOST_DIGITS = 6
_YEARS = range(1970, 2100)
_SETTINGS = frozenset({"RANK", "global_rank", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file of a job comes from, as far as its name says.

    rank: in the job; local: on its node; node: number of the node; host: its name; attempt: launch of an elastic job;
    sure: the name itself says that the number is a rank; family: the path with a * in the place of every such number.
    """

    rank: int | None = None
    host: str | None = None
    attempt: int | None = None
    node: int | None = None
    local: int | None = None
    sure: bool = True
    family: str = ""


@lru_cache(maxsize=1 << 16)
def of_name(path: str) -> Place:
    """The place of a file by its name and by those of its folders; the innermost name that says something counts."""
    parts = PurePosixPath(path).parts
    place = Place()
    shown: list[str] = []
    for depth in range(len(parts) - 1, -1, -1):
        above = parts[depth - 1].lower() if depth else ""
        found, family = _of_part(parts[depth], above, last=depth == len(parts) - 1)
        shown.insert(0, family)
        place = _inner(place, found)
    return replace(place, family="/".join(shown))


def _inner(place: Place, above: Place) -> Place:
    """What a name says, and where it is silent what the folder above it does."""
    return Place(
        above.rank if place.rank is None else place.rank,
        above.host if place.host is None else place.host,
        above.attempt if place.attempt is None else place.attempt,
        above.node if place.node is None else place.node,
        above.local if place.local is None else place.local,
        above.sure if place.rank is None else place.sure,
    )


def _of_part(part: str, above: str, *, last: bool) -> tuple[Place, str]:
    """What one name of a path says, and that name with a * for every number that it says it with."""
    low = part.lower()
    if last and (event := _EVENT_FILE.match(low)):
        return Place(host=part[event.start("host") : event.end("host")]), part
    if not last and low.isdecimal() and len(low) <= _MOST_DIGITS and above.startswith("attempt_"):
        return Place(local=int(low)), "*"  # torchrun
    suffix = _SUFFIXES.search(low) if last else None
    stem = low[: suffix.start()] if suffix else low
    tokens = [(m.start(), m[0]) for m in _TOKEN.finditer(stem)]
    place, starred = _of_words(tokens, part)
    if place.rank is None and place.local is None and last:
        return _of_ending(part, stem, starred) or (place, _starred(part, starred))
    return place, _starred(part, starred)


def _of_words(tokens: Sequence[tuple[int, str]], part: str) -> tuple[Place, list[tuple[int, int]]]:
    """The numbers that stand behind a word for a rank or a node; where they stand."""
    place = Place()
    stands: list[tuple[int, int]] = []
    for index, (start, word) in enumerate(tokens):
        kind = _WORDS.get(word)
        number = _number_behind(tokens, index) if kind else None
        if kind is None or number is None:
            continue
        before = tokens[index - 2][1] if index > 1 and _MARKS.fullmatch(tokens[index - 1][1]) else ""
        if word == "rank" and before in _OTHER_RANKS:
            continue
        kind = _BEFORE_RANK.get(before, kind) if word == "rank" else kind
        at, digits = tokens[number]
        end = at + len(digits)
        stands.append((at, end))
        if kind == "rank":
            host = _BEHIND_RANK.match(_SUFFIXES.sub("", part.lower())[end:])
            named = part[end + host.start(1) : end + host.end(1)] if host else None
            if host:
                stands[-1] = (at, end + host.end(1))
            place = replace(place, rank=int(digits), sure=word not in _WEAK, host=place.host or named)
        elif kind == "node":
            place = replace(place, node=int(digits), host=place.host or part[start:end])
        elif kind == "local":
            place = replace(place, local=int(digits))
        else:
            place = replace(place, attempt=int(digits))
    return place, stands


def _number_behind(tokens: Sequence[tuple[int, str]], index: int) -> int | None:
    """The token that is the number of a word, or None where what follows is a date, a hash or another thing's."""
    at = index + 1
    if at < len(tokens) and _MARKS.fullmatch(tokens[at][1]):
        at += 1
    if at >= len(tokens) or not tokens[at][1].isdecimal() or len(tokens[at][1]) > _MOST_DIGITS:
        return None
    rest = [token for _, token in tokens[at + 1 : at + 3]]
    if rest and not _MARKS.fullmatch(rest[0]):
        return None  # worker-3f9a: a hash
    if len(rest) > 1 and rest[1].isdecimal() and int(tokens[at][1]) in _YEARS:
        return None
    return None if len(rest) > 1 and rest[1] in _HYPERPARAMETERS else at


def _of_ending(part: str, stem: str, starred: list[tuple[int, int]]) -> tuple[Place, str] | None:
    """A number at the end that is a rank in some conventions: stdout.3, and name-<job>-<task> of Slurm."""
    head, _, digits = stem.rpartition(".")
    if head in _STREAMS and digits.isdecimal() and len(digits) <= _MOST_DIGITS:
        return Place(rank=int(digits), sure=False), _starred(part, [*starred, (len(head) + 1, len(stem))])
    job = _JOB.match(stem)
    if job is not None and not (job["job"][-5] == "-" and int(job["job"][-4:]) in _YEARS):
        place = Place(rank=int(job["task"]), sure=False)
        return place, _starred(part, [*starred, (job.start("task"), len(stem))])
    return None


def _starred(part: str, stands: Iterable[tuple[int, int]]) -> str:
    for start, end in sorted(stands, reverse=True):
        part = part[:start] + "*" + part[end:]
    return part


def are_ranks(places: Sequence[Place]) -> bool:
    """Whether the numbers in the names of a family are ranks.

    Ranks count from 0 without many gaps; a few of them may be missing where the names speak of ranks. Powers of two
    without a 0 are the ranks of low-rank adapters.
    """
    ranks = sorted({p.rank for p in places if p.rank is not None})
    if not ranks:
        return False
    if len(ranks) > 1 and ranks[0] > 0 and ranks[-1] > 2 and all(r & (r - 1) == 0 for r in ranks):
        return False
    return all(p.sure for p in places) or (len(ranks) >= _SHORTEST_JOB and counts_through(ranks))


def counts_through(numbers: Sequence[int]) -> bool:
    """Whether different numbers, ascending, begin at 0 or 1 and leave no more than a tenth out."""
    return numbers[0] <= 1 and numbers[-1] - numbers[0] < len(numbers) * 1.1


def of_local(places: Sequence[Place]) -> dict[tuple[int, int], int]:
    """The rank of every (node, local rank): the nodes have as many ranks as the largest of them, in their order.

    Source: the global rank that torch.distributed.run assigns, node rank x processes per node + local rank.
    """
    pairs = {(p.node or 0, p.local) for p in places if p.local is not None}
    width = 1 + max((local for _, local in pairs), default=0)
    return {(node, local): node * width + local for node, local in sorted(pairs)}


def of_settings(settings: Iterable[Setting]) -> int | None:
    """The rank that a process wrote among its own settings or environment variables, or None."""
    found = {s.value for s in settings if s.name.rpartition(".")[2] in _SETTINGS}
    rank = found.pop() if len(found) == 1 else None
    if isinstance(rank, str) and rank.isdecimal():
        rank = int(rank)
    valid = isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 10**_MOST_DIGITS
    return rank if valid else None
