"""The command line: the only place that prints or exits. Heavy imports stay inside the commands."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from gradforensics import __version__
from gradforensics.analyze_options import DEFAULT_OUTPUT, analyze_options
from gradforensics.command_support import again, deliver, harmless, inputs_of, pair, show, wanted_of
from gradforensics.compare_command import compare
from gradforensics.errors import GradforensicsError, UsageError
from gradforensics.export_command import export
from gradforensics.language_option import language_option
from gradforensics.progress_bar import Bar
from gradforensics.replay_options import replay_options
from gradforensics.rules_command import rules
from gradforensics.secrecy import masked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gradforensics.languages import Language


EPILOG = (
    "Exit codes: 0 no proven or probable finding at or above --fail-on; 1 findings; 2 usage error or bad rule file; "
    "3 internal error; 4 no readable training evidence."
)
SCAN_EPILOG = (
    "Exit codes: 0 nothing that --fail-on names; 1 findings; 2 usage error; 3 internal error; 4 no readable checkpoint."
)
DIFF_EPILOG = "Exit codes: 0 compared; 2 usage error; 3 internal error; 4 no readable checkpoint."
REPLAY_EPILOG = (
    "Exit codes: 0 no fault found; 1 a fault found; 2 usage error, or a program or state that cannot be run; "
    "3 internal error; 4 nothing to replay."
)
ENV_EPILOG = "Exit codes: 0 saved; 2 usage error; 3 internal error."
LIMIT_HELP = "Show at most so many tensors of a checkpoint; 0 shows all."


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradforensics")
def commands() -> None:
    """Forensics of training runs: from a run directory to the cause, with proof."""


@commands.command(epilog=EPILOG)
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@analyze_options
@click.pass_context
def analyze(
    context: click.Context,
    paths: Sequence[str],
    output: str | None,
    outputs: Sequence[str],
    settings: Sequence[str],
    columns: Sequence[str],
    replayed: Sequence[str],
    baseline: str | None,
    data: Sequence[str],
    tokenizer: str | None,
    rules_folder: str | None,
    ignore: str | None,
    fail_on: str,
    language: Language,
    no_tensors: bool,
    names_from_config: bool,
    redact: bool,
    force: bool,
) -> int:
    """Diagnose the training run(s) in PATHS: run directories or single log files.

    Nothing in them is executed or changed. Writes an HTML report and prints a summary.
    """
    from pathlib import Path

    from gradforensics.diagnosis import comparison
    from gradforensics.diagnosis.causes import diagnose
    from gradforensics.diagnosis.ignoring import ignoring
    from gradforensics.diagnosis.rules import load_rules
    from gradforensics.evidence import excerpts
    from gradforensics.evidence.gather import gather
    from gradforensics.ignore_file import read_ignores
    from gradforensics.report import FORMATS
    from gradforensics.report.build import build, places
    from gradforensics.report.provenance import provenance
    from gradforensics.report.targets import targets
    from gradforensics.report.terminal import render

    inputs = inputs_of(paths)
    other = inputs_of([baseline] if baseline else [])
    wanted = [*([("html", output)] if output is not None else []), *wanted_of(outputs)]
    chosen = targets([*inputs, *other], wanted, FORMATS, default=("html", DEFAULT_OUTPUT))
    facts, mapped = dict(pair(s, "--set") for s in settings), dict(pair(c, "--map") for c in columns)
    rules = load_rules(Path(rules_folder)) if rules_folder else load_rules(examples=False)
    ignores = read_ignores(ignore, [*inputs, *other], rules)
    with Bar(language) as bar:
        found = gather(
            inputs,
            settings=facts,
            columns=mapped,
            tensors=not no_tensors,
            names_from_config=names_from_config,
            replayed=inputs_of(replayed),
            data=inputs_of(data),
            tokenizer=None if tokenizer is None else inputs_of([tokenizer])[0],
            progress=bar,
        )
        known = []
        if baseline:
            known = gather(other, settings=facts, columns=mapped, tensors=not no_tensors, progress=bar)
            comparison.compare_with(comparison.the_one(known, baseline), found, rules)
    diagnoses = comparison.beside_siblings([diagnose(evidence, rules) for evidence in found], rules)
    diagnoses = ignoring(diagnoses, ignores)
    read = [*found, *known]
    sources = list({(s.path, s.sha256): s for evidence in read for s in evidence.sources}.values())
    lines = [excerpts.read(d.evidence, places(d)) for d in diagnoses]
    made = provenance(context.obj or (), options=again(context, ("output", "outputs", "force")))
    report = build(
        diagnoses,
        sources,
        language=language,
        fail_on=fail_on,  # type: ignore[arg-type]  # a click.Choice
        made=made,
        lines=lines,
    )
    if redact:
        from gradforensics.report.redact import redacted

        report = redacted(report, [*inputs, *other])
    rendered = [(target.path, FORMATS[target.format](report)) for target in chosen]
    deliver(rendered, partial(render, report), force=force)
    return report.exit_code


SCAN_FAILS = ("nonfinite", "damaged", "dangerous")


@commands.command(epilog=SCAN_EPILOG)
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help=LIMIT_HELP)
@click.option(
    "--list", "list_only", is_flag=True, help="List the tensors in the order of the files; read none of them."
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT=PATH",
    help="An output: json (everything; '-' is stdout) or parquet (the table of tensors). Repeatable.",
)
@click.option(
    "--fail-on",
    multiple=True,
    type=click.Choice(SCAN_FAILS),
    help="Exit with 1 where a tensor of the model or its optimizer holds NaN or infinity, a checkpoint is damaged or "
    "incomplete, or a pickle would run something dangerous. Repeatable.",
)
@click.option(
    "--names-from-config",
    is_flag=True,
    help="Let transformers say in a child process what the parameters that config.json describes are called.",
)
@language_option
@click.option("--force", is_flag=True, help="Overwrite outputs that gradforensics did not write.")
def scan(
    paths: Sequence[str],
    limit: int,
    list_only: bool,
    outputs: Sequence[str],
    fail_on: Sequence[str],
    names_from_config: bool,
    language: Language,
    force: bool,
) -> int:
    """Show what the checkpoints in PATHS hold, their worst tensors first.

    PATHS are checkpoint folders, single files, or folders with many checkpoints. Nothing in them is unpickled or
    changed.
    """
    from gradforensics.evidence import named_checkpoints
    from gradforensics.report import BINARY, SCAN_FORMATS, tensors
    from gradforensics.report.targets import targets

    inputs = inputs_of(paths)
    if list_only and "nonfinite" in fail_on:
        raise UsageError("--list reads no tensor: it cannot tell --fail-on nonfinite")
    chosen = targets(inputs, wanted_of(outputs), SCAN_FORMATS, binary=BINARY)
    rendered: list[tuple[Path | None, str | bytes]] = []
    with Bar(language) as bar:
        named = named_checkpoints.open_named(inputs, progress=bar)
        if names_from_config:
            from gradforensics.checkpoints.meta_names import ask_for_names

            ask_for_names(named.loaded)
        if list_only and not chosen:  # polars takes longer to import than many a checkpoint to list
            named_checkpoints.name_apart(named)
            shown = tensors.listed([one.checkpoint for one in named.loaded], limit)
        else:
            from gradforensics.checkpoints.measure import survey

            found = survey(named.loaded, measured=not list_only, compared=False, progress=bar)
            found.notices += named.notices
            shown = tensors.listed(found.checkpoints, limit) if list_only else tensors.measured(found, limit)
            rendered = [(target.path, SCAN_FORMATS[target.format](found)) for target in chosen]
    deliver(rendered, partial(tensors.render, shown, named.notices, language=language), force=force)
    return int(any(tensors.HAS[kind](one) for kind in fail_on for one in shown))


@commands.command(epilog=DIFF_EPILOG)
@click.argument("first", metavar="A", type=click.Path())
@click.argument("second", metavar="B", type=click.Path())
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help=LIMIT_HELP)
@click.option(
    "--output", "outputs", multiple=True, metavar="json=PATH", help="The whole comparison as JSON; '-' is stdout."
)
@language_option
@click.option("--force", is_flag=True, help="Overwrite outputs that gradforensics did not write.")
def diff(first: str, second: str, limit: int, outputs: Sequence[str], language: Language, force: bool) -> int:
    """Compare the checkpoints A and B: what changed, by how much, and what did not.

    A and B are checkpoint folders or files, in any order. Nothing in them is unpickled or changed.
    """
    from gradforensics.checkpoints.compare import compare
    from gradforensics.evidence.named_checkpoints import open_pair
    from gradforensics.report import difference
    from gradforensics.report.targets import targets

    inputs = inputs_of([first, second])
    chosen = targets(inputs, wanted_of(outputs), difference.FORMATS)
    with Bar(language) as bar:
        found = compare(*open_pair(*inputs, progress=bar), progress=bar)
    rendered = [(target.path, difference.FORMATS[target.format](found)) for target in chosen]
    deliver(rendered, partial(difference.render, found, language=language, limit=limit), force=force)
    return 0


@commands.command(epilog=REPLAY_EPILOG)
@replay_options
@language_option
def replay(
    run: str,
    step: int | None,
    checkpoint: str | None,
    experiments: Sequence[str],
    program: str | None,
    fix: str | None,
    trust_run_code: bool,
    batch: str | None,
    rank: int,
    device: str,
    time_limit: float,
    memory_limit: float | None,
    budget: float | None,
    runs: int,
    output: str | None,
    force: bool,
    language: Language,
) -> int:
    """Run one step of RUN_DIR again, varying one thing at a time: where it fails, and what cures it.

    RUN_DIR is a run directory with capsules or checkpoints, or a capsule. The code that runs is named before; it runs
    in a child process, with limits. Nothing is written into RUN_DIR.
    """
    from gradforensics.replay.command import Options, carry_out, plan
    from gradforensics.replay.sources import Wanted
    from gradforensics.report.messages import message
    from gradforensics.report.pen import flat
    from gradforensics.report.replayed import render
    from gradforensics.report.targets import folder
    from gradforensics.report.words import Words

    (path,) = inputs_of([run])
    start, data = (None if name is None else inputs_of([name])[0] for name in (checkpoint, batch))
    wanted = Wanted(path, step, start, program, fix, data, trust_run_code, rank)
    words = Words(language)

    def say(line: str) -> None:
        click.echo(flat(message(line).in_(language)), err=True)

    options = Options(wanted, tuple(experiments), device, time_limit, memory_limit, budget, runs)
    with Bar(language) as bar:
        planned = plan(options, progress=bar)
        target = folder(planned.inputs, output, planned.default_name)
        try:
            done = carry_out(planned, target, force=force, say=say, progress=bar)
        except KeyboardInterrupt:
            click.echo(words("r_kept", folder=target), err=True)
            raise
    show(partial(render, done, run=planned.chosen.run, folder=target, language=language), sys.stdout)
    return int(any(result.outcome == "fault" for result in done.results))


@commands.command(epilog=ENV_EPILOG)
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False),
    help="The JSON file (default: gradforensics-env-HOST[-rankN].json in the current folder); '-' is stdout.",
)
@language_option
@click.option("--force", is_flag=True, help="Overwrite a file that gradforensics did not write.")
def env(output: str | None, language: Language, force: bool) -> int:
    """Save which software, drivers and GPUs this node has, for analyze to judge.

    Run it where the training runs, in its environment, once per node (or per rank: torchrun's and Slurm's ranks go into
    the name of the file), and keep the files beside the logs. Values that look like passwords or keys are masked.
    """
    from pathlib import Path

    from gradforensics.environment.collect import collect
    from gradforensics.environment.save import as_text, default_path, render
    from gradforensics.report.write import write

    found = collect()
    if output == "-":
        click.echo(as_text(found), nl=False)
        return 0
    path = default_path(found, Path()) if output is None else inputs_of([output])[0]
    write(path, as_text(found), force=force)
    click.echo(harmless(render(found, path, language)), nl=False)
    return 0


commands.add_command(compare)
commands.add_command(export)
commands.add_command(rules)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. No traceback reaches the user."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = commands.main(args=typed, prog_name="gradforensics", standalone_mode=False, obj=tuple(typed))
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("gradforensics: interrupted; no output was left half-written", err=True)
        return 130
    except GradforensicsError as error:
        click.echo(f"gradforensics: {harmless(str(error))}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # the reader of our stdout went away (| head): no error of ours, and nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the last line of defence: exit code 3 and a plain message
        return _internal_error(error)


def _internal_error(error: Exception) -> int:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    where = ""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gradforensics-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"gradforensics {__version__}\n{masked(text)}")
            where = f" Details for a bug report: {file.name}"
    except OSError:
        pass
    click.echo(harmless(f"gradforensics: internal error: {type(error).__name__}: {error}.{where}"), err=True)
    return 3


def entry() -> None:
    """The console script."""
    # in half a second, a tenth goes into collecting garbage that imports do not make, another into tearing down modules
    gc.set_threshold(100_000, 20, 20)
    code = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)  # every output file is closed by now


if __name__ == "__main__":
    entry()
