"""The console of a run that may end with an error: stdout, stderr, traceback."""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from lab import Log, print_row

_PACKAGES = re.compile(r'[^"\s]*?/(?:site|dist)-packages/')
_PYTHON = re.compile(r'[^"\s]*?/lib/python(\d\.\d+)/(?!site-packages)')
_RECIPES = re.compile(rf"{re.escape(str(Path(__file__).resolve().parent))}/(\w+)\.py")
_SCRIPTS = {"lab": "loop", "crashes": "launch"}


@contextlib.contextmanager
def whole_console(path: Path) -> Iterator[Log]:
    """Catch all that a script prints; an error ends it, with its traceback, and goes no further."""
    with (
        path.open("w", encoding="utf-8") as stream,
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        try:
            yield print_row
        except RuntimeError:
            traceback.print_exc(file=sys.stderr)
    path.write_text(neutral(path.read_text(encoding="utf-8")), encoding="utf-8")


def neutral(text: str) -> str:
    """The text with the folders of this machine replaced by common ones."""
    text = _RECIPES.sub(lambda found: f"/workspace/{_SCRIPTS.get(found[1], 'train')}.py", text)
    text = _PACKAGES.sub("/opt/venv/lib/python3.11/site-packages/", text)
    return _PYTHON.sub(r"/usr/lib/python\1/", text)
