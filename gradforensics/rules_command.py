"""gradforensics rules: the catalogue, one rule explained, rule files linted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gradforensics.command_support import harmless, load
from gradforensics.errors import UsageError
from gradforensics.language_option import language_option

if TYPE_CHECKING:
    from gradforensics.languages import Language


@click.group()
def rules() -> None:
    """The catalogue of cases."""


@rules.command("list")
@click.option(
    "--rules", "folder", type=click.Path(file_okay=False), help="Rule files below this folder instead of the catalogue."
)
@language_option
def rules_list(folder: str | None, language: Language) -> int:
    """List every case: id, severity, slug, title."""
    from gradforensics.report.words import Words

    untested = Words(language)("rule_untested")
    for rule in load(folder):
        tested = "" if rule.signs else f"  ({untested})"
        click.echo(f"{rule.id}  {rule.severity}  {rule.slug:<24}  {rule.text(language).title}{tested}")
    return 0


@rules.command("show")
@click.argument("name", metavar="ID")
@click.option(
    "--rules", "folder", type=click.Path(file_okay=False), help="Rule files below this folder instead of the catalogue."
)
@language_option
def rules_show(name: str, folder: str | None, language: Language) -> int:
    """Explain one case, by id (GF07) or slug."""
    known = load(folder)
    chosen = next((r for r in known if name.lower() in (r.id.lower(), r.slug)), None)
    if chosen is None:
        raise UsageError(f"there is no rule {name!r}; see gradforensics rules list")
    from gradforensics.report.rule_page import render

    click.echo(render(chosen, language), nl=False)
    return 0


@rules.command("check")
@click.argument("folder", type=click.Path(file_okay=False, exists=True))
def rules_check(folder: str) -> int:
    """Check the rule files below FOLDER: the format, what a rule must hold, and every example.

    All complaints are printed, each with file and line; a warning is a matter of style and no fault.
    """
    from pathlib import Path

    from gradforensics.diagnosis.lint import check_folder

    checked = check_folder(Path(folder))
    for complaint in checked.complaints:
        click.echo(harmless(str(complaint)), err=True)
    click.echo(f"{checked.rules} rules, {checked.examples} examples, {checked.wrong} wrong")
    return 2 if checked.wrong else 0
