"""The grammar of console lines: Python dicts as the Trainer prints them, and "key: value" pairs of any spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradforensics.evidence import names, numbers, prefixes
from gradforensics.evidence.console.shapes import CLOCK, DATE, MOMENT, UNIT_NAN, Recent, Shape
from gradforensics.tables import Phase

_DICT = re.compile(r"\{(?:'[^'{}]+'|\"[^\"{}]+\"):[^{}]*\}")
_ITEM = re.compile(r"(?:'([^'{}]+)'|\"([^\"{}]+)\"):\s*(?:'([^']*)'|\"([^\"]*)\"|((?:[^,(]|\([^)]*\))+))")
_BAR = re.compile(r"(?<!\d)(\d{1,15})/(\d{1,15}) \[")
_MOMENT = re.compile(MOMENT)
_ETA = re.compile(r"(?i)\beta:?\s*=?\s*((?:\d+ days?,? )?\d+:\d\d(?::\d\d)?)")
_DATE = re.compile(DATE)
_CLOCK = re.compile(CLOCK)
_VALUE = re.compile(
    r"(?<![\w.])(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI]nf(?:inity)?))"
    r"(?:(?P<unit>%|ms|s|it/s|s/it|[KMG]i?B|k|K|M)(?![\w]))?(?![\w]|\.\d)(?:\s?/\s*(?P<total>\d+))?"
)
_UNIT_NAN = re.compile(UNIT_NAN)
_CUT = re.compile(r"[,;|\[\](){}<>:=\"'*#]|\s-+\s|^-+\s|--+|\b(?:INFO|WARN(?:ING)?|DEBUG|ERROR|CRITICAL)\b")
_NAME = re.compile(r"[A-Za-z_][\w./@%\- ]*$")
_IN_BRACKETS = re.compile(r"\s*\((\w{1,8}(?:/\w{1,8})?)\)$")
_LEADING = re.compile(r"^[^A-Za-z]*(\w+)\b(?:\((\w+)\))?")
_TUTORIAL = re.compile(r"^\s*\[(\d+),\s*(\d+)\]\s+(?=\w*loss)")

_SAMPLES = re.compile(r"\[\s*\d+/\d+ \(\s*\d+(?:\.\d+)?%\)\]")  # "[640/60000 (1%)]" of the PyTorch examples

_STEPS = {"global_step": 0, "global step": 0, "training step": 1, "train step": 1, "batch": 2} | dict.fromkeys(
    ("step", "steps", "iter", "iters", "iteration", "it", "update", "num_updates"), 1
)
_EPOCHS = frozenset({"epoch", "ep", "epochs"})
_SKIPPED = frozenset(
    {
        *("eta", "v_num", "in", "rank", "pid", "seed", "time", "data", "day", "days", "elapsed", "remaining", "world"),
        *("port", "line", "gpu", "version"),
    }
)


@dataclass
class Line:
    """What one line says: where the training stands, and values with their spelling.

    bare: the step is the "N/M" of a bar and has no name; samples: that bar counts samples; has_metric: a value is a
    loss or a metric that only a training logs; evaluation: a name or the first word speaks of one; quoted: the
    numbers are strings, which the Trainer prints with four significant digits; is_dict: it is a Python dict, whose step
    may stand in the bars around it; dialect: the dialect that reads such lines, "" for the generic grammar; spans:
    where the numbers stand in the text, by their names, "<step>" and "<epoch>" among them; free: where others stand
    that may be any.
    """

    step: int | None = None
    total: int | None = None
    bare: bool = False
    samples: bool = False
    epoch: float | None = None
    epochs: int | None = None
    phase: Phase | None = None
    time: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    has_metric: bool = False
    evaluation: bool = False
    quoted: bool = False
    is_dict: bool = False
    dialect: str = ""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    free: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Plan:
    """The role of every number in lines that differ in their numbers only."""

    step: int | None
    total: int | None
    bare: bool
    samples: bool
    epoch: int | None
    epochs: int | None
    tags: tuple[tuple[int, str], ...]
    phase: Phase | None
    has_metric: bool
    evaluation: bool


_plans: dict[tuple[str, ...], _Plan] = {}
_MOST_PLANS = 20_000
_recent: Recent[_Plan] = Recent()
_LONGEST_SHAPE = 2000  # characters; longer lines are rare and would make huge expressions


MARKS = (
    "loss", "Loss", "LOSS", "trl:", "tel:", "eval:", "ppl", "erplexity", "ccuracy", "acc", "Acc", "eward",
)  # fmt: skip


def promising(line: str) -> bool:
    """A cheap first look: whether a line could hold a loss or a metric."""
    return any(mark in line for mark in MARKS)


def bar(line: str) -> tuple[int, int] | None:
    """(done, total) of a tqdm bar."""
    found = _BAR.search(line) if "%|" in line else None
    return (int(found[1]), int(found[2])) if found else None


def seconds_left(line: str) -> float | None:
    """The line's own estimate of the time left."""
    found = _ETA.search(line)
    return numbers.clock_seconds(found[1]) if found else None


