"""Logs read in blocks give what the same logs give when they are read line by line."""

import datetime as dt
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.evidence.console import blocks as blocks_module
from gradforensics.evidence.console.blocks import Block, Marks
from gradforensics.evidence.console.lines import Line
from gradforensics.evidence.console.scan import Scan
from gradforensics.evidence.console.templates import Moment, Number, Template, Templates
from gradforensics.evidence.files import File
from gradforensics.evidence.readers import console

NEVER = 1 << 60


def megatron(rng, step):
    loss = "nan" if rng.random() < 0.02 else f"{rng.random() * 9:.6E}"
    return (
        f" [2026-01-0{1 + step // 60000} 10:{step // 60 % 60:02d}:{step % 60:02d}.{step % 1000:03d}] "
        f"iteration {step:8d}/  500000 | "
        f"consumed samples: {step * 16:12d} | elapsed time per iteration (ms): {900 + rng.random() * 300:.1f} | "
        f"learning rate: {3e-4 * rng.random():.6E} | lm loss: {loss} | grad norm: {rng.random():.3f} |"
    )


def printed_dict(rng, step):
    values = f"'loss': {rng.random() * 4:.4f}, 'grad_norm': {rng.random() * 3}, 'learning_rate': {1e-5 * rng.random()}"
    return f"{{{values}, 'step': {step}, 'epoch': {step / 1000:.2f}}}"


def plain_pairs(rng, step):
    rates = f"lr: {1e-4 * rng.random():.3e}  tps: {rng.randrange(900, 12000):,}"
    return f"[rank{step % 2}]: step: {step // 2}  loss: {rng.random() * 4:.4f}  {rates}"


def with_colours(rng, step):
    return f"\x1b[32mstep: {step:>5}\x1b[0m  \x1b[33mloss: {rng.random() * 9:.4f}\x1b[0m"


def bars_and_dicts(rng, step):
    bars = [f"{step * 10 + k:>3}%|███       | {step * 10 + k}/20000 [00:{k:02d}<03:50,  4.1{k}it/s]" for k in range(10)]
    inner = [f"\r 50%|█████     | {k}/8 [00:00<00:01, 9.00it/s]" for k in range(8)] if step % 7 == 0 else []
    row = f"{{'loss': {rng.random():.4f}, 'learning_rate': {rng.random():.6f}, 'epoch': {step / 100}}}"
    return "\r" + "\r".join(bars) + "".join(inner) + "\n" + row


def below_headers(rng, step):
    return f"--- Step {step} ---\nloss: {rng.random():.3f}\nlr: {rng.random():.3e}\nand so on"


NOISE = (
    "NCCL INFO Channel 03/0 : 4[0] -> 5[1] via P2P",
    "    forward-backward ...............: (812.11, 815.20)",
    "saving checkpoint to out",
    "",
    "x" * 300,
    "WARNING: some words without a meaning 12345",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    run()\nRuntimeError: boom at 3',
    "Traceback (most recent call last):\n  not closed",
    "EVALUATION",
    "loss is falling, says the author",
    "  5%|▌         | 50/1000 [00:12<03:50,  4.12it/s]",
    "weird \xff\xfe bytes \u2588\u2588",
)
FORMATS = (megatron, printed_dict, plain_pairs, with_colours, bars_and_dicts, below_headers)


def a_log(form, seed, count):
    rng = random.Random(seed)
    lines = []
    for step in range(1, count):
        lines.append(form(rng, step))
        if rng.random() < 0.3:
            lines.append(rng.choice(NOISE) if rng.random() < 0.2 else NOISE[0])
    return "\n".join(lines) + ("\n" if seed % 2 else "")


def everything(path, monkeypatch, slow, size=None):
    monkeypatch.setattr(console, "SLOW_BYTES", slow)
    if size is not None:
        monkeypatch.setattr(blocks_module, "_BLOCK", size)
    reading = console.read(File(path, path.name, path.stat().st_size))
    tracks = {
        (t.phase, t.series, t.tag): (t.stored.step_unit, t.stored.resolution, repr(t.stored.frame.rows()))
        for t in reading.tracks
    }
    return tracks, reading.events, vars(reading.trail), sorted(reading.notices, key=repr), reading.settings


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(4))
def test_blocks_and_lines_tell_the_same(tmp_path, monkeypatch, form, seed):
    path = tmp_path / "train.log"
    text = a_log(form, seed, 1500)
    path.write_text(text.replace("\n", "\r\n") if seed == 3 else text, encoding="utf-8", newline="")
    expected = everything(path, monkeypatch, NEVER)
    assert expected[0], "the log must hold series"
    assert everything(path, monkeypatch, 0) == expected
    assert everything(path, monkeypatch, 0, 1 + 997 * (seed + 1)) == expected


