"""gradforensics compare: the first step at which two runs part, what else differs, and what could explain it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from gradforensics.command_support import deliver, inputs_of, pair, wanted_of
from gradforensics.language_option import language_option
from gradforensics.progress_bar import Bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradforensics.languages import Language

EPILOG = "Exit codes: 0 compared, whether they part or not; 2 usage error; 3 internal error; 4 no readable evidence."


@click.command(epilog=EPILOG)
@click.argument("first", metavar="RUN_A", type=click.Path())
@click.argument("second", metavar="RUN_B", type=click.Path())
@click.option("-o", "output", type=click.Path(dir_okay=False), help="An HTML page of the comparison (default: none).")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT=PATH",
    help="An output: html (one page), json or md; '-' is stdout. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A fact that the files of both runs lack (vocab_size=32000). Repeatable.",
)
@click.option(
    "--map",
    "columns",
    multiple=True,
    metavar="COLUMN=SERIES",
    help="What a column means (objective=loss), in both runs. Repeatable.",
)
@language_option
@click.option("--no-tensors", is_flag=True, help="List the tensors of checkpoints, but do not read them.")
@click.option(
    "--redact",
    is_flag=True,
    help="Leave host names, user names, folders of paths and e-mail addresses out of all outputs.",
)
@click.option("--force", is_flag=True, help="Overwrite outputs that gradforensics did not write.")
@click.pass_context
def compare(
    context: click.Context,
    first: str,
    second: str,
    output: str | None,
    outputs: Sequence[str],
    settings: Sequence[str],
    columns: Sequence[str],
    language: Language,
    no_tensors: bool,
    redact: bool,
    force: bool,
) -> int:
    """Compare two runs: the first step at which they part, and in what else they differ.

    RUN_A and RUN_B are run directories or log files of one run each. Series are compared at the steps that both
    logged; nothing is judged, and nothing in the runs is executed or changed.
    """
    from gradforensics.diagnosis.comparison import the_one
    from gradforensics.evidence.gather import gather
    from gradforensics.report.comparison import FORMATS
    from gradforensics.report.comparison.model import build
    from gradforensics.report.comparison.terminal import render
    from gradforensics.report.provenance import provenance
    from gradforensics.report.targets import targets

    inputs = inputs_of([first, second])
    wanted = [*([("html", output)] if output is not None else []), *wanted_of(outputs)]
    chosen = targets(inputs, wanted, FORMATS)
    facts, mapped = dict(pair(s, "--set") for s in settings), dict(pair(c, "--map") for c in columns)
    with Bar(language) as bar:
        here, there = (
            the_one(
                gather([path], settings=facts, columns=mapped, tensors=not no_tensors, progress=bar),
                str(path),
                by=name,
            )
            for path, name in zip(inputs, ("RUN_A", "RUN_B"), strict=True)
        )
    made = provenance(context.obj or ())
    found = build(here, there, language=language, made=made)
    if redact:
        from gradforensics.report.redact import redacted_comparison

        found = redacted_comparison(found, [here, there], inputs)
    rendered = [(target.path, FORMATS[target.format](found)) for target in chosen]
    deliver(rendered, partial(render, found), force=force)
    return 0
