"""What checks need, in words."""

from __future__ import annotations

import pytest

from gradforensics.diagnosis.rules import load_rules
from gradforensics.languages import Text
from gradforensics.report.need_words import need_in_words, needs_in_words


@pytest.mark.parametrize(
    ("need", "english", "chinese"),
    [
        ("series:loss", "loss", "loss"),
        ("series:grad_norm:points>=64", "grad_norm over at least 64 points", "至少 64 个点的 grad_norm"),
        ("series:eval/loss:points>=8", "eval/loss over at least 8 points", "至少 8 个点的 eval/loss"),
        ("series:loss:ranks>=2", "loss of at least 2 ranks", "至少 2 个 rank 的 loss"),
        ("settings:optim", "the setting optim", "设置项 optim"),
        ("checkpoints:rows>=2", "2 checkpoints", "2 个检查点"),
        ("baseline:series:lr", "of a healthy run: lr", "正常运行的lr"),
        ("events:kernel", "the kernel log of the machine", "机器的内核日志"),
        ("experiments:anomaly", "a replay with the experiment anomaly", "含 anomaly 实验的重放"),
    ],
)
def test_needs_are_told_in_both_languages(need: str, english: str, chinese: str) -> None:
    told = need_in_words(need)
    assert (told.en, told.in_("zh")) == (english, chinese)


def test_a_remark_behind_a_need_stays_and_prose_is_left_alone() -> None:
    assert need_in_words("series:grad_norm of every step").en == "grad_norm of every step"
    assert need_in_words("an adapter after more updates") == Text(
        "an adapter after more updates", "更多次更新之后的适配器"
    )
    assert need_in_words("series:loss of one attempt") == Text("loss of one attempt", "单次启动的 loss")
    assert need_in_words("baseline:series:loss with its epochs") == Text(
        "of a healthy run: loss with its epochs", "正常运行的带 epoch 的 loss"
    )
    assert need_in_words("nobody's message") == Text("nobody's message")


def test_several_needs_are_told_once_each() -> None:
    told = needs_in_words(["tensors", "series:lr", "tensors"])
    assert told == Text("the weights in a checkpoint; lr", "检查点中的权重；lr")


def test_no_need_of_the_catalogue_is_shown_raw() -> None:
    signs = [sign for rule in load_rules(examples=False) for sign in rule.signs]
    needs = {need.text for sign in signs for need in sign.test.needs}
    raw = [need for need in needs if not need.startswith("series:") and need_in_words(need).en == need]
    assert len(needs) > 40
    assert raw == []
    assert [n for n in needs if ":" in need_in_words(n).en.removeprefix("of a healthy run:")] == []
