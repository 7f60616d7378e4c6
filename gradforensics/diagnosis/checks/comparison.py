"""Checks on the comparison itself: whether the run and its baseline can be told apart by one thing only."""

from __future__ import annotations

from gradforensics.diagnosis.two_runs.changes import changes
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.tables import Evidence

_NAMED = 12  # things that a text names


@check(needs=["baseline:series:loss"], facts=["count", "changed", "other"])
def differs_in_several_things(evidence: Evidence, *, most: int, shared: int) -> Answer:
    """The run and the one named with --baseline differ in more than `most` things, as far as both state them.

    Every setting is one thing; the seeds, the environment, the data and the code are one each. shared: settings that
    both must state, else nothing is said. A sibling that was chosen for its few differences is no comparison that the
    user made, and not judged.
    """
    other = evidence.baseline
    if other is None or evidence.baseline_is_sibling:
        return Missing("baseline:series:loss")
    found = changes(evidence, other)
    if len(found.things) > most:
        keys = [change.key for thing in found.things for change in thing]
        more = len(keys) - _NAMED
        changed = ", ".join(keys[:_NAMED]) + (f" (+{more})" if more > 0 else "")
        facts: dict[str, Fact] = {"count": len(found.things), "changed": changed, "other": other.name}
        return [Hit(None, series="settings", facts=facts)]
    if found.shared < shared:
        return Missing("settings of both runs")
    return []


CHECKS: tuple[Check, ...] = (differs_in_several_things,)
