"""The report on a terminal: one line per finding, then what follows from it. Plain ANSI, no library."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gradforensics.report.model import Report, RunReport, VerdictRow
from gradforensics.report.words import Words, columns, is_command, place, printable

_CODES = {"red": "31;1", "yellow": "33", "green": "32", "dim": "2", "bold": "1", "cyan": "36"}


class _Pen:
    def __init__(self, *, color: bool, width: int, words: Words) -> None:
        self.color, self.width, self.words = color, max(40, width), words
        self.lines: list[str] = []

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.color and text else text

    def row(self, label: str, text: str, *, wrap: bool = True) -> None:
        """An indented line with a label, wrapped to the width (not where it is to be copied)."""
        head = f"  {label}{' ' * (11 - columns(label))} "
        body = _flat(text)
        parts = (
            textwrap.wrap(body, max(20, self.width - columns(head)), break_long_words=False, break_on_hyphens=False)
            if wrap
            else [body]
        )
        for i, part in enumerate(parts or [""]):
            self.lines.append((self.paint(head, "dim") if i == 0 else " " * columns(head)) + part)


def _flat(text: str) -> str:
    """One harmless line: no control characters (they could steer the terminal), no line breaks."""
    return printable(text).replace("\n", " ").replace("\t", " ")


def render(report: Report, *, color: bool, width: int, written: Sequence[str] = ()) -> str:
    """The summary, ending in a newline. `written`: where the outputs lie."""
    pen = _Pen(color=color, width=width, words=Words(report.language))
    for index, run in enumerate(report.runs):
        if index:
            pen.lines.append("")
        _run(pen, run)
    pen.lines.append("")
    pen.lines.append(_tally(pen, report))
    pen.lines += [_flat(pen.words("report_at", path=path)) for path in written]
    return "\n".join(pen.lines) + "\n"


def _run(pen: _Pen, run: RunReport) -> None:
    words = pen.words
    pen.lines.append(
        f"{pen.paint(_flat(run.name), 'bold')} ({words.steps(run)}, {words.count('attempts', run.attempts)})"
    )
    if run.primary is None:
        pen.lines.append(pen.paint(words.headline(run), "green" if run.having("clear") else "yellow"))
    for verdict in run.findings:
        pen.lines.append(_finding(pen, run, verdict))
    if run.chain:
        pen.row(pen.words("t_chain"), "; ".join(f"{cause} -> {effect}" for cause, effect in run.chain))
    _ending(pen, run)
    if run.last_good_checkpoint:
        pen.row(pen.words("t_last_good"), run.last_good_checkpoint)
    if run.primary is not None:
        if run.primary.fix:
            pen.row(pen.words("t_fix"), run.primary.fix[0])
        if run.primary.verify:
            pen.row(pen.words("t_verify"), run.primary.verify, wrap=not is_command(run.primary.verify))
    _blind(pen, run)


def _finding(pen: _Pen, run: RunReport, verdict: VerdictRow) -> str:
    """One line, such as `train.jsonl:412: GF05 [S1 probable] The loss left ... (step 120)`."""
    shown = [h for h in verdict.hits if h.source]
    first = next((h for h in shown if h.step == verdict.onset), shown[0] if shown else None)
    where = _flat(place(first.source, first.line) if first else run.name)
    tag = f"{verdict.severity} {pen.words(verdict.strength or 'suspect')}"
    text = _flat(verdict.what or verdict.title)
    onset = f" ({pen.words('step_n', n=verdict.onset)})" if verdict.onset is not None else ""
    colour = "red" if verdict.alarm else "yellow"
    return f"{pen.paint(where, 'cyan')}: {pen.paint(verdict.rule, colour)} [{tag}] {text}{onset}"


def _ending(pen: _Pen, run: RunReport) -> None:
    ending = run.ending
    text = pen.words(ending.kind)
    if ending.text:
        text += f": {' '.join(ending.text.split())[:200]}"
    where = place(ending.source, ending.line)
    pen.row(pen.words("t_ended"), f"{text} ({where})" if where else text)


def _blind(pen: _Pen, run: RunReport) -> None:
    """What could not be judged, and the line that would help most."""
    blind = run.having("not_judged")
    if not blind:
        return
    untested = sum(not v.testable for v in blind)
    text = pen.words("t_of", n=len(blind), rules=pen.words.count("rules", len(run.verdicts)))
    if untested:
        text += f" ({pen.words.count('untested', untested)})"
    advice = run.advice()
    if advice:
        line, rules = advice[0]
        text += f". {line} ({pen.words('would_judge')} {', '.join(rules)})"
    pen.row(pen.words("t_blind"), text)


def _tally(pen: _Pen, report: Report) -> str:
    words = pen.words
    alarms = sum(len(r.alarms) for r in report.runs)
    weaker = sum(len(r.findings) for r in report.runs) - alarms
    counts = [words.count("alarms_n", alarms)]
    if weaker:
        counts.append(f"{words.count('findings_n', weaker)} {words('below_alarm')}")
    counts += [f"{sum(len(r.having(o)) for r in report.runs)} {words(o)}" for o in ("clear", "not_judged")]
    if len(report.runs) > 1:
        counts.insert(0, words.count("runs_n", len(report.runs)))
    judged = any(r.having("clear") for r in report.runs)
    return pen.paint(", ".join(counts), "red" if alarms else ("green" if judged else "yellow"))
