"""The catalogue of messages: complete for what the package says, nothing in it unused, and what it makes of a text."""

from __future__ import annotations

import ast
import re

import pytest

from gradforensics.languages import Text
from gradforensics.report.messages import CATALOGUE, PLACEHOLDER, message
from tests.report.spoken import PACKAGE, spoken

CHINESE = re.compile(r"[\u4e00-\u9fff]")
TERMS = {"id", "ids", "token", "tokens", "micro", "batch", "batches", "sample"}  # the same in Chinese
PUT_TOGETHER = {"{text} ({names:d} such links)"}  # of a word that the source chooses
WORD = re.compile(r"[a-z]+")
# What the walk finds of sentences that are made in several steps, and what no run of the package says: the whole ones
# are in the catalogue.
PARTS = re.compile(
    r"^1 checkpoint file .* are not read|^\{\} checkpoint files .* is not read"
    r"|the first \{\}( \{\})?\.?$|^table .\{\}.: \{\} \{\}|^one: look at it|No sample is named\. \{\}|^\{\} of it$"
    r"|token of a sample:$|next token,$"
    r"|^looked up in|^against|^\{\} \{\} \{\}:|^\{\} in evaluation mode|^Not finite, but without"
)


def whole(text: str) -> str:
    """A template without what other sentences are put around it."""
    text = re.sub(r"^\{\}; ", "", re.sub(r"\.(\{\})+$", ".", text))
    return re.sub(r"^[;.] ", "", text).strip()


def filled(text: str) -> str:
    """A template with numbers in its places."""
    numbers = iter(range(7, 99))
    return re.sub(r"\{\}", lambda _: str(next(numbers)), text)


def test_every_sentence_of_the_package_has_its_chinese() -> None:
    texts = {whole(text): place for text, place in spoken().items()}
    assert len(texts) > 400  # the walk finds what there is
    lacking = {text: place for text, place in texts.items() if not message(filled(text)).zh and not PARTS.search(text)}
    assert lacking == {}


def test_no_entry_is_unused() -> None:
    told = "\0".join(
        node.value
        for path in PACKAGE.rglob("*.py")
        if "messages" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ).lower()
    unused = []
    for english in CATALOGUE:
        pieces = [piece.split() for piece in re.split(r"[^\w' -]+", PLACEHOLDER.sub("\0", english).lower())]
        runs = [" ".join(words[at : at + 2]) for words in pieces for at in range(max(1, len(words) - 1)) if words]
        if runs and not any(run in told for run in runs) and english not in PUT_TOGETHER:
            unused.append(english)
    assert unused == []


def test_both_languages_of_an_entry_agree() -> None:
    for english, chinese in CATALOGUE.items():
        assert {m[1] for m in PLACEHOLDER.finditer(english)} == {m[1] for m in PLACEHOLDER.finditer(chinese)}, english
        assert CHINESE.search(chinese) or not set(WORD.findall(PLACEHOLDER.sub("", english).lower())) - TERMS, english
        assert not CHINESE.search(english), english
        assert (english, chinese) == (english.strip(), chinese.strip())


def test_a_message_is_translated_with_what_it_holds_and_joins() -> None:
    assert message("steps go back once: 2 attempts in this file").zh == "步倒退一次：此文件含 2 次启动"
    told = message("one of a*.log; no known dialect: read by the names beside its numbers")
    assert told.zh == "a*.log 之一；没有已知的日志方言：按数字旁的名称读取"
    lost = message("4 tensors are lost, such as w; b: elements 1 to 2 are in no chunk")
    assert lost.zh == "丢失 4 个张量，例如 w; b：元素 1 至 2 不在任何数据块中"


@pytest.mark.parametrize("text", ["", ".", "series:loss:points>=5", "Traceback (most recent call last):", "a" * 10_000])
def test_what_is_no_message_stays_as_it_is(text: str) -> None:
    assert message(text) == Text(text)


def test_many_parts_and_hostile_texts_take_no_long() -> None:
    for text in ("; ".join(["in"] * 900), ", ".join(["a and b"] * 400), "of of of " * 400, "{n:d} {" * 500):
        assert message(text).en == text


def test_what_an_exception_says_is_nobodys_message() -> None:
    text = (
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
        "[torch.FloatTensor [16]], which is output 0 of Sigmoid, is at version 1; expected version 0 instead. "
        "Hint: enable anomaly detection to find the operation that failed to compute its gradient."
    )
    assert message(text) == Text(text)
    assert message("input_ids int64 [2, 8]: 0 to 31").zh == "input_ids int64 [2, 8]：0 至 31"
    assert message("x float32 [2]: -1.5e-05 to inf").zh == "x float32 [2]：-1.5e-05 至 inf"
