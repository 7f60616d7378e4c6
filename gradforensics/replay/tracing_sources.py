"""The user's source line: of the code that runs now, of a node of the graph, of an exception."""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Literal, TypeAlias

import torch
from torch import nn

_Whose: TypeAlias = Literal["user", "tracer", "ours", "other"]
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])
_STANDARD = sysconfig.get_paths()["stdlib"]
_TRACER = str(Path(__file__).parent / "tracing")
_PACKAGES = re.compile(r".*[\\/](?:site|dist)-packages[\\/]")
_FRAME = re.compile(r'^\s*File "(?P<file>.+?)", line (?P<line>\d+), in ')
_FUNCTION = re.compile(r"in backward\b")


@functools.cache
def _whose(file: str) -> _Whose:
    if file.startswith(_OURS):
        return "tracer" if file.startswith(_TRACER) else "ours"
    if file.startswith((_TORCH, "<")):
        return "other"
    return "other" if file.startswith(_STANDARD) and not _PACKAGES.match(file) else "user"


def shown(file: str, line: int) -> str:
    """train.py:41; a file of an installed package with its folders."""
    packaged = _PACKAGES.match(file)
    return f"{file[packaged.end() :] if packaged else Path(file).name}:{line}"


def running_line() -> str:
    """The innermost line outside PyTorch, the standard library and this package that runs now, "" for none.

    The search ends where this package called the user's program: what called this package is not the user's.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  inspect.stack() would read every source file
    while frame is not None:
        whose = _whose(frame.f_code.co_filename)
        if whose == "user":
            return shown(frame.f_code.co_filename, frame.f_lineno)
        if whose == "ours":
            return ""
        frame = frame.f_back
    return ""


def line_of_stack(stack: Iterable[str]) -> str:
    """The same for a stack as anomaly mode keeps it with a node: formatted frames, outermost first."""
    found = ""
    for text in stack:
        match = _FRAME.match(text)
        if match is None:
            continue
        whose = _whose(match["file"])
        if whose == "user":
            found = shown(match["file"], int(match["line"]))
        elif whose == "ours":
            found = ""
    return found


def recomputed(stack: Iterable[str]) -> bool:
    """Whether a node was made by the recomputation of reentrant activation checkpointing."""
    return any("checkpoint.py" in text and _FUNCTION.search(text) for text in stack)


def line_of_error(error: BaseException) -> str:
    """The same for an exception."""
    found = ""
    for frame, line in _frames(error.__traceback__):
        if _whose(frame.f_code.co_filename) == "user":
            found = shown(frame.f_code.co_filename, line)
    return found


def module_of_error(error: BaseException, names: Mapping[int, str]) -> str:
    """The path of the innermost module whose method the exception passed through, "" for none. names: by id."""
    found = ""
    for frame, _ in _frames(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            found = names.get(id(module), found)
    return found


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
