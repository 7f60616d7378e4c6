"""Files of samples: every format gives the same, what is broken is counted and named, nothing raises."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from gradforensics.audit import DataFile, Known, audit, files

RECORDS = [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(5)]


def told(found):
    return [(one.line, one.text) for one in found.notices]


WRITERS: dict[str, Callable[[Path], object]] = {
    "train.jsonl": lambda path: pl.DataFrame(RECORDS).write_ndjson(path),
    "train.json": lambda path: path.write_text(json.dumps(RECORDS, indent=1)),
    "train.csv": lambda path: pl.DataFrame(RECORDS).write_csv(path),
    "train.tsv": lambda path: pl.DataFrame(RECORDS).write_csv(path, separator="\t"),
    "train.parquet": lambda path: pl.DataFrame(RECORDS).write_parquet(path),
    "train.arrow": lambda path: pl.DataFrame(RECORDS).write_ipc(path),
    "stream.arrow": lambda path: pl.DataFrame(RECORDS).write_ipc_stream(path),
    "train.jsonl.gz": lambda path: path.write_bytes(gzip.compress(lines(RECORDS).encode())),
}


def lines(records):
    return "".join(json.dumps(one) + "\n" for one in records)


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    (found,) = audit([DataFile(path, path.name, path.stat().st_size)], Known())
    counts = {one.quantity: one.count for one in found.measures}
    assert [counts[name] for name in ("samples", "length", "empty_answer", "duplicates")] == [5, 5, 0, 0]
    assert next(one.value for one in found.measures if one.quantity == "length") == 19
    assert found.notices == []


def test_conversations_are_texts_and_their_last_word_is_the_answer(audited):
    turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": ""}]
    measures, _ = audited([{"messages": turns}, {"messages": [{"from": "human", "value": "so"}]}])
    assert measures["empty_answer"].count == 1
    assert measures["samples"].column == "messages"


def test_a_broken_line_is_left_out_and_the_first_is_named(audited):
    measures, found = audited('{"text": "a"}\n{"text": \n\n[1, 2]\n{"other": 1}\n{"text": "b"}\n')
    assert measures["length"].count == 2
    assert measures["unread"].count == 3
    assert (2, "a line that is no JSON object (2 in all, this is the first): left out of the audit") in told(found)
    assert any(line == 5 and "without any of the columns text" in text for line, text in told(found))


def test_bytes_that_are_no_text_are_read_as_replacement_characters(audited):
    measures, found = audited(b'{"text": "caf\xe9"}\n{"text": "ok"}\n')
    assert (measures["replacement"].count, measures["replacement"].line) == (1, 1)
    assert [line for line, _ in told(found)] == [1]


def test_nan_and_lone_surrogates_and_numbers_in_place_of_texts_do_no_harm(audited):
    measures, _ = audited('{"text": "a \\ud800 b", "score": NaN}\n{"text": 5}\n{"text": "c"}\n')
    assert measures["replacement"].count == 1
    assert measures["unread"].count == 1


def test_an_array_that_breaks_off_keeps_what_stands_before(audited):
    measures, found = audited('[{"text": "a"},\n {"text": "b"},\n {"text": "c', "train.json")
    assert measures["length"].count == 2
    assert [line for line, _ in told(found)] == [3]


def test_objects_over_several_lines_are_read(audited):
    measures, found = audited('{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "train.json")
    assert (measures["length"].count, found.notices) == (2, [])


def test_a_line_beyond_the_limit_is_left_out(audited, monkeypatch):
    monkeypatch.setattr(files, "RECORD_LIMIT", 3 << 20)
    long = json.dumps({"text": "x" * (5 << 20)})
    measures, found = audited(f'{{"text": "a"}}\n{long}\n{{"text": "b"}}\n')
    assert measures["length"].count == 2
    assert told(found) == [(2, "a line longer than 3 MiB: left out of the audit")]


def test_a_bounded_file_says_so(audited):
    line = json.dumps({"text": "word " * 200}) + "\n"
    measures, found = audited(line * 4000, limit=1 << 20)
    assert 900 < measures["samples"].count < 2500
    assert "--data" in told(found)[0][1]


def test_rows_of_a_csv_with_too_few_cells_are_counted_and_quoted_line_breaks_kept(audited):
    measures, found = audited('text,label\n"two\nlines",1\nshort\nlast,0\n', "train.csv")
    assert measures["length"].count == 2
    assert told(found) == [(4, "a row with 1 cells instead of 2: left out of the audit")]


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"PAR1 and no more", "x.parquet", "no valid Parquet file"),
        (b"PAR1" + bytes(200) + b"PAR1", "x.parquet", "Parquet file"),
        (b"nothing of the kind", "x.arrow", "Arrow file"),
        (b"\x00\x01\x02\x03" * 40, "x.jsonl", "binary"),
        (b"", "x.jsonl", "an empty file"),
        (b'{"a": 1}\n', "x.jsonl", "no column of text"),
        (b"[1, 2, 3]", "x.json", "no record"),
        ("text".encode("utf-16"), "x.csv", "UTF-16"),
        (b"1,2\n3,4\n", "x.csv", "no JSON lines"),
        (b"\x1f\x8b\x08\x00garbage", "x.jsonl.gz", "empty"),
        (b'{"text": ' + b"[" * 100_000, "x.jsonl", "no record"),
    ],
)
def test_what_is_no_file_of_samples_is_a_notice(audited, content, name, said):
    _, found = audited(content, name)
    assert not found.read
    assert said in " ".join(text for _, text in told(found))


def test_a_gzip_file_that_breaks_off_keeps_its_beginning(audited):
    whole = gzip.compress(
        "".join(json.dumps({"text": f"sample {i * 7919 % 1000}"}) + "\n" for i in range(5000)).encode()
    )
    measures, found = audited(whole[: len(whole) // 2], "train.jsonl.gz")
    assert measures["length"].count > 100
    assert "the gzip data is damaged or cut: read up to there" in [text for _, text in told(found)]