def test_a_log_is_read_in_blocks_behind_its_first_lines(tmp_path, monkeypatch):
    path = tmp_path / "train.log"
    path.write_text(a_log(megatron, 1, 2000), encoding="utf-8")
    found = []
    whole = Scan.prepare

    def counted(self, raw):
        found.append(len(raw))
        return whole(self, raw)

    monkeypatch.setattr(Scan, "prepare", counted)
    monkeypatch.setattr(console, "SLOW_BYTES", 100_000)
    console.read(File(path, path.name, path.stat().st_size))
    assert len(found) == 1
    assert found[0] < path.stat().st_size - 100_000 + 1000


SPELLED = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e6, 1e6).map(lambda v: f"{v:.6E}"),
    st.floats(-1e6, 1e6).map(lambda v: f"{v:+.3f}"),
    st.floats(0, 1e9).map(lambda v: f"{v:,.2f}"),
    st.integers(0, 10**18).map(str),
    st.sampled_from(["nan", "inf", "-inf", ".5", "5.", "1e-320", "1e300", "-0.0", "00012"]),
)


def whole(digits, columns):
    return np.array([float("".join(str(d) for d in digits[0, columns]) or 0)])


@given(SPELLED)
def test_numbers_are_those_that_float_reads(text):
    raw = f"a {text} b".encode()
    number = Number(raw, (2, 2 + len(text)))
    digits = np.frombuffer(raw, dtype=np.uint8)[None, :].copy()
    cells = (digits >= 48) & (digits <= 57)
    zero = np.where(cells, 48, digits).astype(np.uint8)
    mantissa, exponent = (whole(digits ^ zero, part) for part in (number.mantissa, number.exponent))
    value = float(number.values(digits ^ zero, mantissa, exponent)[0])
    expected = float(text.replace(",", ""))
    assert (math.isnan(value) and math.isnan(expected)) or (value, math.copysign(1, value)) == (
        expected,
        math.copysign(1, expected),
    )


def seconds(text):
    digits = np.array([[int(c) if c.isdigit() else 0 for c in text]], dtype=np.uint8)
    moment = Moment((0, len(text)))
    return moment.values([whole(digits, columns) for columns in moment.fields])[0]


@given(st.datetimes(timezones=st.just(dt.UTC)).filter(lambda moment: 1970 <= moment.year < 2200))
def test_moments_are_those_of_the_calendar(moment):
    for text in (f"{moment:%Y-%m-%d %H:%M:%S}", f"{moment:%Y-%m-%dT%H:%M:%S.%f}", f"{moment:%Y-%m-%d %H:%M:%S}.125"):
        wanted = dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()
        assert seconds(text) == wanted


def test_a_date_that_does_not_exist_is_no_moment():
    assert math.isnan(seconds("2024-13-01 10:00:00"))


def template(raw):
    return Template(raw, Line(spans={"<step>": (5, 7)}), rank=None, free=[], moment=None, factors={})


@given(st.lists(st.binary(min_size=7, max_size=7), min_size=1, max_size=5))
def test_a_template_reads_lines_with_other_digits_only(lines):
    lines = [*lines, b"step 42", b"step 07", b"stop 42", b"step 4:", b"step\x004", b"step 4/", b"step 4\xff"]
    windows = np.zeros((len(lines), 8), dtype=np.uint8)
    for row, line in enumerate(lines):
        windows[row, : len(line)] = np.frombuffer(line, dtype=np.uint8)
    same, _ = template(b"step 13").match(windows)
    assert same.tolist() == [line[:5] == b"step " and line[5:].isdigit() and len(line) == 7 for line in lines]


def test_what_follows_a_line_does_not_matter():
    windows = np.frombuffer(b"step 42\n" + b"step 42\xff" + b"step 42\x00", dtype=np.uint8).reshape(3, 8)
    assert template(b"step 13").match(windows)[0].all()


def test_templates_that_match_are_kept():
    known = Templates()
    good = template(b"step 13")
    good.hits = 100
    known.add(good)
    for length in range(8, 8 + 2 * Templates.MOST):
        known.add(template(b"step 13" + b"x" * length))
    assert sum(len(known.of_length(length)) for length in known.lengths()) <= Templates.MOST
    assert good in known.of_length(7)
    assert len(known.since(known.made - 3)) == 3


@given(
    st.lists(
        st.sampled_from(["", "a", "loss 3", "tep", "\u00fc\u00fc loss", "x" * 70000, "x" * 70000 + "loss"]), max_size=12
    )
)
def test_candidates_are_the_lines_with_a_mark(lines):
    raw = "\n".join([*lines, "end"]).encode()
    block = Block(raw)
    marks = Marks(["loss", "tep", "a loss"])
    every = np.arange(len(block))
    wanted = [i for i, line in enumerate([*lines, "end"]) if "loss" in line or "tep" in line]
    assert marks.candidates(block, every).tolist() == wanted
    odd = every[1::2]
    assert marks.candidates(block, odd).tolist() == [i for i in wanted if i % 2]


def test_lines_of_a_block_have_the_numbers_of_the_file():
    block = Block(b"a\nb\rc\r\nd")
    block.first = 7
    assert [(block.line(i), block.number(i)) for i in range(len(block))] == [
        (b"a", 7), (b"b", 8), (b"c", 8), (b"", 8), (b"d", 9),
    ]  # fmt: skip
    assert block.behind == 2
