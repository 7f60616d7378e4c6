"""The nodes to drain: what fired findings name, each with its reason and the line that tells it. Never a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Verdict
from gradforensics.diagnosis.rules import SEVERITIES, STRENGTHS, Severity, Strength
from gradforensics.diagnosis.vocabulary import Fact
from gradforensics.languages import Text
from gradforensics.report.ranks import COMMUNICATION, HARDWARE, STRAGGLER, failure_told, hits, numbers, rank_hosts
from gradforensics.tables import Evidence

Reason: TypeAlias = Literal["hardware", "outlived", "silent", "slow"]

_NOT_THE_NODE = frozenset({"storage", "silent-corruption"})  # their cause may lie in a server or in a copied file


@dataclass(frozen=True, slots=True)
class Drain:
    """A node to take out of the job, as a fired finding names it; host: None where the record does not tell it.

    device: of a hardware error; message: the line that tells it; excess: share by which a slow rank is slower.
    """

    host: str | None
    ranks: tuple[int, ...]
    reason: Reason
    rule: str
    severity: Severity
    strength: Strength
    device: str = ""
    message: str = ""
    excess: float | None = None
    source: str | None = None
    line: int | None = None


def drain(diagnosis: Diagnosis) -> tuple[Drain, ...]:
    """Hosts of hardware errors, ranks that were silent first, stragglers: those of fired findings, gravest first."""
    evidence = diagnosis.evidence
    fired = {v.rule.id: v for v in diagnosis.verdicts if v.outcome == "fired"}
    hosts = rank_hosts(evidence)
    found = [
        *_hardware(fired.get(HARDWARE), hosts),
        *_silent(evidence, fired.get(COMMUNICATION), hosts),
        *_slow(fired.get(STRAGGLER), hosts),
    ]
    found.sort(key=lambda one: (SEVERITIES.index(one.severity), -STRENGTHS.index(one.strength)))
    return tuple(found)


def _hardware(verdict: Verdict | None, hosts: Mapping[int, str]) -> list[Drain]:
    """One for each device of each host that a hardware error names."""
    found: dict[tuple[str | None, str], Drain] = {}
    for holding in verdict.holdings if verdict is not None else ():
        if holding.sign.variant in _NOT_THE_NODE:
            continue
        for hit in holding.hits:
            assert verdict is not None
            host, device = _text(hit.facts.get("host")) or None, _text(hit.facts.get("device"))
            severity = holding.sign.severity or verdict.rule.variant_severity.get(
                holding.sign.variant or "", verdict.rule.severity
            )
            one = Drain(
                host,
                tuple(rank for rank, known in hosts.items() if known == host and host),
                "outlived" if holding.sign.variant == "outlived" else "hardware",
                verdict.rule.id,
                severity,
                holding.sign.strength,
                device,
                _text(hit.facts.get("message")),
                None,
                hit.source,
                hit.line,
            )
            found.setdefault((host, re.sub(r"(?<=:\w\w)\.\d$", "", device)), one)
    exact = {host for host, device in found if device}
    return [one for (host, device), one in found.items() if device or host not in exact]


def _text(fact: Fact) -> str:
    return fact.en if isinstance(fact, Text) else "" if fact is None else str(fact)


def _silent(evidence: Evidence, verdict: Verdict | None, hosts: Mapping[int, str]) -> list[Drain]:
    failure = failure_told(evidence, [COMMUNICATION] if verdict is not None else [])
    if verdict is None or failure is None or failure.how not in ("missing-rank", "silent"):
        return []
    event = failure.event
    by_host: dict[str | None, list[int]] = {}
    for rank in failure.missing:
        by_host.setdefault(hosts.get(rank), []).append(rank)
    return [
        Drain(
            host, tuple(silent), "silent", verdict.rule.id, verdict.severity or "S1", verdict.strength or "suspect",
            "", event.text, None, event.source, event.line,
        )
        for host, silent in by_host.items()
    ]  # fmt: skip


def _slow(verdict: Verdict | None, hosts: Mapping[int, str]) -> list[Drain]:
    found: dict[int, Drain] = {}
    for hit in hits(verdict) if verdict is not None else ():
        excess = hit.facts.get("excess")
        for rank in numbers(hit.facts.get("rank")):
            assert verdict is not None
            one = Drain(
                hosts.get(rank), (rank,), "slow", verdict.rule.id, verdict.severity or "S2",
                verdict.strength or "suspect", "", "", excess if isinstance(excess, float) else None, hit.source,
                hit.line,
            )  # fmt: skip
            found.setdefault(rank, one)
    return list(found.values())
