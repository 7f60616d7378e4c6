"""A pickle machine that can only build data: no import, no call, no attribute of anything that the file names.

Every operation costs an estimate of the memory that it makes Python allocate; a pickle that would need more than its
budget of memory or of CPU time is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradforensics.untrusted.files import Opened, RefusedError
from gradforensics.untrusted.machine import NESTED, ORDINARY, TAKEN_APART, Feed, Limits, Loaded, Machine, Use
from gradforensics.untrusted.opcodes import COST, OPERATIONS

__all__ = ["NESTED", "ORDINARY", "TAKEN_APART", "Limits", "Loaded", "Use", "load"]


def load(
    opened: Opened,
    start: int = 0,
    end: int | None = None,
    *,
    limits: Limits = ORDINARY,
    persistent: Callable[[Any], Any] | None = None,
    nested: Callable[[bytes], Loaded] | None = None,
) -> Loaded:
    """Read one pickle from byte `start` on, up to byte `end` at most, as data. Raises RefusedError.

    persistent: what a persistent id (torch's storages) becomes; without it a Record. nested: what the bytes of a
    storage inside of the pickle become; without it a Record.
    """
    feed = Feed(opened, start, opened.size if end is None else end)
    machine = Machine(feed, limits, persistent, nested)
    try:
        value = machine.run(OPERATIONS, COST)
    except RefusedError as error:  # loading it would have carried out whatever stands before
        error.uses = {**error.uses, **machine.uses}
        raise
    return Loaded(value, feed.position, machine.uses)
