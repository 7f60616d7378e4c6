"""The command line: the only place that prints or exits. Heavy imports stay inside the commands."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gradforensics import __version__
from gradforensics.errors import GradforensicsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gradforensics.diagnosis.causes import Diagnosis
    from gradforensics.diagnosis.rules import Rule
    from gradforensics.report.model import Report

EPILOG = (
    "Exit codes: 0 no proven or probable finding at or above --fail-on; 1 findings; 2 usage error or bad rule file; "
    "3 internal error; 4 no readable training evidence."
)
DEFAULT_OUTPUT = "gradforensics-report.html"


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradforensics")
def commands() -> None:
    """Forensics of training runs: from a run directory to the cause, with proof."""


@commands.command(epilog=EPILOG)
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False),
    help=f"HTML report (default: {DEFAULT_OUTPUT} in the current folder).",
)
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT=PATH",
    help="Another output: html or json; '-' is stdout. Repeatable.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A fact that the files lack (vocab_size=32000). Repeatable.",
)
@click.option(
    "--map", "columns", multiple=True, metavar="COLUMN=SERIES", help="What a column means (objective=loss). Repeatable."
)
@click.option(
    "--rules",
    "rules_folder",
    type=click.Path(file_okay=False),
    help="Use the rule files below this folder instead of the catalogue.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["S1", "S2", "S3", "S4"]),
    default="S2",
    show_default=True,
    help="Exit with 1 at this severity or graver.",
)
@click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the report's texts."
)
@click.option("--force", is_flag=True, help="Overwrite outputs that gradforensics did not write.")
def analyze(
    paths: Sequence[str],
    output: str | None,
    outputs: Sequence[str],
    settings: Sequence[str],
    columns: Sequence[str],
    rules_folder: str | None,
    fail_on: str,
    lang: str,
    force: bool,
) -> int:
    """Diagnose the training run(s) in PATHS: run directories or single log files.

    Nothing in them is executed or changed. Writes an HTML report and prints a summary.
    """
    from pathlib import Path

    from gradforensics.diagnosis.causes import diagnose
    from gradforensics.diagnosis.rules import load_rules
    from gradforensics.evidence import gather
    from gradforensics.report.model import build

    if not all(p.strip() for p in paths):
        raise UsageError("a PATH is empty (an unset variable?)")
    inputs = [Path(p) for p in paths]
    targets = _targets(inputs, output, outputs)
    facts, mapped = dict(_pair(s, "--set") for s in settings), dict(_pair(c, "--map") for c in columns)
    rules = load_rules(Path(rules_folder) if rules_folder else None)
    with _Bar() as bar:
        found = gather(inputs, settings=facts, columns=mapped, progress=bar)
    diagnoses = [diagnose(evidence, rules) for evidence in found]
    sources = list({(s.path, s.sha256): s for evidence in found for s in evidence.sources}.values())
    report = build(diagnoses, sources, language=lang)  # type: ignore[arg-type]  # a click.Choice
    _deliver(report, targets, force=force)
    return _exit_code(diagnoses, fail_on)


@commands.group()
def rules() -> None:
    """The catalogue of cases."""


@rules.command("list")
@click.option(
    "--rules", "folder", type=click.Path(file_okay=False), help="Rule files below this folder instead of the catalogue."
)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def rules_list(folder: str | None, lang: str) -> int:
    """List every case: id, severity, slug, title."""
    for rule in _load(folder):
        tested = "" if rule.signs else "  (this version has no test for it)"
        title = rule.text(lang).title  # type: ignore[arg-type]  # click.Choice allows the two members only
        click.echo(f"{rule.id}  {rule.severity}  {rule.slug:<24}  {title}{tested}")
    return 0


@rules.command("show")
@click.argument("name", metavar="ID")
@click.option(
    "--rules", "folder", type=click.Path(file_okay=False), help="Rule files below this folder instead of the catalogue."
)
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True)
def rules_show(name: str, folder: str | None, lang: str) -> int:
    """Explain one case, by id (GF07) or slug."""
    known = _load(folder)
    chosen = next((r for r in known if name.lower() in (r.id.lower(), r.slug)), None)
    if chosen is None:
        raise UsageError(f"there is no rule {name!r}; see gradforensics rules list")
    from gradforensics.report.rule_page import render

    click.echo(render(chosen, lang), nl=False)  # type: ignore[arg-type]  # click.Choice allows the two members only
    return 0


@rules.command("check")
@click.argument("folder", type=click.Path(file_okay=False, exists=True))
def rules_check(folder: str) -> int:
    """Check the rule files below FOLDER: the format, and every example in them."""
    from gradforensics.diagnosis.examples import check_example

    checked, wrong = 0, 0
    known = _load(folder)
    for rule in known:
        for example in rule.examples:
            checked += 1
            complaint = check_example(rule, example)
            if complaint:
                wrong += 1
                click.echo(f"{rule.path}: {rule.id}: example {example.get('note', '?')!r}: {complaint}", err=True)
    click.echo(f"{len(known)} rules, {checked} examples, {wrong} wrong")
    return 2 if wrong else 0


def _load(folder: str | None) -> list[Rule]:
    from pathlib import Path

    from gradforensics.diagnosis.rules import load_rules

    return load_rules(Path(folder) if folder else None)


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} {text!r}: write {option} NAME=VALUE")
    return key.strip(), value.strip()


def _targets(inputs: Sequence[Path], output: str | None, outputs: Sequence[str]) -> list[tuple[str, Path | None]]:
    """(format, path) of every output, None for stdout. Nothing may lie inside the evidence."""
    from pathlib import Path

    from gradforensics.report import FORMATS

    targets: list[tuple[str, Path | None]] = []
    for text in outputs:
        name, place = _pair(text, "--output")
        if name not in FORMATS:
            raise UsageError(f"--output {text!r}: no format {name!r} ({', '.join(FORMATS)})")
        if not place:
            raise UsageError(f"--output {text!r} names no path")
        targets.append((name, None if place == "-" else Path(place)))
    if output is not None:
        targets.insert(0, ("html", None if output == "-" else Path(output)))
    folders = [i.resolve() for i in inputs if i.is_dir()]
    for _, path in targets:
        inside = path and next((f for f in folders if path.resolve().is_relative_to(f)), None)
        if inside:
            raise UsageError(
                f"{path} lies inside the run directory {inside}; nothing is written there, choose another place"
            )
        if path and any(path.exists() and path.samefile(i) for i in inputs if i.is_file()):
            raise UsageError(f"{path} is the evidence itself; choose another place with -o")
    if output is None and not any(name == "html" for name, _ in targets):
        targets.insert(0, ("html", _default_output(folders)))
    written = [p.resolve() for _, p in targets if p]
    if len(set(written)) < len(written):
        raise UsageError("two outputs have the same path")
    if sum(p is None for _, p in targets) > 1:
        raise UsageError("only one output can go to stdout")
    return targets


def _default_output(folders: Sequence[Path]) -> Path:
    """The default report in the current folder or, where that lies inside a run directory, beside the run directory."""
    from pathlib import Path

    here = Path.cwd().resolve()
    while any(here.is_relative_to(f) for f in folders) and here != here.parent:
        here = here.parent
    return Path(DEFAULT_OUTPUT) if here == Path.cwd().resolve() else here / DEFAULT_OUTPUT


def _deliver(report: Report, targets: Sequence[tuple[str, Path | None]], *, force: bool) -> None:
    """Render everything, then write everything, then print the summary (to stderr where stdout carries a report)."""
    import shutil

    from gradforensics.report import FORMATS
    from gradforensics.report.terminal import render
    from gradforensics.report.write import write

    rendered = [(path, FORMATS[name](report)) for name, path in targets]
    written: list[str] = []
    for path, text in rendered:
        if path is not None:
            write(path, text, force=force)
            written.append(str(path))
    piped = next((text for path, text in rendered if path is None), None)
    if piped is not None:
        click.echo(piped, nl=False)
    stream = sys.stderr if piped is not None else sys.stdout
    width = shutil.get_terminal_size((100, 24)).columns
    color = stream.isatty() and "NO_COLOR" not in os.environ
    click.echo(render(report, color=color, width=width, written=written), file=stream, nl=False, color=color)


def _exit_code(diagnoses: Sequence[Diagnosis], fail_on: str) -> int:
    found = any(
        v.outcome == "fired" and v.strength != "suspect" and v.severity is not None and v.severity <= fail_on
        for d in diagnoses
        for v in d.verdicts
    )
    return 1 if found else 0


class _Bar:
    """A progress bar on a terminal for anything longer than a second; nothing in pipes."""

    def __init__(self) -> None:
        import time

        self._clock = time.monotonic
        self._start = self._clock()
        self._bar: Any = None

    def __enter__(self) -> _Bar:  # noqa: PYI034  # typing.Self would be imported at every start
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            if not sys.stderr.isatty() or self._clock() - self._start < 1.0:
                return
            from rich.console import Console
            from rich.progress import Progress

            progress = Progress(console=Console(stderr=True), transient=True)
            self._bar = (progress, progress.add_task("reading", total=total))
            progress.start()
        progress, task = self._bar
        progress.update(task, completed=done, total=total, description=what[-40:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. No traceback reaches the user."""
    try:
        code = commands.main(
            args=None if arguments is None else list(arguments), prog_name="gradforensics", standalone_mode=False
        )
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("gradforensics: interrupted; no output was left half-written", err=True)
        return 130
    except GradforensicsError as error:
        click.echo(f"gradforensics: {error}", err=True)
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
            file.write(f"gradforensics {__version__}\n{text}")
            where = f" Details for a bug report: {file.name}"
    except OSError:
        pass
    click.echo(f"gradforensics: internal error: {type(error).__name__}: {error}.{where}", err=True)
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
