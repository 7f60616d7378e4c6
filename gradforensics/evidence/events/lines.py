"""What one line of a log says, by the wordings of Python, PyTorch, Slurm, the shell and the frameworks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gradforensics.evidence import collect_env
from gradforensics.evidence.events import kernel
from gradforensics.evidence.events.faults import collective_error, fault, timeout
from gradforensics.evidence.events.memory import out_of_memory
from gradforensics.evidence.events.signals import killed
from gradforensics.patterns import lazy

Found = tuple[str, Mapping[str, Any]]

# At least one of these stands in every line that this package can use; they are rare in the rows of a training.
MARKS: tuple[str, ...] = (
    "Error", " error", "xception", "Traceback", 'File "', "call first", "nterrupt",
    "of memory", "te memory", "oom-kill", "oom_kill", "OOM", "Killed", "Terminated", "SIG", "ignal",
    "xit code", "xit status", "xitcode", "LIMIT", "walltime", "CANCELLED", "scancel", "TERM_OWNER", "core dumped",
    "egmentation fault", "atchdog", "NCCL WARN", "NCCL operations", "imed out", "imeout", "socket", "Assertion",
    "r.step", "tried to get lr", "VERFLOW", "verflow", "esum", "ontinuing training",
    "oaded checkpoint", "states from", "omplete", "inished", "raining done", " stopped", "train metrics",
    "o space left", "quota exceeded", "Xid (", "fallen off", "unning training", "tarting training", "Instantiating",
    "local Ray", "distributed init (", "Launching", "GPU available", "have requires_grad",
    "local_rank: ", "first observed", *collect_env.MARKS,
)  # fmt: skip

_NUMBER = r"\d{1,40}(?:\.\d{1,40})?(?:e[+-]?\d{1,2})?"
_OVERFLOW = lazy(
    rf"OVERFLOW!.*?Attempted loss scale: (?P<was>{_NUMBER}), (?:reducing to (?P<to>{_NUMBER})|but hysteresis is)|"
    rf"OVERFLOW!.*Skipping step|"
    rf"[Gg]radient overflow.*?(?:reducing loss scale to|setting loss scale to:) (?P<to2>{_NUMBER})"
)
_WARNINGS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (about, lazy(pattern))
    for about, pattern in (
        ("lr_scheduler.step() before optimizer.step()", r"`?lr_scheduler\.step\(\)`? before `?optimizer\.step\(\)`?"),
        (
            "optimizer.step() replaced after the scheduler was made",
            r"`optimizer\.step\(\)` has been overridden after learning rate scheduler",
        ),
        ("no input requires grad", r"None of the inputs have requires_grad=True"),
        (
            "no learning rate before the first step",
            r"tried to get lr value before scheduler/optimizer started stepping",
        ),
    )
)
_RESUME = lazy(
    r"(?i)\bresum(?:ing|ed)\b.{0,60}\b(?:from|training|at|checkpoint)\b|"
    r"\bcontinuing training from (?:checkpoint|global)\b|"
    r"\b(?:successfully |=> )loaded checkpoint\b|\brestored all states from the checkpoint\b|^loading states from \S"
)
_RESUMED_AT = lazy(r"(?i)\b(?:checkpoint-|global[_ ]?step[-_ =]?|iteration |step[ =])(\d{1,12})\b")
_COMPLETED = lazy(
    r"(?i)\btraining (?:is |has )?(?:been )?(?:completed?|finished|done)\b|\bfinished training\b|"
    r"`Trainer\.fit` stopped: `max_(?:epochs|steps)=|\*{3,} train metrics \*{3,}"
)
_NOT_COMPLETED = lazy(r"(?i)\b(?:not|until|when|if|after|before|once)\b.{0,30}training|%\|")
_LAUNCH = lazy(
    r"\*{3,} ?Running training|[Ss]tarting training\b|Instantiating (?:the )?(?:model|trainer|datamodule)|"
    r"Started a local Ray instance|distributed init \(rank 0|Launching (?:training|job)|GPU available: (?:True|False)"
)
_TRAINING = lazy(
    r"trainer\.(?:fit|train)\b|\b(?:pre)?train(?:er)?(?:_\w+)?\.py\b|\bfine-?_?tune\w*\.py\b|train_batch_size|"
    r"[Rr]unning training|[Ss]tarting training|"
    r"lr_scheduler|optimizer\.step|\.backward\(|\bmain_ppo\b|training_step\b|Total optimization steps"
)
# Source code that a log prints: it names exceptions and messages that nothing raised.
_CODE = lazy(
    r"\s*(?:[+-]\s+)?(?:(?:raise|except|assert|return|if|elif|else|for|while|with|try|def|class|import|from|lambda)\b"
    r"(?!:\s)|(?:print|log|logger|logging|log\.\w+|logger\.\w+|logging\.\w+|warnings\.warn|self\.\w+)\s?[(=.]|#|//|"
    r"(?<=\s)[rbf]?[\"'])|"
    r".{0,200}(?:\braise \w+(?:Error|Exception)\(|\bexcept \(?[\w.]+(?:Error|Interrupt)\b.{0,60}:\s*$)"
)


def suspicious(line: str) -> bool:
    """A cheap first look: whether a line could hold anything that this package knows."""
    return any(map(line.__contains__, MARKS))


def is_code(text: str) -> bool:
    """Whether a line is source code that a log prints."""
    return _CODE.match(text) is not None


def speaks_of_training(line: str) -> bool:
    """Whether a line names what only a training has."""
    return _TRAINING.search(line) is not None


def launches(text: str) -> bool:
    """Whether a line begins a training."""
    return _LAUNCH.search(text) is not None


def classify(text: str) -> Found | None:
    """(kind, data) of a line outside of tracebacks, without its prefix; None where it is nothing remarkable."""
    if is_code(text):
        return None
    if found := _OVERFLOW.search(text):
        was, to = found["was"], found["to"] or found["to2"]
        return "overflow", {key: float(value) for key, value in (("from", was), ("to", to)) if value}
    for about, pattern in _WARNINGS:
        if pattern.search(text):
            return "warning", {"about": about}
    return trouble(text) or _progress(text)


def trouble(text: str) -> Found | None:
    """(kind, data) of a line, or of the last line of a traceback, that tells what went wrong."""
    if "Xid (" in text or "fallen off the bus" in text:
        return kernel.message(text)
    for kind, read in (("oom", out_of_memory), ("timeout", timeout)):
        if (data := read(text)) is not None:
            return kind, data
    if (found := fault(text)) is not None:
        return found
    if (data := killed(text)) is not None:
        return "killed", data
    return collective_error(text)


def _progress(text: str) -> Found | None:
    if _COMPLETED.search(text) and not _NOT_COMPLETED.search(text):
        return "completed", {}
    if _RESUME.search(text):
        at = _RESUMED_AT.search(text)
        return "resume", {"step": int(at[1])} if at else {}
    return None
