"""The report's own data in its page: JSON in an element that nothing runs."""

from __future__ import annotations

import json
import re

from markupsafe import Markup

from gradforensics.report import as_json
from gradforensics.report.model import Report

MOST = 300_000
"""Largest block of data, in bytes; a page with more data says how to have them as a file."""
_LEAST_PER_VERDICT = 300  # bytes: what is larger for certain need not be put together to see that
# What could end the element, or is spelled out everywhere in the page: control, bidirectional and surrogate characters.
_ESCAPED = re.compile("[<>&\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def data_block(report: Report) -> Markup | None:
    """The data of the JSON report as the content of a script element; None where they are too large."""
    if sum(len(run.verdicts) for run in report.runs) * _LEAST_PER_VERDICT > MOST:
        return None
    text = json.dumps(as_json.data(report), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    text = _ESCAPED.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
    return None if len(text.encode()) > MOST else Markup(text)  # noqa: S704  # nothing in it can end the element
