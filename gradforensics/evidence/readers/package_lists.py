"""Lists of packages: pip freeze, pip list, conda list, exported conda environments, requirements.txt.

What pip and conda list was installed. What a person wrote (requirements.txt, an environment.yml without builds) is a
wish; only exact versions in it are kept, as wishes. W&B and MLflow write a requirements.txt of what was installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from gradforensics.evidence import software
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading
from gradforensics.patterns import lazy
from gradforensics.tables import Fact

name = "packages"

_NAMES = lazy(
    r"^(?:.*[-_.])?(?:requirements?|constraints|freeze|pip|packages|installed|environment|conda|env|versions)"
    r"(?:[-_.].*)?\.(?:txt|ya?ml|log|out)$|^pip[-_]?(?:freeze|list)$|^conda[-_]?list$"
)
_INSTALLED = lazy(r"freeze|pip[-_]?list|conda[-_]?list|installed|(?<![a-z])lock(?![a-z])|^pip\.|packages")
_CONDA_HEAD = lazy(r"^# packages in environment at|^# Name\s+Version\s+Build")
_PIP_HEAD = lazy(r"^Package\s+Version\b")
_ROW = lazy(r"^([A-Za-z0-9_][\w.-]{0,100})\s+(\d[\w.+!-]{0,60})(?:\s+(\S+)(?:\s+(\S+))?)?\s*$")
_CONDA_PIN = lazy(
    r"^\s*-\s+[\"']?(?:[\w-]+::)?([A-Za-z0-9_][\w.-]{0,100})={1,2}(\d[^=\s\"']{0,60})(?:=([^\s\"']+))?[\"']?\s*$"
)
_YAML_HEAD = lazy(r"^dependencies:\s*$", re.MULTILINE)
_RECORDED = ("artifacts", "mlflow-artifacts")  # folders in which MLflow keeps what belongs to a model of the run
_SIZE_LIMIT = 4 << 20
_TRIED = 400  # lines by which a file is told from prose


def sniff(file: File) -> bool:
    """By the name; read() claims it where its lines are those of a list of packages."""
    if file.size > _SIZE_LIMIT or not _NAMES.search(file.base):
        return False
    return _form(file) is not None


def read(file: File) -> Reading:
    """The versions that were installed, or those that a person demanded."""
    form = _form(file)
    if form is None:
        return Reading(claimed=False)
    installed = form == "table" or _exported(file) or _recorded(file)
    facts = list(_FORMS[form](file, installed))
    return Reading(facts=facts, remark="" if installed else "versions that a person demanded, not what was installed")


def _form(file: File) -> str | None:
    """Which of _FORMS the file is, by its first lines."""
    lines = [line.rstrip() for line in file.start.splitlines()[:_TRIED]]
    if any(_CONDA_HEAD.match(line) or _PIP_HEAD.match(line) for line in lines[:6]):
        return "table"
    if file.suffix in (".yml", ".yaml"):
        return "yaml" if _YAML_HEAD.search(file.start) else None
    said = [line for line in lines if line.strip() and not line.lstrip().startswith(("#", "-", "--hash"))]
    named = sum(software.pinned(line) is not None for line in said)
    return "lines" if named and named * 2 >= len(said) else None


def _exported(file: File) -> bool:
    """Whether the name, or the builds that only conda knows, say that a program wrote what was installed."""
    if file.suffix in (".yml", ".yaml"):
        return any(found[3] for line in file.start.splitlines() if (found := _CONDA_PIN.match(line)))
    return _INSTALLED.search(file.base) is not None


def _recorded(file: File) -> bool:
    """Whether MLflow keeps the file beside a model of a run."""
    return any(part in _RECORDED for part in PurePosixPath(file.name).parts[:-1])


def _of_lines(file: File, installed: bool) -> Iterator[Fact]:
    for number, line in file.lines(_SIZE_LIMIT):
        if (found := software.pinned(line.rstrip("\r"))) is not None:
            yield software.package(*found, file.name, number, installed=installed)


def _of_table(file: File, installed: bool) -> Iterator[Fact]:
    conda = any(_CONDA_HEAD.match(line) for line in file.start.splitlines()[:6])
    for number, line in file.lines(_SIZE_LIMIT):
        if found := _ROW.match(line.rstrip("\r")):
            by_pip = not conda or (found[4] or found[3]) == "pypi"
            yield _row(found[1], found[2], file.name, number, by_pip=by_pip and installed)


def _of_yaml(file: File, installed: bool) -> Iterator[Fact]:
    by_pip = False
    for number, line in file.lines(_SIZE_LIMIT):
        if line.strip().rstrip("\r") == "- pip:":
            by_pip = True
        elif by_pip and (found := software.pinned(line.strip().lstrip("- ").strip("\"'\r"))):
            yield software.package(*found, file.name, number, installed=installed)
        elif not by_pip and (row := _CONDA_PIN.match(line.rstrip("\r"))):
            if installed:
                yield _row(row[1], row[2], file.name, number, by_pip=False)
            else:
                yield software.package(row[1], row[2], file.name, number, installed=False)


def _row(name: str, version: str, source: str, line: int, *, by_pip: bool) -> Fact:
    """A package of conda is called as conda calls it: its libraries are not those of a wheel."""
    if by_pip:
        return software.package(name, version, source, line)
    return Fact(f"conda:{software.normalised(name)}", version, source, line)


_FORMS = {"lines": _of_lines, "table": _of_table, "yaml": _of_yaml}
