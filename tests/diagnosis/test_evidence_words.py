"""What readers of evidence say, in both languages."""

from pathlib import Path

import pytest

from gradforensics.diagnosis import evidence_words
from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.languages import Text
from gradforensics.tables import Event

SAMPLES = Path(__file__).parents[2] / "sample_runs"
RULES = load_rules(examples=False)


@pytest.mark.parametrize(
    ("kind", "english", "chinese"),
    [
        ("missing", "1 of 3 shards are missing, such as a.safetensors", "3 个分片中缺少 1 个，例如 a.safetensors"),
        ("missing", "8 of 16 data files are missing, such as a.distcp", "16 个数据文件中缺少 8 个，例如 a.distcp"),
        (
            "changed", "the CRC-32 of 1 record is wrong, such as tensor a: bytes were changed or damaged",
            "1 条记录的 CRC-32 不符，例如 a：字节被改变或损坏",
        ),
        (
            "cut", "the file is cut: 20 of 56 bytes of data are there; 15 of 17 tensors are lost, such as 'h.0'",
            "文件被截断：56 字节数据中只有 20 字节；17 个张量中丢失 15 个，例如 'h.0'",
        ),
        (
            "cut", "the zip archive has no end record: the file is cut; 75 of 116 storages are whole",
            "zip 归档没有结尾记录：文件被截断；116 个存储中有 75 个完整",
        ),
        ("changed", "something new", "内容在写入之后被改变（something new）"),
    ],
)  # fmt: skip
def test_damage_is_told_in_both_languages_and_quoted_where_the_sentence_is_not_known(kind, english, chinese):
    assert evidence_words.damage(kind, english) == Text(english, chinese)


@pytest.mark.parametrize(
    "sample", ["damaged-file", "truncated-file", "missing-shard", "partly-there", "unfinished", "empty-weights"]
)
def test_the_damages_that_the_readers_tell_of_real_files_are_known(sample):
    (evidence,) = gather([SAMPLES / f"gf30-{sample}" / "run"])
    (verdict,) = diagnose(evidence, [rule for rule in RULES if rule.id == "GF30"]).verdicts
    fact = verdict.facts["damage"]
    assert isinstance(fact, Text)
    assert fact.en not in fact.zh
    assert fact.en in verdict.texts("en").what
    assert fact.zh in verdict.texts("zh").what


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ((), None),
        ((3, 1), "1, 3"),
        (range(8), "0, 1, 2, 3, 4, 5, 6, 7"),
        (range(10), Text("0, 1, 2, 3, 4, 5, 6, 7 and 2 more", "0, 1, 2, 3, 4, 5, 6, 7 等 10 个")),
    ],
)
def test_ranks_are_listed_up_to_eight(ranks, told):
    assert evidence_words.ranks(ranks) == told


def of(kind, text="told", **data):
    return Event(kind, text, "source", data=data)


@pytest.mark.parametrize(
    ("event", "chinese"),
    [
        (
            of("stack", process=13, frames=["_try_get_data (dataloader.py:1243)"], waits="data loader"),
            "进程 13：主线程位于 _try_get_data (dataloader.py:1243)，等待：数据加载器",
        ),
        (of("stack", frames=[]), "某个进程：主线程在 Python 之外"),
        (
            of("collective_timeout", collective="all_reduce", sequence=97, group="0", description="default_pg",
               missing=[3], waiting=[0, 1, 2]),
            "rank 3 没有到达 all_reduce #97（组 0：default_pg）；rank 0, 1, 2 在其中等待",
        ),
        (
            of("collective_timeout", collective="all_reduce", sequence=97, group="0", description="undefined",
               missing=[], waiting=[0], without_dump=[1]),
            "all_reduce #97（组 0）：rank 0 在其中等待；rank 1 没有留下转储，可能也缺席",
        ),
        (
            of("collective_mismatch", sequence=9, group="0", what="size",
               calls={"all_reduce of 4 to 4 elements": [0, 2], "all_reduce of 8 to 8 elements": [1]}),
            "组 0 的调用大小不同：#9：rank 0, 2：all_reduce：4 到 4 个元素；rank 1：all_reduce：8 到 8 个元素",
        ),
    ],
)  # fmt: skip
def test_dumps_and_stacks_are_told_from_their_data(event, chinese):
    assert evidence_words.event(event) == Text("told", chinese)


def test_a_line_of_a_log_is_quoted_as_it_stands():
    assert evidence_words.event(of("timeout", "[Rank 0] Watchdog caught collective operation timeout")) == (
        "[Rank 0] Watchdog caught collective operation timeout"
    )


def test_copies_name_the_sample_that_they_repeat():
    english = "as row 1; the most frequent one 2 times"
    assert evidence_words.copies(english) == Text(english, "与样本 1 相同；最常见的一个出现 2 次")


def test_the_place_of_a_stack_comes_without_the_name_of_its_process():
    stack = Event("stack", "a process: main thread in load (a.py:3)", "stacks.txt", data={"frames": ("load (a.py:3)",)})
    assert evidence_words.place(stack) == Text("main thread in load (a.py:3)", "主线程位于 load (a.py:3)")
