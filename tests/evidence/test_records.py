"""Whole blocks and single rows are read alike: what polars cuts is what the csv and json modules give."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradforensics.evidence import cells, csv_rows, json_shapes, records
from gradforensics.evidence.blocks import blocks, plain, split
from gradforensics.evidence.cells import ABSENT, CLOCK, FLAG, NUMBER, OTHER, Table, judge
from gradforensics.evidence.files import File
from gradforensics.evidence.json_shapes import Shapes, shape_of
from gradforensics.evidence.readers import csv_table, json_lines

if TYPE_CHECKING:
    from pathlib import Path

    from gradforensics.evidence.readings import Reading

NAMES = ["step", "epoch", "loss", "val_loss", "lr", "time", "split", "total_steps", "a,b", "naïve", "x", "loss", "eta"]
SPELLINGS = [
    "nan", "NaN", "-inf", "Infinity", "+inf", "", "None", "NA", "1.#QNAN", "1e999", "-0.0", "-0", "1_000", "0x10",
    "oops", "tensor(1.5)", "0:01:48", "3 days, 17:51:32", "2024-04-30T09:41:55", "True", "١٢", "1.", ".5", "0.50",
    "-1,5", "é", "9007199254740993", "9" * 70, "0." + "0" * 70 + "1", 'a"b', '"', '"x"', " 7", "7 ", "\u00a01",
    "a\x1db", "\x0b1", "\0",
]  # fmt: skip
TOKENS = [
    "NaN", "Infinity", "-Infinity", "null", "true", "nan", "-inf", "1e999", "-0", "-0.0", "[1, 2]", "[]", "{}",
    '{"q": 1}',
    '{"num": 2, "mean": 0.5}', '{"mean": [1], "std": 0}', "1.", "01", "+1", ".5", "9" * 400, '"0.50"', '"nan"',
    '"tr,ain"',
    '"a\\"b"', '"\\u00e9"', '"é"', '"tab\tin"', '"train"', '"2024-04-30T09:41:55"', '"0:01:48"', "1 2", "", "x",
]  # fmt: skip
number = st.floats(allow_nan=False, width=32).map(repr) | st.integers(-5, 300).map(str)
cell = st.integers(0, 9).flatmap(lambda n: st.sampled_from(SPELLINGS) if n == 0 else number)
token = st.integers(0, 9).flatmap(lambda n: st.sampled_from(TOKENS) if n == 0 else number)
bounded = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def tables(draw: Any) -> str:
    separator: str = draw(st.sampled_from(",,,;\t "))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    width = len(names)
    quoted = draw(st.booleans())
    lines = [separator.join(names)]
    for _ in range(draw(st.integers(0, 30))):
        row = draw(st.lists(cell, min_size=width, max_size=width))
        if draw(st.integers(0, 9)) == 0:
            row = row[:-1] if draw(st.booleans()) else [*row, draw(st.sampled_from(["", " ", "9"]))]
        if quoted:
            row = ['"' + text.replace('"', '""') + '"' for text in row]
        lines.append(draw(st.sampled_from([separator.join(row)] * 9 + ["", lines[0]])))
    text: str = draw(st.sampled_from(["\n", "\r\n"])).join(lines)
    return text + str(draw(st.sampled_from(["", "\n", ",", "\r"])))


@st.composite
def logs(draw: Any) -> str:
    colon = draw(st.sampled_from([": ", ":"]))
    comma = draw(st.sampled_from([", ", ","]))
    shapes = draw(st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5), min_size=1, max_size=2))
    nested = draw(st.sampled_from(["", f'{comma}"in"{colon}{{"lr"{colon}1.5{comma}"l"{colon}[1{comma}2]}}']))
    lines = []
    for _ in range(draw(st.integers(1, 40))):
        names = draw(st.sampled_from(shapes))
        pairs = comma.join(json.dumps(name, ensure_ascii=False) + colon + draw(token) for name in names)
        line = "{" + pairs + nested + "}"
        lines.append(draw(st.sampled_from([line] * 20 + [line + ",", line + " ", line[:-1], "", "oops", "[1]"])))
    text: str = draw(st.sampled_from(["\n", "\r\n"])).join(lines)
    return text + str(draw(st.sampled_from(["", "\n"])))


def shown(reading: Reading) -> tuple[object, ...]:
    """Everything that a reading says, in a form in which NaN equals itself."""
    tracks = [
        (
            t.phase,
            t.series,
            t.tag,
            t.stored.step_unit,
            t.stored.resolution,
            str(t.stored.frame.to_dict(as_series=False)),
        )
        for t in reading.tracks
    ]
    return tracks, reading.notices, reading.trail, reading.claimed, reading.speaks_of_training, reading.columns


@pytest.fixture(scope="module")
def read_twice(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Read a text in whole blocks of a few bytes, then row by row in one block."""
    folder: Path = tmp_path_factory.mktemp("files")

    def both(reader: Any, name: str, data: bytes, size: int) -> None:
        path = folder / name
        path.write_bytes(data)
        whole = File.chunks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_shapes, "_FEWEST", 2)
            patch.setattr(cells, "SPELLINGS", 5)
            patch.setattr(records, "SPELLINGS", 5)
            patch.setattr(File, "chunks", lambda self, _=0: whole(self, size))
            fast = reader.read(File(path, name, len(data), alone=True))
            patch.setattr(File, "chunks", whole)
            patch.setattr(csv_rows, "plain", lambda _: None)
            patch.setattr(json_lines, "plain", lambda _: None)
            slow = reader.read(File(path, name, len(data), alone=True))
        assert shown(fast) == shown(slow)

    return both


