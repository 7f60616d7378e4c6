"""The section on checkpoints and the optimizer as markup."""

from __future__ import annotations

from markupsafe import Markup

from gradforensics.report.checkpoints import CallRow, CheckpointRow, Checkpoints, GroupRow
from gradforensics.report.markup import Tables, cell, chip, evidence, joined, soft, tag, where
from gradforensics.report.tensors import would_run
from gradforensics.report.words import compact, magnitude, number, shorten

# How many rows of each kind a page shows; the JSON report has all checkpoints and calls.
CHECKPOINTS, CALLS, GROUPS = 100, 40, 40


class CheckpointPieces(Tables):
    """Builds the tables of the section from the pieces of the page."""

    def checkpoints(self, found: Checkpoints) -> Markup:
        """Every checkpoint, the last good one marked; of many the oldest are left out."""
        rows = [self._checkpoint(row) for row in found.rows[-CHECKPOINTS:]]
        heads = ("checkpoint", "step_head", "format", "complete", "size", "parameters", "nonfinite", "named")
        return self.table(heads, rows, numeric=(1, 4, 5, 6)) + self.cut(len(found.rows), CHECKPOINTS)

    def _checkpoint(self, row: CheckpointRow) -> Markup:
        words = self.words
        good = chip(words("last_good_chip"), "good") if row.last_good else ""
        complete = words({True: "yes", False: "no", None: "not_known"}[row.complete])
        bad = words("not_measured") if row.nonfinite is None else f"{row.nonfinite:,}"
        return tag(
            "tr",
            tag("td", joined([self.words.checkpoint(row.path), good])),
            cell(number(row.step)),
            evidence(shorten(row.format, 80), name="td"),
            tag("td", complete),
            cell(f"{magnitude(row.bytes)}B"),
            cell(f"{row.parameters:,}"),
            cell(bad, "bad" if row.nonfinite else ""),
            tag("td", words(f"names_{row.naming_sure}") if row.naming_sure else ""),
        )

    def worst(self, found: Checkpoints) -> Markup:
        """The tensors with NaN or infinities of the first checkpoint that holds any."""
        rows = [
            tag(
                "tr",
                tag("td", tag("code", shorten(t.name, 160)), f" @{t.rank}" if t.rank is not None else ""),
                evidence(t.role, name="td"),
                evidence(f"{t.dtype} {list(t.shape)}", name="td"),
                cell(f"{t.nan:,}", "bad" if t.nan else ""),
                cell(f"{t.inf:,}", "bad" if t.inf else ""),
                cell(f"{t.count:,}"),
                cell(compact(t.min)),
                cell(compact(t.max)),
            )
            for t in found.worst
        ]
        heads = ("tensor", "role", "type", "nan", "inf", "elements", "min", "max")
        return self.table(heads, rows, numeric=range(3, 8)) + self.cut(found.bad, len(found.worst), "more")

    def groups(self, found: Checkpoints) -> Markup:
        """The parameter groups of the newest checkpoint, and how its states were given their names."""
        rows = [self._group(group) for group in found.groups[:GROUPS]]
        heads = ("group", "optimizer", "lr", "betas", "eps", "weight_decay", "momentum", "step_head", "group_size")
        told = next((row.naming for row in found.rows if row.path == found.newest and row.naming), "")
        named = tag("p", self.words("naming"), ": ", self.words.message(told, 400), kind="soft") if told else ""
        table = self.table(heads, rows, numeric=range(2, 9))
        return table + self.cut(len(found.groups), GROUPS, "more") + named

    def _group(self, group: GroupRow) -> Markup:
        span = "" if group.step_min is None else str(group.step_min)
        span += "" if group.step_max in (None, group.step_min) else f"–{group.step_max}"
        betas = "" if group.betas is None else ", ".join(compact(beta, 6) for beta in group.betas)
        numbers = (group.eps, group.weight_decay, group.momentum)
        return tag(
            "tr",
            tag("td", str(group.group), "" if group.rank is None else f" @{group.rank}"),
            tag("td", evidence(group.optimizer) if group.optimizer else soft(self.words("not_known"))),
            cell(number(group.lr)),
            cell(betas),
            *(cell(number(value)) for value in numbers),
            cell(span),
            cell(f"{group.parameters:,}"),
        )

    def dangerous(self, found: Checkpoints) -> Markup:
        """The calls that are known to run code."""
        items = [
            tag("li", joined([chip(self.words("dangerous"), "alarm"), self._call(c)])) for c in found.dangerous[:CALLS]
        ]
        return tag("ul", *items, kind="plain") + self.cut(len(found.dangerous), CALLS)

    def others(self, found: Checkpoints) -> Markup:
        """All other names that the pickles would import."""
        others = [call for call in found.calls if not call.danger]
        items = [tag("li", self._call(call)) for call in others[:CALLS]]
        return tag("ul", *items, kind="plain") + self.cut(len(others), CALLS)

    def _call(self, call: CallRow) -> Markup:
        return joined([tag("code", would_run(call.name, call.arguments)), where(call.source, None)])