def read_dict(line: str) -> Line | None:
    """A dict that the Trainer printed ({'loss': 2.31, 'grad_norm': nan, 'epoch': 0.03}), or None."""
    for match in _DICT.finditer(line):
        found = Line(is_dict=True)
        strange = 0
        for item in _ITEM.finditer(line, match.start() + 1, match.end() - 1):
            key = item[1] or item[2]
            group = next(g for g in (3, 4, 5) if item[g] is not None)
            text = item[group].strip()
            start = item.start(group) + len(item[group]) - len(item[group].lstrip())
            try:
                value = numbers.parse_number(text)
            except ValueError:
                strange += numbers.clock_seconds(text) is None
                continue
            if key == "step":
                found.step = numbers.whole(value)
            elif key == "epoch":
                found.epoch = value
            else:
                found.values[key], found.texts[key] = value, text
                found.quoted = item[5] is None
            found.spans[f"<{key}>" if key in ("step", "epoch") else key] = (start, start + len(text))
        losses = any(names.is_loss(key) for key in found.values) or "train_runtime" in found.values
        placed = found.epoch is not None and any(_known(key) for key in found.values)
        if (losses or placed) and strange <= len(found.values) and any(found.texts.values()):
            return found
    return None


def read_pairs(line: str) -> Line:
    """All "key: value", "key=value" and "key value" pairs of a line that can belong to a training."""
    recent = _recent.read(line)
    if recent is not None:
        try:
            return _line(*recent)
        except ValueError:  # a word stands where other lines of this shape have a number
            pass
    return _taken_apart(line)[0]


def locate_pairs(line: str) -> tuple[Line, list[tuple[int, int]]]:
    """The same as read_pairs, with the spans of all values, and where else numbers stand that may be any."""
    return _taken_apart(line)


def _taken_apart(line: str) -> tuple[Line, list[tuple[int, int]]]:
    blanks: list[tuple[tuple[int, int], str]] = []
    text = line
    if ":" in line:
        for pattern, source in ((_MOMENT, MOMENT), (_DATE, DATE), (_CLOCK, CLOCK), (_UNIT_NAN, UNIT_NAN)):
            for match in pattern.finditer(text):
                start, stop = match.span()
                blanks.append((match.span(), source))
                text = text[:start] + " " * (stop - start) + text[stop:]
    matches = list(_VALUE.finditer(text))
    spans = [match.span("number") for match in matches]
    skeleton = tuple(text[end:start] for end, start in _between(spans, len(text)))
    plan = _plans.get(skeleton)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[skeleton] = _make_plan(text, matches)
    elif plan.has_metric and len(line) < _LONGEST_SHAPE:
        wanted = {index for index, _ in plan.tags} | {plan.step, plan.epoch}
        _recent.add(Shape(line, blanks, spans, [index for index in wanted if index is not None]), plan)
    moment = _MOMENT.search(line) if plan.has_metric else None
    found = _line(plan, {i: text[start:stop] for i, (start, stop) in enumerate(spans)}, moment[0] if moment else None)
    found.spans = {tag: spans[index] for index, tag in plan.tags}
    for name, index in (("<step>", plan.step), ("<epoch>", plan.epoch)):
        if index is not None:
            found.spans[name] = spans[index]
    return found, [*(span for span, _ in blanks), *spans]


def moment(line: str) -> tuple[int, int] | None:
    """Where the first date and time of a line stands."""
    found = _MOMENT.search(line)
    return found.span() if found else None


def clocks(line: str) -> list[tuple[int, int]]:
    """Where dates and times stand in a line."""
    return [match.span() for pattern in (_MOMENT, _DATE, _CLOCK) for match in pattern.finditer(line)]


