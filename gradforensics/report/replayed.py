"""What a replay found on a terminal: question, what was changed, result, conclusion; then the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from gradforensics.experiments import Outcome, Replay, Result
from gradforensics.languages import Language
from gradforensics.questions import QUESTIONS
from gradforensics.report.messages import message
from gradforensics.report.pen import Pen, flat
from gradforensics.report.words import Words

_COLOURS: dict[Outcome, str] = {
    "fault": "red", "failed": "red", "verified": "green", "clean": "green", "unverified": "yellow",
    "inconclusive": "yellow", "not-run": "dim",
}  # fmt: skip


def render(replay: Replay, *, run: Path | None, folder: Path, language: Language, color: bool, width: int) -> str:
    """The summary, ending in a newline. run: the run directory, where there is one; folder: the replay directory."""
    pen = Pen(color=color, width=width, words=Words(language))
    for name in QUESTIONS:
        results = [one for one in replay.results if one.experiment == name]
        if results:
            _experiment(pen, name, results)
    pen.lines.append("")
    pen.lines.append(_tally(pen, replay))
    if run is None:
        pen.lines.append(flat(str(folder)))
    else:
        pen.lines.append(flat(f"gradforensics analyze {shlex.quote(str(run))} --with {shlex.quote(str(folder))}"))
    return pen.text()


def _experiment(pen: Pen, name: str, results: Sequence[Result]) -> None:
    words = pen.words

    def told(text: str) -> str:
        return message(text).in_(words.language)

    pen.lines.append(f"{pen.paint(name, 'bold')}  {flat(told(results[0].question))}")
    for one in results:
        if one.outcome == "not-run":
            pen.row(words("r_not_run"), told(one.conclusion))
            continue
        pen.row(words("r_changed"), told(one.changed))
        pen.row(words("r_result"), told(one.result))
        said = words("r_said", outcome=words(f"out_{one.outcome}"), conclusion=told(one.conclusion))
        pen.row(words("r_conclusion"), said, colour=_COLOURS[one.outcome])


def _tally(pen: Pen, replay: Replay) -> str:
    """How many results of each outcome there are, the worst first."""
    words = pen.words
    counts = {outcome: sum(one.outcome == outcome for one in replay.results) for outcome in _COLOURS}
    each = [words("r_count", n=n, outcome=words(f"out_{outcome}")) for outcome, n in counts.items() if n]
    colour = next((_COLOURS[outcome] for outcome, count in counts.items() if count), "yellow")
    return pen.paint(words("r_tally", n=replay.step, results=", ".join(each) or words("r_none")), colour)
