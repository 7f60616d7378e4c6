"""The progress bar of the commands; a leaf that imports rich only where it draws."""

from __future__ import annotations

import sys
import time
from typing import Any

from gradforensics.languages import Language
from gradforensics.notices import READING


class Bar:
    """A progress bar on a terminal for anything longer than a second; nothing in pipes."""

    def __init__(self, language: Language = "en") -> None:
        self._language = language
        self._start = time.monotonic()
        self._bar: Any = None
        self._phase = ""

    def __enter__(self) -> Bar:  # noqa: PYI034  # typing.Self would be imported at every start
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` units of `what` are done; bytes where `what` is reading."""
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._start < 1.0:
                return
            from rich.console import Console  # noqa: PLC0415  rich takes longer than most commands
            from rich.progress import Progress  # noqa: PLC0415  likewise

            progress = Progress(console=Console(stderr=True), transient=True)
            self._bar = (progress, progress.add_task("", total=total))
            progress.start()
        progress, task = self._bar
        if what != self._phase:  # another phase has its own speed
            self._phase = what
            from gradforensics.report.messages import message  # noqa: PLC0415  not before something is drawn

            progress.reset(task, description=message(what).in_(self._language)[-40:], total=total)
        progress.update(task, completed=done, total=total)
        if what == READING:
            from rich.filesize import decimal  # noqa: PLC0415  likewise

            from gradforensics.report.words import Words  # noqa: PLC0415  likewise

            told = Words(self._language)("reading_n", done=decimal(done), total=decimal(total))
            progress.update(task, description=told)