def _between(spans: list[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The stretches of a text of this length that lie outside of the spans."""
    edges = [0, *(edge for span in spans for edge in span), length]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _line(plan: _Plan, said: Mapping[int, str], date: str | None) -> Line:
    found = Line(phase=plan.phase, has_metric=plan.has_metric, evaluation=plan.evaluation)
    if plan.step is not None:
        found.step = numbers.whole(_float(said[plan.step]))
        found.total, found.bare, found.samples = plan.total, plan.bare, plan.samples
    if plan.epoch is not None:
        found.epoch, found.epochs = _float(said[plan.epoch]), plan.epochs
    for index, tag in plan.tags:
        found.texts[tag] = said[index]
        found.values[tag] = _float(said[index])
    if date is not None:
        found.time = prefixes.iso_seconds(date)
    return found


def _float(text: str) -> float:
    return float(text.replace(",", "") if "," in text else text)


def _make_plan(text: str, matches: list[re.Match[str]]) -> _Plan:
    step: int | None = None
    total: int | None = None
    bare = False
    epoch: int | None = None
    epochs: int | None = None
    tags: dict[str, int] = {}
    best = 9
    end = 0
    if _TUTORIAL.match(text):  # "[3, 2000] loss: 0.51" of the PyTorch tutorial: epoch and step
        epoch, step, best = 0, 1, 0
    for index, match in enumerate(matches):
        key, explicit = _key(text[end : match.start()])
        if match["number"][-1].isalpha() and not explicit and not _tag(key, explicit):
            continue  # a word: "number of nan iterations: 0"
        end = match.end()
        whole = match["number"].lstrip("+").replace(",", "").isdigit()
        limit = int(match["total"]) if match["total"] and len(match["total"]) < 16 else None
        word = key.rpartition(" ")[2]
        rank = _STEPS.get(key, _STEPS.get(word, 9))
        if not key or (limit and rank == 9 and word not in _EPOCHS):
            if limit and whole and best > 3:
                step, total, bare, best = index, limit, True, 3
            continue
        if key == "s" and explicit and text.startswith("s:"):
            rank = 1
        if rank < 9:
            if rank < best and whole:
                step, total, bare, best = index, limit, False, rank
        elif word in _EPOCHS:
            if epoch is None:
                epoch, epochs = index, limit
        elif word not in _SKIPPED:
            tag = _tag(key, explicit)
            if tag == "eval" and text.startswith("s:"):  # llm.c logs the HellaSwag accuracy under this name
                tag = "hellaswag"
            if tag:
                tags.setdefault(tag, index)
    leading = _LEADING.match(text)
    phase = names.phase_word(leading[2] or leading[1]) if leading else None
    metrics = [tag for tag in tags if names.is_loss(tag) or _known(tag)]
    evaluated = phase in ("eval", "test") or all(names.series_of(tag)[0] in ("eval", "test") for tag in metrics)
    samples = bare and _SAMPLES.search(text) is not None
    tagged = tuple((index, tag) for tag, index in tags.items())
    return _Plan(step, total, bare, samples, epoch, epochs, tagged, phase, bool(metrics), evaluated)


def _key(before: str) -> tuple[str, bool]:
    """(key, whether ":" or "=" stands between it and the value) from the text before a value."""
    stripped = before.rstrip().rstrip("[(").rstrip()
    explicit = stripped.endswith((":", "="))
    if not explicit and stripped == before:  # something else than a blank precedes the number: "checkpoint-500"
        return "", False
    if explicit:
        stripped = stripped[:-1].rstrip()
    unit = _IN_BRACKETS.search(stripped)
    if unit:  # "time per step (ms)", but "Epoch(train)"
        behind = "" if names.phase_word(unit[1]) else f" {unit[1]}"
        stripped = stripped[: unit.start()] + behind
    key = _CUT.split(stripped)[-1].strip(" \t.%-_")
    return (key.lower() if _is_place(key) else key), explicit


def _is_place(key: str) -> bool:
    low = key.lower()
    word = low.rpartition(" ")[2]
    return low in _STEPS or word in _STEPS or word in _EPOCHS or word in _SKIPPED


def _tag(key: str, explicit: bool) -> str | None:
    """The name of a value: the whole key before ":" or "=", the known last words of it before a mere blank."""
    if len(key) > 48 or not _NAME.match(key):
        return None
    words = key.split()
    if explicit and len(words) <= 5:
        return key
    for count in (3, 2, 1):
        tail = " ".join(words[-count:])
        if count <= len(words) and (_is_canonical(tail) or (count == 1 and names.is_loss(tail))):
            return tail
    return None


def _is_canonical(tag: str) -> bool:
    return names.series_of(tag)[1] in names.table()["series"]


def _known(tag: str) -> bool:
    return names.series_of(tag)[1] in _TRAINING_SERIES


_TRAINING_SERIES = frozenset({"loss", "perplexity", "accuracy", "reward", "hellaswag"})
