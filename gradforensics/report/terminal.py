"""The report on a terminal: one line per finding, then what follows from it. Plain ANSI, no library."""

from __future__ import annotations

from collections.abc import Sequence

from gradforensics.diagnosis.rule_model import is_command
from gradforensics.report.comparison import told
from gradforensics.report.messages import message
from gradforensics.report.model import Compared, Report, RunReport, VerdictRow
from gradforensics.report.overview import by_weight
from gradforensics.report.pen import Pen, flat
from gradforensics.report.replays import ReplayRow
from gradforensics.report.tensors import would_run
from gradforensics.report.words import Words, place, ranges, shorten

_OVERVIEW = 50  # runs that the overview lists
_TOLD = 5  # of several runs, those that are told in full: the gravest
_NODES = 4  # nodes to drain, by name
_KEYS = 8  # settings that differ from the compared run's, by name


def render(report: Report, *, color: bool, width: int, written: Sequence[str] = ()) -> str:
    """The summary, ending in a newline. `written`: where the outputs lie."""
    pen = Pen(color=color, width=width, words=Words(report.language))
    if len(report.runs) > 1:
        _overview(pen, report)
    told = _told(report)
    for index, run in enumerate(told):
        if index:
            pen.lines.append("")
        _run(pen, run)
    if len(told) < len(report.runs):
        pen.lines += ["", pen.words("t_others", n=len(report.runs) - len(told))]
    pen.lines.append("")
    pen.lines.append(_tally(pen, report))
    pen.lines += [flat(pen.words("report_at", path=path)) for path in written]
    return pen.text()


def _told(report: Report) -> list[RunReport]:
    """The runs that are told in full: all of a few, of many the gravest among those with an alarm."""
    runs = by_weight(report.runs)
    return runs if len(runs) <= _TOLD else [run for run in runs if run.primary is not None][:_TOLD]


def _overview(pen: Pen, report: Report) -> None:
    """One line per run: what is wrong with it, if anything, and how it ended. The gravest come first."""
    words = pen.words
    for run in by_weight(report.runs)[:_OVERVIEW]:
        colour = "red" if run.primary else ("green" if run.having("clear") else "yellow")
        verdict = run.primary.rule if run.primary else words("no_alarm" if run.having("clear") else "no_verdict")
        weaker = f" ({', '.join(v.rule for v in run.weaker)} {words('below_alarm')})" if run.weaker else ""
        told = [verdict if run.primary else f"{verdict}{weaker}", words.steps(run), words.ended(run)]
        told[0] = pen.paint(told[0], colour)
        pen.lines.append(f"{told[0]}  {flat(run.name)}  {', '.join(filter(None, told[1:]))}")
    if len(report.runs) > _OVERVIEW:
        pen.lines.append(words("and_more", n=len(report.runs) - _OVERVIEW))
    pen.lines.append("")


def _run(pen: Pen, run: RunReport) -> None:
    words = pen.words
    pen.lines.append(f"{pen.paint(flat(run.name), 'bold')} ({words.record(run)})")
    if run.primary is None:
        pen.lines.append(pen.paint(words.headline(run), "green" if run.calm else "yellow"))
        if run.ignored:
            pen.lines.append(words.sentence(words.count("ignored_n", len(run.ignored))))
    for verdict in run.findings:
        pen.lines.append(_finding(pen, run, verdict))
    if run.chain:
        pen.row(pen.words("t_chain"), "; ".join(f"{cause} -> {effect}" for cause, effect in run.chain))
    _ending(pen, run)
    if run.last_good_checkpoint:
        path = run.last_good_checkpoint
        pen.row(words("t_last_good"), words("folder_itself") if path == "." else path)
    _drain(pen, run)
    if run.baselines and run.compared is None:
        why = f"{words('baselines_why')}; {words('baselines_how')}"
        pen.row(words("t_baselines"), f"{', '.join(run.baselines)} ({why})")
    if run.compared:
        keys = ", ".join(one.key for one in run.compared.differences[:_KEYS])
        told = words.differing(len(run.compared.differences))
        sibling = f" ({words('sibling')})" if run.compared.sibling else ""
        pen.row(words("t_compared"), f"{run.compared.name}{sibling}; {told}{': ' if keys else ''}{keys}")
        _contrast(pen, run.compared)
    _danger(pen, run)
    _replays(pen, run)
    if run.primary is not None:
        if run.primary.fix:
            pen.row(pen.words("t_fix"), run.primary.fix[0].in_(words.language))
        verify = run.primary.verify.in_(words.language)
        for i, line in enumerate(verify.splitlines()):
            pen.row("" if i else pen.words("t_verify"), line, wrap=not is_command(line))
    _blind(pen, run)


