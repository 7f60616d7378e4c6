"""Every dialect file keeps its promises: its samples parse, its near misses do not, its excerpts read as they say."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.evidence import events, names, numbers
from gradforensics.evidence.console import dialects
from gradforensics.evidence.files import plain
from gradforensics.evidence.readers import console

FOLDER = dialects.FOLDER
FILES = sorted(FOLDER.glob("*.toml"))
ALL = [dialects.load(path) for path in FILES]
SAMPLES = [(one, sample) for one in ALL for sample in one.samples]
OTHERS = [(one, other) for one in ALL for other in one.others]
LOGS = [(one, log) for one in ALL for log in one.logs]
KINDS = [(one, kind) for one in ALL for kind in one.kinds]
PLACES = ("step", "total", "epoch", "epochs", "phase")


def named(entries):
    return [f"{one.id}-{number}" for number, (one, _) in enumerate(entries)]


def bare(line):
    """A line as a dialect sees it."""
    return events.without_prefix(plain(line))


def number(said):
    return float(said)  # "nan" and "inf" are strings in the files


def same(found, said):
    said = number(said)
    return math.isnan(found) if math.isnan(said) else found == pytest.approx(said, rel=1e-12, abs=0)


# -- the files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_a_file_says_whose_lines_it_knows_and_from_where(one):
    assert FOLDER.joinpath(f"{one.id}.toml").is_file()
    assert one.title
    assert one.source
    assert len(one.samples) >= 2
    assert len(one.others) >= 2
    assert one.logs


def test_all_ids_differ():
    assert len({one.id for one in ALL}) == len(FILES)
    assert [one.id for one in dialects.dialects()] == [one.id for one in ALL]


@pytest.mark.parametrize(("one", "kind"), KINDS, ids=named(KINDS))
def test_a_mark_is_long_enough_to_be_rare(one, kind):
    assert len(kind.mark) >= 4
    assert kind.mark.strip()


@pytest.mark.parametrize(("one", "kind"), KINDS, ids=named(KINDS))
def test_every_kind_of_line_has_a_sample(one, kind):
    read = [one.read(bare(sample["line"])) for sample in one.samples]
    assert any(found is not None and found[0] is kind for found in read)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('id = "x"\ntitle = "X"\n', "KeyError"),
        ('id = "x"\ntitle = "X"\nsource = "s"\nlines = []\n', "unknown key 'lines'"),
        ('id = "x"\ntitle = "X"\nsource = "s"\n[[line]]\nmark = "loss"\npattern = "("\n', "unterminated"),
        ('id = "x"\ntitle = "X"\nsource = "s"\n[[line]]\nmark = "loss"\npattern = "a"\nphase = "vals"\n', "'vals'"),
        ('id = "x"\ntitle = "X"\nsource = "s"\n[[line]]\nmark = "loss"\npattern = "a"\nwhat = "noise"\n', "'noise'"),
        ('id = "x"\ntitle = "X"\nsource = "s"\n[[line]]\nmark = "loss"\npattern = "a"\nanchor = "^"\n', "'anchor'"),
        (
            'id = "x"\ntitle = "X"\nsource = "s"\n[[line]]\nmark = "loss"\npattern = "a"\n[units]\nloss = "miles"\n',
            "miles",
        ),
        ("id = ", "Invalid"),
    ],
)
def test_a_file_that_breaks_the_format_is_refused_with_its_name(tmp_path, text, said):
    path = tmp_path / "broken.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(dialects.DialectError, match=r"broken\.toml") as caught:
        dialects.load(path)
    assert said in str(caught.value)


# -- the lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "sample"), SAMPLES, ids=named(SAMPLES))
def test_a_sample_parses(one, sample):
    assert set(sample) <= {"line", "what", "values", *PLACES}
    found = one.read(bare(sample["line"]))
    assert found is not None
    kind, said = found
    assert kind.what == sample.get("what", "values")
    assert {name: getattr(said, name) for name in PLACES} == {name: sample.get(name) for name in PLACES}
    assert set(sample.get("values", {})) <= set(said.values)
    assert {
        tag: said.values[tag] for tag, value in sample.get("values", {}).items() if not same(said.values[tag], value)
    } == {}


@pytest.mark.parametrize(("one", "sample"), SAMPLES, ids=named(SAMPLES))
def test_the_numbers_stand_where_the_line_says(one, sample):
    line = bare(sample["line"])
    found = one.read(line)
    assert found is not None
    said = found[1]
    for tag, (start, stop) in said.spans.items():
        value = getattr(said, tag.strip("<>")) if tag.startswith("<") else said.values[tag]
        spelt = numbers.parse_number(line[start:stop].replace(",", ""))
        assert value is None if spelt is None else same(value, spelt * one.factors.get(tag, 1.0))


@pytest.mark.parametrize(("one", "other"), OTHERS, ids=named(OTHERS))
def test_a_near_miss_does_not_parse(one, other):
    assert one.read(bare(other["line"])) is None


@pytest.mark.parametrize(("one", "sample"), SAMPLES, ids=named(SAMPLES))
def test_no_other_dialect_claims_a_sample(one, sample):
    assert [other.id for other in ALL if other is not one and other.read(bare(sample["line"]))] == []


def test_prose_about_training_is_no_line_of_any_dialect():
    prose = [
        "The loss at step 100 was 2.31, which is lower than at iteration 90/100 of the last run.",
        "iteration 5: we saw an elapsed time per iteration of 2 s and a validation loss of 3.1",
        "step: 10 | Step 10 | epoch: 3, loss: 2.1, see train.py:10 for what eval_metrics: holds",
        "    print(f'iter {i}: loss {loss:.4f}, time {dt:.2f}ms, mfu {mfu:.2f}%')",
        "    logger.info(f'step: {step:2}  loss: {loss:7.4f}  memory: {gib:5.2f}GiB')",
        "{'loss': 'cross_entropy', 'epoch': 'all'}",
        "2024-05-01 12:00:00 INFO Training epoch 3 begins, 10/20 were done before",
        "| 10 train | 250 val | 3 hella |",
    ]
    claimed = [(one.id, line) for line in prose for one in ALL if one.read(bare(line))]
    assert claimed == []


# -- hostile lines -----------------------------------------------------------------------------------------------------

PIECES = [
    "iteration ", "Step 1 | ", "step: 1  ", "Epoch 1: ", "0", "9", "1/1 [", "1.", "e", "-", " ", "\t", ":", "|", "| ",
    "a", "a: ", "a:1 ", "a=1, ", "[", "[[", "] ", "(", "{'", "'", "': ", "{", "=", ", ", "\\", "/", "é", "nan ",
    "loss: ",
]  # fmt: skip


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_hostile_lines_come_to_an_end(one):
    """Nested repetitions, or three in a row that take the same characters, would not come back from these."""
    heads = ["", *(line[:cut] for line in (bare(s["line"]) for s in one.samples[:6]) for cut in (len(line) // 2, None))]
    marks = "".join(kind.mark for kind in one.kinds)
    for head, piece in itertools.product(heads, PIECES):
        long = piece * (4000 // len(piece))
        for line in (head + long + marks, long + marks + head):
            assert one.read(line) is None or head


@given(st.data())
def test_any_line_is_read_without_an_error(data):
    one = data.draw(st.sampled_from(ALL))
    words = st.sampled_from([*PIECES, *(kind.mark for kind in one.kinds), *(bare(s["line"]) for s in one.samples)])
    line = "".join(data.draw(st.lists(words | st.text(max_size=8), max_size=12)))
    cut = data.draw(st.integers(0, len(line)))
    for text in (line, line[:cut], line[cut:]):
        found = one.read(text)
        assert found is None or found[1].dialect == one.id


# -- whole logs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow_bytes", [console.SLOW_BYTES, 0], ids=["by line", "by block"])
@pytest.mark.parametrize(("one", "log"), LOGS, ids=named(LOGS))
def test_an_excerpt_reads_as_it_says(read, monkeypatch, one, log, slow_bytes):
    assert set(log) <= {"text", "points"}
    assert len(log["text"].strip().splitlines()) >= 5
    monkeypatch.setattr(console, "SLOW_BYTES", slow_bytes)
    evidence = read("train.log", log["text"])
    assert {name: points_of(evidence, name) for name in log["points"]} == {
        name: [[step, value if isinstance(value, str) else pytest.approx(value, rel=1e-12)] for step, value in points]
        for name, points in log["points"].items()
    }


def points_of(evidence, name):
    """[step, value] of every point of "loss" or "eval/loss", with "nan" and "inf" as the files write them."""
    head, slash, rest = name.partition("/")
    phase, series = (head, rest) if slash and head in names.PHASES else ("train", name)
    picked = evidence.series(series, phase)
    spelt = {"nan": "nan", "posinf": "inf", "neginf": "-inf"}
    return picked and [
        [step, spelt.get(kind, value)]
        for step, value, kind in zip(picked.steps.tolist(), picked.values.tolist(), picked.kinds, strict=True)
    ]


@pytest.mark.parametrize(("one", "log"), LOGS, ids=named(LOGS))
def test_an_excerpt_ends_in_the_middle_of_a_line(run, one, log):
    text = log["text"].strip()
    evidence = run.write({"train.log": text[: len(text) - len(text.splitlines()[-1]) // 2]}).one()
    assert evidence.frames


def test_the_folder_is_part_of_the_package():
    assert Path(dialects.__file__).parents[1] == FOLDER.parent
