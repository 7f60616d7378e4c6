"""What a replay found: the lines of its table, and the replay directory that holds them (a leaf: no torch, no polars).

replay.json         what was replayed: run, step, device, the code that ran (with its hash), notices
experiments.jsonl   one result per line, in the order in which they were found; a replay that dies loses none
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

SCHEMA = 1
HEADER = "replay.json"
RESULTS = "experiments.jsonl"
PARTIAL = f".{HEADER}.partial"  # what becomes the header
_ESCAPED = "backslashreplace"  # lone surrogates (names that are no UTF-8 have them) become JSON's own escapes

# fault: the experiment shows a fault. clean: it was looked for and is not there. verified: a failure that is there
# without the change is gone with it. unverified: the change did not help. inconclusive: it ran and tells neither.
# not-run: it was not started (the reason is the conclusion). failed: it ran into a limit or died.
Outcome: TypeAlias = Literal["fault", "clean", "verified", "unverified", "inconclusive", "not-run", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
JUDGED: frozenset[Outcome] = frozenset({"fault", "clean", "verified", "unverified"})  # what a rule may rely on


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that an experiment measured: a number with its unit, or a text (a module, an operation, a line).

    variation: under which change it was measured, "" for the step as recorded.
    """

    name: str
    value: float | None = None
    unit: str = ""
    variation: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a replay's table: the question, what was changed, what came out, and what follows from it."""

    experiment: str
    step: int
    question: str
    changed: str
    result: str
    conclusion: str
    outcome: Outcome
    quantities: tuple[Quantity, ...] = ()

    def number(self, name: str, variation: str | None = None) -> float | None:
        """The first number of this name (and variation, where one is given)."""
        return next((q.value for q in self._of(name, variation) if q.value is not None), None)

    def text(self, name: str, variation: str | None = None) -> str:
        """The first text of this name (and variation, where one is given), else ""."""
        return next((q.text for q in self._of(name, variation) if q.text), "")

    def _of(self, name: str, variation: str | None) -> list[Quantity]:
        return [q for q in self.quantities if q.name == name and variation in (None, q.variation)]


@dataclass(frozen=True, slots=True)
class Code:
    """Code of the user's that a replay ran: file, function, sha256 of the file, and which option allowed it."""

    file: str
    function: str
    sha256: str
    allowed_by: str


@dataclass(slots=True)
class Replay:
    """A replay directory. run: the name of the run directory; state: the capsule or checkpoint that it started from."""

    tool: str
    run: str
    step: int
    device: str
    state: str
    code: list[Code] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    finished: bool = False
    results: list[Result] = field(default_factory=list)


def number_to_json(value: float | None) -> float | str | None:
    """A number as strict JSON can hold it: non-finite ones are "nan", "inf" and "-inf"."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def number_from_json(value: Any) -> float | None:
    """The inverse of `number_to_json`. Raises ValueError for anything else."""
    if value is None:
        return None
    if value in ("nan", "inf", "-inf") or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        try:
            return float(value)
        except OverflowError:
            raise ValueError("a number beyond the range of float64") from None
    raise ValueError(f"{value!r} is no number")


def result_to_json(result: Result) -> dict[str, Any]:
    """A result as plain data."""
    return {
        "experiment": result.experiment,
        "step": result.step,
        "question": result.question,
        "changed": result.changed,
        "result": result.result,
        "conclusion": result.conclusion,
        "outcome": result.outcome,
        "quantities": [
            {"name": q.name, "value": number_to_json(q.value), "unit": q.unit, "variation": q.variation, "text": q.text}
            for q in result.quantities
        ],
    }


def result_from_json(data: Any) -> Result:
    """The inverse of `result_to_json`. Raises ValueError with a message that names what is wrong."""
    if not isinstance(data, Mapping):
        raise ValueError("a result is no JSON object")  # noqa: TRY004  bad content, not a wrong call
    texts = {key: data.get(key, "") for key in ("experiment", "question", "changed", "result", "conclusion")}
    wrong = [key for key, value in texts.items() if not isinstance(value, str)]
    if wrong or not texts["experiment"]:
        raise ValueError(f"{(wrong or ['experiment'])[0]} is no text")
    step, outcome, listed = data.get("step"), data.get("outcome"), data.get("quantities", [])
    if not isinstance(step, int) or isinstance(step, bool):
        raise ValueError(f"step {step!r} is no whole number")  # noqa: TRY004  likewise
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
    if not isinstance(listed, list) or not all(isinstance(q, Mapping) for q in listed):
        raise ValueError("quantities is no list of objects")
    return Result(**texts, step=step, outcome=outcome, quantities=tuple(_quantity(q) for q in listed))


def _quantity(data: Mapping[str, Any]) -> Quantity:
    texts = {key: str(data.get(key, "")) for key in ("name", "unit", "variation", "text")}
    return Quantity(value=number_from_json(data.get("value")), **texts)


def append(folder: Path, result: Result) -> None:
    """Add one result to a replay directory; it is on disk when this returns."""
    with (folder / RESULTS).open("a", encoding="utf-8", errors=_ESCAPED) as file:
        file.write(json.dumps(result_to_json(result), ensure_ascii=False, allow_nan=False) + "\n")


def write_header(folder: Path, replay: Replay) -> None:
    """Write replay.json (without the results), whole or not at all."""
    data = {
        "schema": SCHEMA,
        "tool": replay.tool,
        "run": replay.run,
        "step": replay.step,
        "device": replay.device,
        "state": replay.state,
        "code": [
            {"file": c.file, "function": c.function, "sha256": c.sha256, "allowed_by": c.allowed_by}
            for c in replay.code
        ],
        "environment": replay.environment,
        "notices": replay.notices,
        "finished": replay.finished,
    }
    partial = folder / PARTIAL
    partial.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors=_ESCAPED)
    partial.replace(folder / HEADER)
