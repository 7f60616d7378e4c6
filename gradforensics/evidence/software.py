"""What lists of packages and reports of environments are made of, whoever wrote them: names, versions, facts."""

from __future__ import annotations

from gradforensics.patterns import lazy
from gradforensics.tables import Fact

_PINNED = lazy(r"^\s*([A-Za-z0-9][\w.-]{0,100})(?:\[[^\]]{0,200}\])?\s*={2,3}\s*([^\s;,#]{1,100})(?P<rest>[^#]*)")
_SEPARATORS = lazy(r"[-_.]+")
_MADE_OF = lazy(r"(?P<name>[A-Za-z][\w.-]{0,100}) @ .*?[/\\](?P=name)-(?P<version>\d[\w.+!]{0,60})-[^/\\]*\.whl")


def normalised(name: str) -> str:
    """The name of a package as PEP 503 writes it: flash_attn and Flash-Attn are flash-attn."""
    return _SEPARATORS.sub("-", name).lower()


def pinned(line: str) -> tuple[str, str] | None:
    """(name, version) of a line such as torch==2.3.0 that names exactly one version; None for any other.

    A wheel by its path counts, too, where its file name tells the version.
    """
    if found := _PINNED.match(line):
        rest = found["rest"].partition(";")[0].replace("\\", "").strip()
        if "*" in found[2] or rest.startswith(","):
            return None
        return normalised(found[1]), found[2].rstrip("\\")
    if " @ " in line and (found := _MADE_OF.search(line)):
        return normalised(found["name"]), found["version"]
    return None


def package(name: str, version: str, source: str, line: int | None = None, *, installed: bool = True) -> Fact:
    """The fact that a package was installed in a version, or that a file wishes for it."""
    return Fact(f"{'package' if installed else 'pin'}:{normalised(name)}", version, source, line)
