"""What readers of evidence say in English of a file, a dump or a stack, in both languages.

Checks put these texts into facts. Names of files, tensors, operations and functions stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Event
from gradforensics.untrusted.files import Damage

_SHOWN = 200  # characters of a text
_DAMAGES: dict[Damage, str] = {
    "changed": "内容在写入之后被改变",
    "cut": "文件被截断",
    "empty": "文件为空",
    "missing": "缺少文件",
    "hollow": "没有权重的元素",
    "unfinished": "没有写完",
}
_PARTS = {"shards": "分片", "data files": "数据文件", "tensors": "张量", "storages": "存储"}
_WAITS = {
    "collective": "集合通信",
    "data loader": "数据加载器",
    "file system": "文件系统",
    "network": "网络",
    "lock": "锁",
    "GPU driver": "GPU 驱动",
}
# The sentences that tell most damages, with what stands for them; groups are names and numbers.
_SENTENCES = (
    (lazy(r"(\d+) of (\d+) (shards|data files) are missing, such as (.+)"), "{2} 个{part}中缺少 {1} 个，例如 {4}"),
    (
        lazy(r"the CRC-32 of (\d+) records? (?:is|are) wrong, such as (?:tensor )?(.+): bytes were changed or damaged"),
        "{1} 条记录的 CRC-32 不符，例如 {2}：字节被改变或损坏",
    ),
    (lazy(r"the file is cut: (\d+) of (\d+) bytes of data are there"), "文件被截断：{2} 字节数据中只有 {1} 字节"),
    (lazy(r"the zip archive has no end record: the file is cut"), "zip 归档没有结尾记录：文件被截断"),
    (lazy(r"(\d+) of (\d+) (tensors) are lost, such as (.+)"), "{2} 个{part}中丢失 {1} 个，例如 {4}"),
    (lazy(r"(\d+) of (\d+) (storages) are whole"), "{2} 个{part}中有 {1} 个完整"),
    (lazy(r"a file of weights that holds no element of any parameter"), "权重文件不含任何参数的元素"),
    (lazy(r"the folder has the name of one that was still being written"), "文件夹的名称表明它仍在写入"),
)
_COPY = lazy(r"as row (\d+); the most frequent one (\d+) times")


def damage(kind: Damage, text: str) -> Text:
    """How a file of a checkpoint is damaged; a sentence without a translation is quoted behind the kind of damage."""
    parts = [_sentence(part) for part in text.split("; ")]
    known = [part for part in parts if part is not None]
    return Text(text, "；".join(known) if len(known) == len(parts) else f"{_DAMAGES[kind]}（{text}）")


def _sentence(text: str) -> str | None:
    for pattern, chinese in _SENTENCES:
        if (found := pattern.fullmatch(text)) is not None:
            part = next((_PARTS[group] for group in found.groups() if group in _PARTS), "")
            return chinese.format(found[0], *found.groups(), part=part)
    return None


def copies(text: str) -> Text:
    """Of which sample an exact copy is one, and how often the most frequent sample stands in the file."""
    found = _COPY.fullmatch(text)
    return Text(text, f"与样本 {found[1]} 相同；最常见的一个出现 {found[2]} 次") if found else Text(text)


def ranks(those: Iterable[int], *, most: int = 8) -> Text | str | None:
    """Some ranks as a list of numbers, None for none."""
    found = sorted(those)
    listed = ", ".join(map(str, found[:most])) or None
    more = len(found) - most
    return Text(f"{listed} and {more} more", f"{listed} 等 {len(found)} 个") if more > 0 else listed


def event(one: Event) -> Text | str:
    """The text of an event: that of a Flight Recorder dump or of a stack in both languages, else as it was read."""
    if one.kind == "stack" and "frames" in one.data:
        return Text(one.text[:_SHOWN], _stack(one)[:_SHOWN])
    if one.kind == "collective_timeout" and "waiting" in one.data:
        return Text(one.text[:_SHOWN], _stall(one)[:_SHOWN])
    if one.kind == "collective_mismatch" and "calls" in one.data:
        return Text(one.text[:_SHOWN], _mismatch(one)[:_SHOWN])
    return one.text[:_SHOWN]


def calls(sequence: object, by_rank: Sequence[tuple[str, str]]) -> str:
    """What each rank called under one number of a group, in Chinese."""
    return f"#{sequence}：" + "；".join(f"rank {rank}：{_called(what)}" for rank, what in by_rank)


def _called(what: str) -> str:
    elements = re.sub(r"(\d+) to (\d+) elements", r"\1 到 \2 个元素", what)
    return re.sub(r"(\d+) elements", r"\1 个元素", elements).replace(" of ", "：", 1)


def _mismatch(one: Event) -> str:
    what = {"operation": "操作", "type": "类型", "size": "大小"}.get(str(one.data.get("what")), "内容")
    found = [(", ".join(map(str, those)), str(text)) for text, those in list(one.data["calls"].items())[:6]]
    return f"组 {_group(one)} 的调用{what}不同：{calls(one.data.get('sequence'), found)}"


def _stall(one: Event) -> str:
    call = f"{one.data.get('collective')} #{one.data.get('sequence')}（组 {_group(one)}）"
    waiting = f"rank {_chinese(one.data['waiting'])} 在其中等待"
    if one.data.get("missing"):
        return f"rank {_chinese(one.data['missing'])} 没有到达 {call}；{waiting}"
    if one.data.get("without_dump"):
        return f"{call}：{waiting}；rank {_chinese(one.data['without_dump'])} 没有留下转储，可能也缺席"
    return f"{call}：{waiting}"


def _group(one: Event) -> str:
    name, description = str(one.data.get("group", "")), str(one.data.get("description", ""))
    return f"{name}：{description}" if description not in ("", "undefined", name) else name


def _chinese(those: Iterable[int]) -> str:
    told = ranks(those)
    return told.zh if isinstance(told, Text) else told or "?"


def _stack(one: Event) -> str:
    process, frames, waits = one.data.get("process"), one.data["frames"], one.data.get("waits")
    who = "某个进程" if process is None else f"进程 {process}"
    where = f"位于 {frames[0]}" if frames else "在 Python 之外"
    return f"{who}：主线程{where}" + (f"，等待：{_WAITS.get(waits, waits)}" if waits else "")


def place(one: Event) -> Text:
    """Where the main thread of a process is, by its stack, without the name of the process."""
    english, chinese = one.text[:_SHOWN].partition(": ")[2], _stack(one)[:_SHOWN].partition("：")[2]
    return Text(english or one.text[:_SHOWN], chinese)


def waits_for(what: str) -> Text:
    """What a blocked process waits for."""
    return Text(f"blocked, waits for: {what}", f"被阻塞，等待：{_WAITS.get(what, what)}")