@bounded
@given(text=tables(), size=st.sampled_from([40, 10_000]), broken=st.booleans())
def test_tables_in_blocks_are_those_of_the_csv_module(read_twice: Any, text: str, size: int, *, broken: bool) -> None:
    data = text.encode()
    read_twice(csv_table, "t.csv", data[:7] + b"\xff" + data[7:] if broken else data, size)


@bounded
@given(text=logs(), size=st.sampled_from([100, 10_000]), broken=st.booleans())
def test_lines_in_blocks_are_those_of_the_json_module(read_twice: Any, text: str, size: int, *, broken: bool) -> None:
    data = text.encode()
    read_twice(json_lines, "t.jsonl", data[:9] + b"\xff" + data[9:] if broken else data, size)


# -- the pieces --------------------------------------------------------------------------------------------------------


def decode(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return records.flat(found) if isinstance(found, dict) else None


def taken(*lines: str) -> tuple[dict[str, list[float | None]], list[int]]:
    """What Shapes makes of lines, all of the shape of the first: (columns, places of the lines left over)."""
    block = plain("".join(line + "\n" for line in lines * 16).encode())
    assert block is not None
    parts, others = Shapes(decode).take(block)
    count = len(lines)
    return {name: c.values.to_list()[:count] for part in parts for name, c in part.fields}, others[:count]


def test_a_shape_is_what_stands_around_the_scalars() -> None:
    shape = shape_of('{"step": 1, "m": {"lr": 0.5, "l": [1,2]}, "loss": "x"}', decode)
    assert shape is not None
    assert shape.fields[0] == ('{"step": ', "")
    assert shape.fields[-1] == (' "loss": ', "}")
    assert shape.names == (("step", 0), ("m/lr", 1), ("loss", 4))


@pytest.mark.parametrize("line", ['{"a": "x,y"}', "[1, 2]", '{"mean": 1, "b": {"mean": [1], "std": 2}}'])
def test_lines_without_a_shape(line: str) -> None:
    assert shape_of(line, decode) is None


def test_of_two_equal_keys_the_last_counts() -> None:
    columns, others = taken('{"a": 1, "b": 2, "a": 3}', '{"a": 4, "b": 5, "a": 6}')
    assert columns == {"a": [3, 6], "b": [2, 5]}
    assert others == []


@pytest.mark.parametrize(
    "odd",
    ['{"a": 1.}', '{"a": 01}', '{"a": +1}', '{"a": nan}', '{"a": 1},', '{"a": 1', ""],
)
def test_lines_that_depart_from_the_shape_are_left_over(odd: str) -> None:
    columns, others = taken('{"a": 0.5}', odd)
    assert set(columns["a"]) == {0.5}
    assert others == [1, 3]


def test_scalars_of_every_kind_are_those_of_the_json_module() -> None:
    columns, others = taken(
        *(f'{{"a": {text}}}' for text in ("1", "-0", "NaN", "null", '"0.25"', "1e999", "true", '"x"'))
    )
    assert others == []
    assert str(columns["a"]) == "[1.0, 0.0, nan, None, 0.25, inf, None, None]"


@pytest.mark.parametrize("text", ["a\x1db\n", "\u00a0\n", "a\rb\n", "\0\n", "x" * 70_000 + "\n"])
def test_what_python_and_polars_split_differently_is_not_plain(text: str) -> None:
    assert plain(text.encode()) is None


def test_carriage_returns_before_newlines_are_plain() -> None:
    block = plain(b"a\r\nb\r\n")
    assert block is not None
    assert [block.line(0), block.line(1)] == ["a", "b"]


def test_empty_and_short_and_long_lines_keep_their_places() -> None:
    frame = split(b"\n\n1,2\n3\n,\n4,5,6\n", ",", 2)
    assert frame.rows() == [(None, None), (None, None), ("1", "2"), ("3", None), (None, None), ("4", "5")]


@pytest.mark.parametrize("size", [1, 3, 7, 1 << 20])
def test_blocks_hold_whole_lines(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    path.write_bytes("é\n\nab\ncd".encode())
    whole = File.chunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(File, "chunks", lambda self, _=0: whole(self, size))
        found = list(blocks(File(path, "a", path.stat().st_size)))
    assert "".join(block.text for block in found) == "é\n\nab\ncd\n"
    before = [found[:index] for index in range(len(found))]
    assert [block.line for block in found] == [1 + sum(b.text.count("\n") for b in those) for those in before]


@pytest.mark.parametrize(
    ("value", "judged"),
    [
        (1, (NUMBER, 1.0)), ("0.5", (NUMBER, 0.5)), (None, (ABSENT, None)), ("NA", (ABSENT, None)),
        (True, (FLAG, None)), ("0:01:48", (CLOCK, 108.0)), ("oops", (OTHER, None)), ("9" * 65, (OTHER, None)),
        (10**400, (NUMBER, float("inf"))),
    ],
)  # fmt: skip
def test_what_a_cell_is(value: object, judged: tuple[int, float | None]) -> None:
    assert judge(value) == judged


def test_columns_keep_the_order_of_the_rows_that_name_them_first() -> None:
    table = Table()
    table.take_records([(1, {"b": 1, "a": True}), (2, {"c": 1, "a": 2}), (5, {"b": 3})])
    found = table.columns()
    assert list(found) == ["b", "a", "c"]
    assert found["a"].rows.tolist() == [1]
    assert found["b"].rows.tolist() == [0, 2]
    assert table.lines.tolist() == [1, 2, 5]
    assert (found["a"].whole, found["b"].whole) == (False, True)
