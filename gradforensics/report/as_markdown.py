"""The report as Markdown, for an issue, a pull request, the summary of a job or a chat; in the report's language.

What the evidence wrote stands in code; nothing in it becomes markup, a link, a mention, a reference or an image.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gradforensics.diagnosis.rule_model import is_command
from gradforensics.languages import Text
from gradforensics.report.markdown import block, code, code_cell, prose, table, within
from gradforensics.report.messages import message
from gradforensics.report.model import HitRow, Report, RunReport, VerdictRow
from gradforensics.report.overview import by_weight
from gradforensics.report.words import Words, number, ordered_chain, place

LIMIT = 65_536
"""Characters that GitHub accepts in one issue or comment."""

# rows of each kind; the other outputs have them all
_HITS, _EXCERPTS, _FINDINGS, _GAPS, _RUNS, _TOLD = 12, 3, 20, 3, 100, 3
_REPORT = "gradforensics-report.html"


def render(report: Report) -> str:
    """The report as Markdown text, at most LIMIT characters."""
    writer = _Writer(report)
    return within(list(writer.blocks()), LIMIT, writer.words("cut_here", limit=LIMIT))


class _Writer:
    """Writes one report, block by block."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.words = Words(report.language)

    def text(self, text: Text) -> str:
        """A text in the report's language."""
        return prose(text.in_(self.words.language))

    def code(self, told: str) -> str:
        """What the evidence or a reader of it says, as code: a message in the report's language."""
        return code(message(told).in_(self.words.language), 300)

    def blocks(self) -> Iterator[str]:
        """All blocks, the most useful first."""
        runs = self.report.runs
        yield f"<!-- {self.report.tool} -->"  # an output of ours begins with it
        if len(runs) > 1:
            yield from self.overview()
            alarmed = [run for run in by_weight(runs) if run.alarms]
            for run in alarmed[:_TOLD]:
                yield from self.run(run, several=True)
            if len(alarmed) > _TOLD:
                yield self.words("t_others", n=len(alarmed) - _TOLD)
        else:
            for run in runs:
                yield from self.run(run, several=False)
        yield from self.whole_report()

    def overview(self) -> Iterator[str]:
        """All runs in one table, those with an alarm first."""
        words, runs = self.words, self.report.runs
        alarms = sum(len(run.alarms) for run in runs)
        yield f"## {words.count('runs_n', len(runs))}: {words.count('alarms_n', alarms)}"
        rows = [
            [
                code_cell(run.name, 80),
                f"**{run.primary.rule}** {prose(words.headline(run))}" if run.primary else prose(words.calm(run)),
                prose(words.onset(run.primary)) if run.primary else "",
                words.ended(run),
            ]
            for run in by_weight(runs)[:_RUNS]
        ]
        heads = [words(key) for key in ("run", "verdict", "onset", "ending")]
        yield table(heads, rows)
        if len(runs) > _RUNS:
            yield words("more_rows", n=len(runs) - _RUNS)
        if any(run.having("clear") for run in runs):
            yield prose(f"{words('clear_means')}{words.space}{words('still_open')}")

    def run(self, run: RunReport, *, several: bool) -> Iterator[str]:
        """One run: the verdict, what to do, then what proves it."""
        words, primary = self.words, run.primary
        sub = "###" if not several else "####"
        yield f"{sub[:-1]} {code(run.name) + ': ' if several else ''}{prose(words.headline(run))}"
        if primary is None:
            weaker = words.clear_means(run)
            if weaker:
                yield prose(weaker)
        else:
            yield f"{self.named(primary)} · {self.weight(primary)}"
            yield self.text(primary.what)
        yield "\n".join(self.facts(run, several=several))
        if primary is not None:
            yield from self.next(primary, sub)
            yield from self.evidence(primary, sub)
            yield from self.chain(run, sub)
            yield from self.fixes(primary, sub)
        yield from self.findings(run, sub)
        yield from self.gaps(run, sub)

    def named(self, verdict: VerdictRow) -> str:
        """Its id, slug and variant."""
        variant = f" / {code(verdict.variant)}" if verdict.variant else ""
        return f"**{verdict.rule}** {prose(verdict.slug)}{variant}"

    def weight(self, verdict: VerdictRow) -> str:
        """Severity and strength, and the reason where it is ignored."""
        told = f"{self.words(verdict.severity or 'S4')} · {self.words(verdict.strength or 'suspect')}"
        return told + (f" · {self.words('ignored')}: {prose(verdict.ignored, 300)}" if verdict.ignored else "")

    def facts(self, run: RunReport, *, several: bool) -> Iterator[str]:
        """A list of what a reader asks first."""
        words = self.words

        def fact(key: str, told: str) -> str:
            return f"- **{words(key)}**: {told}"

        if not several:
            yield fact("run", code(run.name))
        if run.primary is not None:
            yield fact("onset", prose(words.onset(run.primary)))
        where = code(place(run.ending.source, run.ending.line))
        quoted = f": {self.code(run.ending.text)}" if run.ending.text else ""
        yield fact("ending", f"{words(run.ending.kind)}{quoted}{f' ({where})' if where else ''}")
        if run.last_good_checkpoint:
            path = run.last_good_checkpoint
            yield fact("last_good", words("folder_itself") if path == "." else code(path))
        yield fact("record", words.record(run))

    def next(self, verdict: VerdictRow, sub: str) -> Iterator[str]:
        """The next action, and how to verify the verdict."""
        verify = verdict.verify.in_(self.words.language)
        if verdict.fix or verify:
            yield f"{sub} {self.words('next')}"
        if verdict.fix:
            yield self.text(verdict.fix[0])
        for one in verdict.verified:
            yield f"{self.words('verified_fix')}: {self.code(one.changed)}: {self.code(one.result)}"
        if verify:
            yield self.words("then_verify") + ":"
            for line in verify.splitlines():
                yield block(line, "sh") if is_command(line) else prose(line)

    def evidence(self, verdict: VerdictRow, sub: str) -> Iterator[str]:
        """The hits, the first lines of the logs that hold them, and what looks the same."""
        if not verdict.hits:
            return
        words = self.words
        yield f"{sub} {words('evidence')}"
        heads = [words(key) for key in ("sign", "series", "step_head", "value", "where")]
        yield table(heads, [self.hit(hit) for hit in verdict.hits[:_HITS]])
        if len(verdict.hits) > _HITS:
            yield words("more_hits", n=len(verdict.hits) - _HITS)
        for hit in [one for one in verdict.hits if one.excerpt][:_EXCERPTS]:
            yield f"{code(place(hit.source, hit.line))}:"
            yield block(hit.excerpt, "text", 600)
        those = [("look_refuted_by", one) for one in verdict.refuted_by]
        those += [("look_not_excluded", one) for one in verdict.not_excluded]
        if those:
            yield f"{sub} {words('look_alikes')}"
            yield "\n".join(
                f"- {words(state)}: **{one.case}** {self.text(one.title)}: {self.text(one.tell)}"
                for state, one in those
            )

    def hit(self, hit: HitRow) -> list[str]:
        """One row of the evidence."""
        sign = f"{prose(hit.sign.replace('_', ' '))} ({self.words(hit.strength)})"
        read = code_cell(hit.series or hit.tensor or "")
        return [sign, read, number(hit.step), prose(number(hit.value)), code_cell(place(hit.source, hit.line))]

    def chain(self, run: RunReport, sub: str) -> Iterator[str]:
        """What leads to what among the alarms."""
        if len(run.alarms) < 2:
            return
        yield f"{sub} {self.words('chain')}"
        if not run.chain:
            yield self.words("side_by_side")
            return
        lines = []
        for cause, effects in ordered_chain(run.chain):
            lines.append(f"- {self.node(run, cause)} → {', '.join(self.node(run, one) for one in effects)}")
        yield "\n".join(lines)

    def node(self, run: RunReport, rule: str) -> str:
        """One case of the chain."""
        verdict = run.verdict(rule)
        if verdict is None:
            return f"**{rule}**"
        onset = "" if verdict.onset is None else f" ({self.words('step_n', n=verdict.onset)})"
        return f"**{rule}** {prose(verdict.slug)}{onset}"

    def fixes(self, verdict: VerdictRow, sub: str) -> Iterator[str]:
        """Why it happens, the fixes besides the first, and when it is a false alarm."""
        why = verdict.why.in_(self.words.language)
        if why:
            yield f"{sub} {self.words('why')}"
            yield prose(why)
        if len(verdict.fix) > 1:
            yield f"{sub} {self.words('other_fixes')}"
            yield "\n".join(f"- {self.text(fix)}" for fix in verdict.fix[1:])
        if verdict.false_alarms:
            yield f"{sub} {self.words('false_alarms')}"
            yield "\n".join(f"- {self.text(one)}" for one in verdict.false_alarms)

    def findings(self, run: RunReport, sub: str) -> Iterator[str]:
        """The findings besides the primary one, the ignored ones with their reasons."""
        others = [one for one in run.findings if one is not run.primary]
        if not others:
            return
        words = self.words
        yield f"{sub} {words('other_findings' if run.primary else 'findings')}"
        rows = []
        for one in others[:_FINDINGS]:
            first = next((hit for hit in one.hits if hit.source), None)
            where = code_cell(place(first.source, first.line)) if first else ""
            told = self.text(one.what) if one.what.en else self.text(one.title)
            rows.append([f"**{one.rule}**", self.weight(one), prose(words.onset(one)), told, where])
        yield table([words(key) for key in ("rule", "verdict", "onset", "title", "where")], rows)
        if len(others) > _FINDINGS:
            yield words("more_rows", n=len(others) - _FINDINGS)

    def gaps(self, run: RunReport, sub: str) -> Iterator[str]:
        """What was not judged, and what to log next time."""
        blind = run.having("not_judged")
        if not blind:
            return
        words = self.words
        told = words("not_judged_n", n=len(blind), rules=words.count("rules", len(run.verdicts)))
        untested = sum(not one.testable for one in blind)
        yield f"{sub} {told}" + (f" ({words.count('untested', untested)})" if untested else "")
        advice = run.advice()
        if advice:
            yield "\n".join(f"- {self.text(line)} ({words.helped(rules)})" for line, rules in advice[:_GAPS])

    def whole_report(self) -> Iterator[str]:
        """How to have the page with everything."""
        paths = dict.fromkeys(run.path or "RUN_DIR" for run in self.report.runs)
        named = list(paths) if len(paths) <= 4 else ["RUN_DIR"]
        yield "---"
        yield prose(self.words("how_to_report", tool=self.report.tool))
        yield block(f"gradforensics analyze {' '.join(map(shlex.quote, named))} -o {_REPORT}", "sh", 2000)