def _finding(pen: Pen, run: RunReport, verdict: VerdictRow) -> str:
    """One line, such as `train.jsonl:412: GF05 [S1 probable] The loss left ... (step 120)`."""
    shown = [h for h in verdict.hits if h.source]
    first = next((h for h in shown if h.step == verdict.onset), shown[0] if shown else None)
    where = flat(place(first.source, first.line) if first else run.name)
    tag = f"{verdict.severity} {pen.words(verdict.strength or 'suspect')}"
    ignored = flat(pen.words("ignored_why", reason=verdict.ignored)) if verdict.ignored else ""
    language = pen.words.language
    text = flat(verdict.what.in_(language) or verdict.title.in_(language))
    onset = f" ({pen.words('step_n', n=verdict.onset)})" if verdict.onset is not None else ""
    colour = "red" if verdict.alarm else "yellow"
    return f"{pen.paint(where, 'cyan')}: {pen.paint(verdict.rule, colour)} [{tag}] {text}{onset}{ignored}"


def _ending(pen: Pen, run: RunReport) -> None:
    ending = run.ending
    if ending.kind == "unknown" and not ending.text:
        return
    text = pen.words(ending.kind)
    if ending.text:
        told = message(ending.text).in_(pen.words.language)
        text += f": {' '.join(told.split())[:200]}"
    where = place(ending.source, ending.line)
    pen.row(pen.words("t_ended"), f"{text} ({where})" if where else text)


def _drain(pen: Pen, run: RunReport) -> None:
    """The nodes to drain, each with the finding that names it and the line that tells it.

    Those with an error that ended nothing can wait for the page.
    """
    words, told = pen.words, []
    nodes = [one for one in run.drain if one.reason != "outlived"]
    for one in nodes[:_NODES]:
        node = one.host
        if node is None:
            known = words("t_drain_ranks", ranks=ranges(one.ranks))
            node = known if one.ranks else words("t_drain_file", source=one.source)
        told.append(f"{node}: {one.rule}, {place(one.source, one.line)}")
    if len(nodes) > _NODES:
        told.append(words("and_more", n=len(nodes) - _NODES))
    if told:
        pen.row(words("t_drain"), "; ".join(told), colour="red")


def _contrast(pen: Pen, compared: Compared) -> None:
    """From which step on the two runs differ, and whether the comparison is a clean one."""
    found = compared.contrast
    if found is None:
        return
    pen.row("", told.bare(told.headline(pen.words, found)))
    if found.changes.confounded and compared.sibling:  # beside a baseline GF44 says it
        pen.row("", told.bare(told.verdict(pen.words, found.changes)))


def _danger(pen: Pen, run: RunReport) -> None:
    """The first pickle that would run something, and how many more there are."""
    calls = run.checkpoints.dangerous if run.checkpoints else ()
    if calls:
        call = would_run(calls[0].name, calls[0].arguments)
        text = pen.words("t_would_run", call=call, source=calls[0].source)
        more = f" ({pen.words('and_more', n=len(calls) - 1)})" if len(calls) > 1 else ""
        pen.row(pen.words("t_danger"), text + more, colour="red")


def _replays(pen: Pen, run: RunReport) -> None:
    """What the replay of a step found, and the first fix that it verified."""
    if not run.replays:
        return
    onset = run.primary.onset if run.primary else None
    told = max(
        run.replays,
        key=lambda one: (one.fault is not None, one.telling is not None, one.step == onset, _clean(one)),
    )
    if told.telling:
        text = message(told.telling.told).in_(pen.words.language)
    else:
        clean = _clean(told)
        text = pen.words("t_no_fault" if clean else "t_no_answer", clean=clean, rest=len(told.results) - clean)
    pen.row(pen.words("t_replay"), f"{pen.words('step_n', n=told.step)}: {shorten(text, 240)}")
    fix = next(iter((*(run.primary.verified if run.primary else ()), *told.verified)), None)
    if fix:
        changed, result = (message(text).in_(pen.words.language) for text in (fix.changed, fix.result))
        pen.row(pen.words("t_verified"), shorten(f"{changed}: {result}", 300), colour="green")


def _clean(replay: ReplayRow) -> int:
    return sum(one.outcome == "clean" for one in replay.results)


def _blind(pen: Pen, run: RunReport) -> None:
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
        blank = "" if pen.words.language == "zh" else " "
        text = f"{pen.words.sentence(text)}{blank}{line.in_(pen.words.language)} ({pen.words.helped(rules)})"
    pen.row(pen.words("t_blind"), text)


def _tally(pen: Pen, report: Report) -> str:
    words = pen.words
    alarms = sum(len(r.alarms) for r in report.runs)
    weaker = sum(len(r.weaker) for r in report.runs)
    ignored = sum(len(r.ignored) for r in report.runs)
    counts = [words.count("alarms_n", alarms)]
    if weaker:
        counts.append(f"{words.count('findings_n', weaker)} {words('below_alarm')}")
    if ignored:
        counts.append(words.count("ignored_n", ignored))
    counts += [f"{sum(len(r.having(o)) for r in report.runs)} {words(o)}" for o in ("clear", "not_judged")]
    if len(report.runs) > 1:
        counts.insert(0, words.count("runs_n", len(report.runs)))
    judged = any(r.having("clear") for r in report.runs)
    return pen.paint(", ".join(counts), "red" if alarms else ("green" if judged else "yellow"))
