"""What gives access to something leaves the evidence before anything looks at it: no output can repeat it then."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from gradforensics.rewriting import rewritten
from gradforensics.secrecy import masked, of_setting
from gradforensics.tables import Evidence, Fact

# Their only texts are names of tensors and files, 10^5 of them; outputs are searched for issued keys in any case.
_NAMES_ONLY = frozenset({"tensors", "moments", "travels"})
_VARIABLE = "env:"


def hide_secrets(evidence: Evidence) -> None:
    """Put *** in the place of keys, tokens and passwords in everything that was read of a run."""
    if evidence.settings is not None:
        evidence.settings = [replace(one, value=of_setting(one.key, one.value)) for one in evidence.settings]
    if evidence.environment is not None:
        evidence.environment = [_fact(one) for one in evidence.environment]
    if evidence.events is not None:
        evidence.events = rewritten(evidence.events, masked)
    evidence.notices[:] = rewritten(evidence.notices, masked)
    evidence.sources[:] = rewritten(evidence.sources, masked)
    evidence.replays[:] = rewritten(evidence.replays, masked)
    evidence.ending = rewritten(evidence.ending, masked)
    for name in evidence.tables.keys() - _NAMES_ONLY:
        evidence.tables[name] = _table(evidence.tables[name])


def _fact(fact: Fact) -> Fact:
    return replace(fact, value=of_setting(fact.key.removeprefix(_VARIABLE), fact.value))


def _table(table: pl.DataFrame) -> pl.DataFrame:
    """The table with its texts masked; few of them differ."""
    changed: list[pl.Series] = []
    for column in table.iter_columns():
        if column.dtype == pl.String:
            told = {text: masked(text) for text in column.unique().drop_nulls().to_list()}
            if any(old != new for old, new in told.items()):
                changed.append(column.replace(told))
    return table.with_columns(changed)
