"""How two runs compare, as dictionaries and lists: for the JSON of `compare`, and for that of a run with a baseline."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gradforensics.diagnosis.two_runs.contrast import Contrast


def contrast_data(found: Contrast) -> dict[str, Any]:
    """The parts of a contrast by name; numbers may still be non-finite, and values of settings anything."""
    return {
        "parted": found.parted,
        "confounded": found.changes.confounded,
        "result": None if found.result is None else found.result.label,
        "earliest": None if found.earliest is None else found.earliest.label,
        "partings": [{"series": one.label, **asdict(one)} for one in found.partings],
        "changes": [asdict(one) for one in found.changes.counted],
        "things": len(found.changes.things),
        "uncertain": [asdict(one) for one in found.changes.uncertain],
        "one_sided": [asdict(one) for one in found.changes.one_sided],
        "unknown": list(found.changes.unknown),
        "shared_checkpoints": [{**asdict(one), "same": one.same} for one in found.weights],
        "candidates": [asdict(one) for one in found.candidates],
    }
