"""Which files of a run directory are training data, and what the user names besides."""

import json

import polars as pl
import pytest

from gradforensics.errors import UsageError
from gradforensics.evidence import training_data
from gradforensics.evidence.gather import gather

LOG = "".join(json.dumps({"step": i, "loss": 3 - i / 50, "lr": 1e-4}) + "\n" for i in range(1, 40))
SFT = "".join(json.dumps({"prompt": f"q {i}", "completion": f"a {i}"}) + "\n" for i in range(20))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(LOG)
    return folder


def files_of(evidence):
    table = evidence.tables.get("data")
    return [] if table is None else table["file"].unique().sort().to_list()


def test_samples_in_the_run_directory_are_audited_and_the_log_is_read(run):
    (run / "sft.jsonl").write_text(SFT)
    pl.DataFrame({"input_ids": [[1, 2, 3]] * 4}).write_parquet(run / "tokens.parquet")
    (evidence,) = gather([run])
    assert files_of(evidence) == ["sft.jsonl", "tokens.parquet"]
    loss = evidence.series("loss")
    assert loss is not None
    assert len(loss) == 39
    readers = {source.path: source.reader for source in evidence.sources}
    assert readers["sft.jsonl"] == training_data.READER


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.jsonl", LOG),
        ("completions.jsonl", json.dumps({"step": 10, "prompt": "q", "completion": "a", "reward": 0.5}) + "\n"),
        ("notes.jsonl", json.dumps({"text": "hello"}) + "\n"),
        ("train/log.jsonl", json.dumps({"text": "hello", "step": 3}) + "\n"),
        ("config.json", json.dumps({"learning_rate": 1e-4, "labels": ["a", "b"], "max_steps": 40})),
        ("train/losses.csv", "step,loss\n1,2.0\n2,1.9\n"),
        ("generated.csv", "epoch,prompt,output\n1,a,b\n"),
    ],
)
def test_what_is_a_log_or_a_configuration_is_no_training_data(run, name, content):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text(content)
    assert [files_of(evidence) for evidence in gather([run]) if files_of(evidence)] == []


def test_a_lone_text_counts_by_the_name_of_its_file(run):
    (run / "data").mkdir()
    (run / "data" / "part-0.jsonl").write_text(json.dumps({"text": "hello"}) + "\n")
    (evidence,) = gather([run])
    assert files_of(evidence) == ["data/part-0.jsonl"]


def test_named_files_are_audited_once_for_every_run(run, tmp_path):
    (run / "sft.jsonl").write_text(SFT)
    other = tmp_path / "other.csv"
    other.write_text("text\nhello\n")
    (evidence,) = gather([run], data=[other, run / "sft.jsonl"])
    assert files_of(evidence) == [str(other), str(run / "sft.jsonl")]
    assert str(other) in [source.path for source in evidence.sources]


def test_other_tables_are_named_as_not_read(run):
    pl.DataFrame({"a": [1]}).write_parquet(run / "a.parquet")
    (run / "b.parquet").write_bytes(b"no parquet at all")
    (evidence,) = gather([run])
    assert [n.text for n in evidence.notices] == [
        "no training data by its columns; this version does not read other .parquet files (2 such files)"
    ]


def test_what_cannot_be_used_is_a_usage_error(run, tmp_path):
    for bad in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UsageError, match="--data"):
            gather([run], data=[bad])


def test_a_tokenizer_must_be_one(run, tmp_path):
    pytest.importorskip("tokenizers")
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    for bad in (broken, tmp_path / "none.json"):
        with pytest.raises(UsageError, match="--tokenizer"):
            gather([run], tokenizer=bad)


def test_without_the_library_the_error_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(UsageError, match="gradforensics\\[data\\]"):
        gather([run], tokenizer=tmp_path / "tokenizer.json")


def test_a_tokenizer_says_what_its_files_know(run, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "</s>": 1, "[UNK]": 2, "q": 3, "a": 4}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    config = {"pad_token": "[PAD]", "eos_token": {"content": "</s>"}, "model_max_length": 2}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (run / "sft.jsonl").write_text(SFT)
    (evidence,) = gather([run], settings={"vocab_size": 4}, tokenizer=tmp_path / "tokenizer.json")
    found = {q: (v, c) for q, v, c in evidence.tables["data"].select("quantity", "value", "count").iter_rows()}
    assert found["ids_outside"][1] == 20  # the word "a" has the id 4
    assert found["tokenizer_size"][0] == 5
    assert found["cut_off"] == (1, 20)
    assert found["eos_held"] == (0, 0)
