"""What a run says of itself: run, configuration, environment and exit records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gradforensics.evidence import protobuf
from gradforensics.evidence import settings as configuration
from gradforensics.evidence.wandb_log import wire
from gradforensics.evidence.wandb_log.facts import facts_of
from gradforensics.evidence.wandb_log.items import item
from gradforensics.secrecy import is_secret
from gradforensics.tables import Event, Fact, Setting

INTERRUPTED = 255  # the exit code that wandb gives to a KeyboardInterrupt
_KEYS = 20_000
_DEPTH = 20
_STRINGS: Mapping[int, str] = {
    1: "os",
    2: "python",
    4: "docker",
    6: "program",
    12: "host",
    18: "gpu",
    25: "cudaVersion",
}
_COUNTS: Mapping[int, str] = {16: "cpu_count", 19: "gpu_count"}


class Run:
    """Collects the records of one run that are no measurements.

    metrics: the keys that others are to be plotted over; exit_code: None before an exit record was met.
    """

    def __init__(self) -> None:
        self.metrics: set[str] = set()
        self.exit_code: int | None = None
        self.preempted = False
        self.starting_step = 0
        self.resumed = False
        self._config: dict[str, Any] = {}
        self._identity: dict[str, str] = {}
        self._environment: dict[str, Any] = {}
        self._takers: Mapping[int, Callable[[bytes], None]] = {
            5: self._update,
            12: self._metric,
            17: self._run,
            18: self._exit,
            21: self._header,
            23: self._preempting,
            26: self._surroundings,
        }

    def take(self, number: int, message: bytes) -> None:
        """Look at a record by the number of its field in the union of all records."""
        if taker := self._takers.get(number):
            taker(message)

    # -- records -----------------------------------------------------------------------------------------------------

    def _run(self, message: bytes) -> None:
        strings = {1: "wandb_run", 3: "project", 6: "run_group", 7: "job_type", 8: "run_name", 12: "sweep", 13: "host"}
        for number, value in wire.fields(message):
            if number in strings:
                self._identity[strings[number]] = wire.text(value)
            elif number == 4 and isinstance(value, bytes):
                self._update(value)
            elif number == 14 and isinstance(value, int):
                self.starting_step = protobuf.signed(value)
            elif number == 17 and (since := wire.seconds(value)) is not None and 0 < since < 1e11:
                self._identity["started"] = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
            elif number == 18:
                self.resumed = bool(value)

    def _update(self, message: bytes) -> None:
        """A configuration record: new values by their keys, keys that are removed."""
        for number, value in wire.fields(message):
            if not isinstance(value, bytes):
                continue
            key, given = item(value)
            if number == 2:
                self._config.pop(key, None)
            elif number == 1 and (key in self._config or len(self._config) < _KEYS):
                self._config[key] = _decoded(given)

    def _metric(self, message: bytes) -> None:
        for number, value in wire.fields(message):
            if number == 4 and len(self.metrics) < _KEYS:
                self.metrics.add(wire.text(value))

    def _exit(self, message: bytes) -> None:
        self.exit_code = 0
        for number, value in wire.fields(message):
            if number == 1 and isinstance(value, int):
                self.exit_code = protobuf.signed(value)

    def _header(self, message: bytes) -> None:
        for number, value in wire.fields(message):
            if number == 1 and isinstance(value, bytes):
                for inner, producer in wire.fields(value):
                    if inner == 1:
                        self._identity["wandb"] = wire.text(producer).partition("+")[0]

    def _preempting(self, _: bytes) -> None:
        self.preempted = True

    def _surroundings(self, message: bytes) -> None:
        """An environment record, as the members of wandb-metadata.json; later records add to the first."""
        found = self._environment
        arguments: list[str] = []
        devices: dict[str, list[dict[str, Any]]] = {}
        for number, value in wire.fields(message):
            if number in _STRINGS:
                found[_STRINGS[number]] = wire.text(value)
            elif number in _COUNTS:
                found[_COUNTS[number]] = value
            elif number == 5:
                arguments.append(wire.text(value))
            elif not isinstance(value, bytes):
                continue
            elif number == 9:
                found["git"] = _named(value, {1: "remote", 2: "commit"})
            elif number == 21:
                found["memory"] = _named(value, {1: "total"})
            elif number == 22:
                found["cpu"] = _named(value, {3: "model"})
            elif number == 24:
                names = {1: "name", 2: "memoryTotal", 4: "architecture"}
                devices.setdefault("gpu_nvidia", []).append(_named(value, names))
            elif number == 26:
                devices.setdefault("gpu_amd", []).append(_named(value, {8: "series", 9: "model"}))
            elif number == 27:
                entry = _named(value, {1: "key", 2: "value"})
                found.setdefault("slurm", {})[entry.get("key", "")] = entry.get("value", "")
        found.update(devices)
        if arguments:
            found["args"] = arguments

    # -- what they tell ----------------------------------------------------------------------------------------------

    def settings(self, source: str) -> tuple[list[Setting], list[str]]:
        """The configuration as settings of the run itself, and what was left out of it."""
        leaves = [leaf for leaf in _flat(self._config) if leaf[0].partition(".")[0] != "_wandb"]
        notices = []
        if len(leaves) > configuration.LEAF_LIMIT:
            notices.append(f"only the first {configuration.LEAF_LIMIT} of {len(leaves)} settings were read")
        # a report is passed on: what gives access to an account does not belong there
        shown = (
            (name, value, source) for name, value in leaves[: configuration.LEAF_LIMIT] if not is_secret(name, value)
        )
        return configuration.from_checkpoint(shown), notices

    def facts(self, source: str) -> list[Fact]:
        """The environment and the names of the run."""
        found = facts_of(self._environment, source)
        known = {fact.key for fact in found}
        host = self._environment.get("host") or self._identity.get("host") or None
        own = [Fact(k, v[:200], source, host=host) for k, v in self._identity.items() if v and k not in known]
        return found + own

    def events(self, source: str) -> list[Event]:
        """That the run was resumed, preempted or ended with an error."""
        found = []
        if self.resumed or self.starting_step > 0:
            text = f"W&B resumed the run at step {self.starting_step}"
            found.append(Event("resume", text, source, step=self.starting_step))
        if self.exit_code:
            kind = "killed" if self.exit_code == INTERRUPTED else "exception"
            text = f"W&B recorded exit code {self.exit_code}"
            found.append(Event(kind, text, source, data={"exit_code": self.exit_code}))
        elif self.exit_code is None and self.preempted:
            found.append(Event("killed", "the program told W&B that the run is being preempted", source))
        return found


def _decoded(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return wire.text(value)


def _named(message: bytes, names: Mapping[int, str]) -> dict[str, Any]:
    """Some fields of a message by names."""
    return {
        names[number]: wire.text(value) if isinstance(value, bytes) else value
        for number, value in wire.fields(message)
        if number in names
    }


def _flat(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The leaves of nested objects by their dotted names."""
    for key, member in value.items():
        if isinstance(member, Mapping):
            if depth < _DEPTH:
                yield from _flat(member, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", member
