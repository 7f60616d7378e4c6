"""Checks on what a machine tells of itself: the kernel's log, the GPU driver's Xid and SXid, nvidia-smi.

Not every Xid is hardware: which numbers count stands in the rule file. Nor is every fault one of this run: what lies
days before or after it, or came after the program had failed, is left aside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from gradforensics import signals
from gradforensics.diagnosis import evidence_words
from gradforensics.diagnosis.checks.communication import complaints
from gradforensics.diagnosis.checks.replicas import slow_rank
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check
from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Evidence, Series

# What NVIDIA's Xid catalog calls the numbers that the rule names (docs.nvidia.com/deploy/xid-errors).
XID_NAMES: dict[int, Text] = {
    46: Text("GPU stopped processing", "GPU 停止处理"),
    48: Text("uncorrectable ECC error", "不可纠正的 ECC 错误"),
    54: Text("auxiliary power is not connected", "未接辅助电源"),
    61: Text("internal micro-controller breakpoint", "内部微控制器断点"),
    62: Text("internal micro-controller halt", "内部微控制器停止"),
    64: Text("failure to record a remapped row or retired page", "未能记录重映射的行或停用的页"),
    74: Text("NVLink error", "NVLink 错误"),
    79: Text("GPU has fallen off the bus", "GPU 从总线上丢失"),
    92: Text("high rate of single-bit ECC errors", "单比特 ECC 错误率过高"),
    94: Text("contained memory error", "已隔离的显存错误"),
    95: Text("uncontained memory error", "未隔离的显存错误"),
    109: Text("context switch timeout", "上下文切换超时"),
    110: Text("security fault", "安全故障"),
    119: Text("GSP RPC timeout", "GSP RPC 超时"),
    120: Text("GSP error", "GSP 错误"),
    121: Text("corrected C2C errors", "已纠正的 C2C 错误"),
    136: Text("link training failed", "链路训练失败"),
    140: Text("unrecovered ECC error", "未恢复的 ECC 错误"),
    143: Text("GPU initialization error", "GPU 初始化错误"),
    144: Text("NVLink SAW error", "NVLink SAW 错误"),
    145: Text("NVLink RLW error", "NVLink RLW 错误"),
    146: Text("NVLink TLW error", "NVLink TLW 错误"),
    147: Text("NVLink TREX error", "NVLink TREX 错误"),
    148: Text("NVLink NVLPW_CTRL error", "NVLink NVLPW_CTRL 错误"),
    149: Text("NVLink NETIR error", "NVLink NETIR 错误"),
    150: Text("NVLink MSE error", "NVLink MSE 错误"),
    157: Text("failure to retire a resource", "未能停用资源"),
    158: Text("GPU fatal timeout", "GPU 致命超时"),
    167: Text("PCIe fatal timeout", "PCIe 致命超时"),
    169: Text("internal micro-controller halt", "内部微控制器停止"),
    171: Text("uncorrectable DRAM error", "不可纠正的 DRAM 错误"),
    172: Text("uncorrectable SRAM error", "不可纠正的 SRAM 错误"),
}
_NVLINK5 = range(144, 151)  # one number for fatal errors and for those without effect: the message tells which
# What nvidia-smi reports of memory that cannot be repaired any more.
_MEMORY_FAULTS = {
    "row remapping failed": "行重映射失败",
    "sram threshold exceeded": "超过 SRAM 阈值",
    "unrepairable memory": "显存无法修复",
}
_ZONES = 26 * 3600.0  # seconds: no two clocks of one moment are further apart, whatever their zones
_SOON = (60.0, 1500.0)  # seconds after a failure that neither the writing of a line nor a half-hour zone explains
_TRAINERS = lazy(r"python|pt_|torchrun|deepspeed|accelerate|ray::", re.IGNORECASE)
_BOOT = 300.0  # seconds of uptime in which links come up and go down
_BROKEN_FILES = lazy(r"Errno (?:5|30|116|121)\b|Input/output error|Read-only file system|Stale file handle")
_GPU_HEAT = lazy(r"HW (?:Thermal |Power Brake )?Slowdown|slowdown temperature|thermal shutdown", re.IGNORECASE)
# What ends a training or costs it a launch.
_FAILURES = frozenset(
    {
        "oom", "timeout", "killed", "exception", "cuda_error", "device_assert", "index_error", "nccl_error",
        "child_failed", "disk_full",
    }
)  # fmt: skip
_FACTS = ("device", "host", "count", "what", "message")
_Describe: TypeAlias = Callable[[Event], "Text | str"]


def _watched(evidence: Evidence) -> bool:
    """Whether a kernel log or a report of nvidia-smi was read, or something else that a machine tells of itself."""
    readers = {source.reader for source in evidence.sources}
    return bool(readers & {"kernel-log", "nvidia-smi"})


def _span(evidence: Evidence) -> tuple[float, float] | None:
    """First and last moment of the run by its series, Unix seconds."""

    def moments() -> tuple[float, float] | None:
        columns = [stored.frame["time"].drop_nulls() for stored in evidence.frames.values()]
        ends = [(float(c.min()), float(c.max())) for c in columns if len(c)]  # type: ignore[arg-type]  # Float64, not empty
        return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None

    return evidence.once("span of moments", moments)


def _first_failure(evidence: Evidence) -> Event | None:
    """The first exception or limit of the program, None where it never failed."""

    def earliest() -> Event | None:
        told = [e for e in evidence.events or [] if "type" in e.data] + complaints(evidence)
        return min((e for e in told if e.time is not None), key=lambda e: e.time or 0.0, default=next(iter(told), None))

    return evidence.once("first failure", earliest)


def _foreign(evidence: Evidence, event: Event) -> bool:
    """Whether a machine's message lies outside of the run: days away, or after the program had failed."""
    span = _span(evidence)
    if event.time is not None and span is not None and not span[0] - _ZONES < event.time < span[1] + _ZONES:
        return True
    failed = _first_failure(evidence)
    if failed is None:
        return False
    if failed.source == event.source and failed.line is not None and event.line is not None:
        return event.line > failed.line
    if event.time is None or failed.time is None:
        return False
    return _SOON[0] < event.time - failed.time < _SOON[1]


def survived(evidence: Evidence) -> bool:
    """Whether the run completed in one launch, without any failure on the way."""
    failed = any(e.kind in _FAILURES and e.data.get("level") != "warning" for e in evidence.events or [])
    launches = {attempt for key in evidence.frames for attempt in evidence.frames[key].frame["attempt"].unique()}
    return evidence.ending.kind == "completed" and not failed and len(launches) < 2


def _answer(evidence: Evidence, events: Sequence[Event], describe: _Describe, outlived: str) -> Answer:
    """One hit for the first of the events of each device.

    outlived: "yes" asks for a run that completed all the same, "no" for one that did not, "any" for both.
    """
    if not events and not _watched(evidence):
        return Missing("events:kernel")
    if not events or (outlived != "any" and (outlived == "yes") != survived(evidence)):
        return []
    return [_hit(evidence, e, events, describe) for e in _first_of_each(events)]


def _first_of_each(events: Iterable[Event]) -> list[Event]:
    firsts: dict[tuple[str, str], Event] = {}
    for event in events:
        firsts.setdefault((_host(event), device(event)), event)
    return list(firsts.values())[:16]


def _hit(evidence: Evidence, event: Event, events: Sequence[Event], describe: _Describe) -> Hit:
    same = [e for e in events if (_host(e), device(e)) == (_host(event), device(event))]
    facts: dict[str, Fact] = {
        "device": device(event) or None, "host": _host(event) or _only_host(evidence) or None,
        "count": len(same), "what": describe(event), "message": event.text[:200],
    }  # fmt: skip
    step, after = _when(evidence, event)
    return Hit(step, after, source=event.source, line=event.line, facts=facts)


def _when(evidence: Evidence, event: Event) -> tuple[int | None, int | None]:
    """(first logged step behind the moment of an event, last one before it), where moments of steps are known.

    An event soon behind the last step lies at the step that was not logged any more; clocks of two logs that are
    further apart may differ by their zones, which tells nothing.
    """
    if event.step is not None:
        return event.step, event.step
    loss = evidence.series("loss")
    if event.time is None or loss is None or not len(loss) or not np.isfinite(loss.times).all():
        return None, None
    width = 1.0 if event.time == int(event.time) else 0.0  # a kernel log may tell whole seconds only
    before, behind = (int(np.searchsorted(loss.times, moment)) for moment in (event.time, event.time + width))
    if before == 0 or event.time - float(loss.times[-1]) > _SOON[1]:
        return None, None
    if behind == len(loss):
        return int(loss.steps[-1]) + max(1, round(loss.cadence)), int(loss.steps[before - 1])
    return int(loss.steps[behind]), int(loss.steps[before - 1])


def device(event: Event) -> str:
    """What a message of the machine speaks of: a PCI address, a GPU, a disk, a network interface; "" if nothing.

    The place that the traceback of a program names is none of them.
    """
    data = event.data
    keys = ("pci", "gpu", "device") if _of_program(event) else ("pci", "gpu", "device", "where")
    return str(next((data[key] for key in keys if data.get(key) is not None), ""))


def _of_program(event: Event) -> bool:
    return event.kind == "cuda_error" or event.data.get("error") == "uncorrectable"


def _host(event: Event) -> str:
    return event.host or ""


def _only_host(evidence: Evidence) -> str:
    hosts = {f.value for f in evidence.environment or [] if f.key == "host"}
    return hosts.pop() if len(hosts) == 1 else ""


def _of(evidence: Evidence, *kinds: str) -> list[Event]:
    return [e for e in evidence.events_of(*kinds) if not _foreign(evidence, e)]


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.replace(",", " ").split())


# -- the GPU ----------------------------------------------------------------------------------------------------------


@check(needs=[], facts=_FACTS)
def xid_reported(evidence: Evidence, *, numbers: str, outlived: str) -> Answer:
    """The GPU driver reported one of these Xid numbers.

    Of the numbers that NVLink 5 uses for fatal and harmless errors alike only what the message calls fatal counts.
    """
    wanted = _numbers(numbers)
    events = [e for e in _of(evidence, "xid") if e.data.get("number") in wanted and _fatal(e)]
    return _answer(evidence, events, _xid_words, outlived)


def _xid_words(event: Event) -> Text | str:
    number = event.data["number"]
    named = XID_NAMES.get(number)
    return f"Xid {number}" if named is None else Text(f"Xid {number} ({named.en})", f"Xid {number}（{named.zh}）")


def _fatal(event: Event) -> bool:
    return event.data.get("number") not in _NVLINK5 or re.search(r"\bFatal\b", event.text) is not None


@check(needs=[], facts=_FACTS)
def gpu_lost(evidence: Evidence, *, outlived: str) -> Answer:
    """The driver or nvidia-smi reached a GPU no more, or a program was told that it is lost."""
    events = _of(evidence, "gpu_fallen")
    events += [e for e in _of(evidence, "cuda_error") if e.data.get("error") == "lost"]
    return _answer(evidence, events, lambda _: Text("GPU lost from the bus", "GPU 从总线上丢失"), outlived)


@check(needs=[], facts=_FACTS)
def memory_uncorrectable(evidence: Evidence, *, sram: int, outlived: str) -> Answer:
    """ECC could not correct an error of GPU memory in this run, or rows could not be remapped.

    Counts over the life of a GPU, of remapped rows and of retired pages are history and say nothing of a run, but more
    than `sram` uncorrectable errors of SRAM.
    """
    events = [e for e in _of(evidence, "ecc") if _gpu_memory(e, sram)]
    return _answer(evidence, events, _memory_words, outlived)


def _gpu_memory(event: Event, sram: int) -> bool:
    data = event.data
    if data.get("where") == "host memory" or data.get("corrected") is True:
        return False
    if data.get("error") == "uncorrectable":
        return True  # a program was told
    if data.get("what") in _MEMORY_FAULTS:
        return True
    if data.get("scope") == "volatile":
        return True
    where = str(data.get("where", "")).lower()
    return data.get("scope") == "aggregate" and "sram" in where and int(data.get("count", 0)) > sram


def _memory_words(event: Event) -> Text:
    what, scope = event.data.get("what"), event.data.get("scope")
    if what:
        return Text(str(what), _MEMORY_FAULTS.get(what, str(what)))
    return Text(f"{scope or 'an'} uncorrectable ECC error", "不可纠正的 ECC 错误" + (f"（{scope}）" if scope else ""))


@check(needs=[], facts=_FACTS)
def switch_failed(evidence: Evidence, *, outlived: str) -> Answer:
    """An NVSwitch reported an error that it calls fatal."""
    events = [e for e in _of(evidence, "sxid") if e.data.get("fatal") is True]
    return _answer(evidence, events, lambda e: f"SXid {e.data['number']}", outlived)


@check(needs=[], facts=_FACTS)
def driver_failed(evidence: Evidence, *, outlived: str) -> Answer:
    """The GPU driver could not start a GPU, or its memory manager gave up."""
    events = [e for e in _of(evidence, "gpu_driver") if e.data.get("error") in ("init_failed", "uvm")]
    words = {
        "init_failed": Text("the driver could not initialise the GPU", "驱动无法初始化 GPU"),
        "uvm": Text("fatal error of nvidia-uvm", "nvidia-uvm 的致命错误"),
    }
    return _answer(evidence, events, lambda e: words[e.data["error"]], outlived)


@check(needs=[], facts=("device", "host", "count", "what", "message", "before", "later"))
def slowed_by_heat(evidence: Evidence, *, slowdown: float, tolerance: float, share: float) -> Answer:
    """A GPU or CPU was too hot and the steps got slower by `slowdown`, or one rank is slower than the others."""
    events = _of(evidence, "thermal")
    if not events:
        return [] if _watched(evidence) else Missing("events:kernel")
    series = evidence.series("step_time")
    slower = None if series is None else _slower(series.good, slowdown)
    if slower is None:
        rank = slow_rank(evidence, tolerance, share)
        if rank is None or isinstance(rank, Missing):
            return Missing("series:step_time") if series is None else []
        slower = int(rank.found.steps[rank.start]), None, rank.usual, rank.own
    onset, after, before, later = slower
    facts: dict[str, Fact] = {
        **_hit(evidence, events[0], events, _heat_words).facts, "before": before, "later": later,
    }  # fmt: skip
    return [Hit(onset, after, "step_time", value=later, source=events[0].source, line=events[0].line, facts=facts)]


def _heat_words(event: Event) -> Text | str:
    reason = event.data.get("reason")
    if reason:
        return str(reason)
    return Text("GPU too hot", "GPU 过热") if _GPU_HEAT.search(event.text) else Text("CPU clock throttled", "CPU 降频")


def _slower(series: Series, slowdown: float) -> tuple[int, int | None, float, float] | None:
    """(onset, last good step, usual time, time later) where steps got slower for good; None where they did not."""
    if len(series) < 24:
        return None
    level = signals.rolling_median(series.values[3:], 5)
    usual = float(np.median(level[: max(5, len(level) // 4)]))
    later = float(np.median(level[-max(5, len(level) // 4) :]))
    if usual <= 0 or later < (1 + slowdown) * usual:
        return None
    below = np.flatnonzero(level < (1 + slowdown / 2) * usual)
    start = int(below[-1]) + 1 if len(below) else 0
    steps = series.steps[3:]
    return int(steps[start]), int(steps[start - 1]) if start else None, usual, later


# -- the host ---------------------------------------------------------------------------------------------------------


@check(needs=[], facts=_FACTS)
def host_failed(evidence: Evidence, *, outlived: str) -> Answer:
    """The host had an uncorrected machine check, PCIe or memory error, a hard lockup or a panic."""
    events = [e for e in _of(evidence, "mce", "ecc", "pcie_error", "lockup", "panic") if _host_words(e)]
    return _answer(evidence, events, _host_words, outlived)


def _host_words(event: Event) -> Text | str:
    """What failed on the host; "" for what is no failure."""
    data = event.data
    if event.kind == "mce":
        return Text("uncorrected machine check", "未纠正的机器检查错误") if data.get("corrected") is False else ""
    if event.kind == "ecc":
        uncorrected = data.get("where") == "host memory" and data.get("corrected") is False
        return Text("uncorrected error of host memory", "主机内存的未纠正错误") if uncorrected else ""
    if event.kind == "pcie_error":
        fatal = re.search(r"Uncorrected \(Fatal\)|DPC: containment", event.text)
        return Text("fatal PCIe error", "PCIe 致命错误") if fatal else ""
    if event.kind == "lockup":
        return Text("hard lockup of a CPU", "CPU 硬死锁") if "hard LOCKUP" in event.text else ""
    return Text("kernel panic", "内核崩溃")


@check(needs=[], facts=("device", "host", "count", "what", "message", "process", "seconds"))
def task_hung(evidence: Evidence, *, waits: str, reports: int, outlived: str) -> Answer:
    """The kernel reported `reports` times or more that one process of the training was blocked.

    waits: what its stack shows it to wait for: "file system", "GPU driver" or "InfiniBand".
    """
    events = [e for e in _of(evidence, "hung_task") if _TRAINERS.match(str(e.data.get("process", "")))]
    blocked: dict[tuple[str, object], list[Event]] = {}
    for event in events:
        blocked.setdefault((_host(event), event.data.get("pid")), []).append(event)
    long = [those for those in blocked.values() if len(those) >= reports]
    chosen = [those for those in long if any(e.data.get("waits") == waits for e in those)]
    answer = _answer(evidence, [those[0] for those in chosen], lambda _: evidence_words.waits_for(waits), outlived)
    if isinstance(answer, Missing) or not answer:
        return answer
    longest = max(chosen, key=len)
    first = longest[0]
    span = None if first.time is None or longest[-1].time is None else longest[-1].time - first.time
    seconds = float(first.data.get("seconds", 120)) + (span or 0.0)
    hit = _hit(evidence, first, longest, lambda _: evidence_words.waits_for(waits))
    facts = {**hit.facts, "process": str(first.data.get("process")), "seconds": seconds}
    return [Hit(hit.step, hit.after, source=hit.source, line=hit.line, facts=facts)]


@check(needs=[], facts=_FACTS)
def storage_failed(evidence: Evidence, *, outlived: str) -> Answer:
    """The kernel reported errors of a disk or a file system, and the program could not read or write a file."""
    events = _of(evidence, "file_system", "io_error")
    if events and not any(_BROKEN_FILES.search(e.text) for e in evidence.events_of("exception")):
        return Missing("an error of the program that shows that the disk or the file system failed it")
    return _answer(evidence, events, _storage_words, outlived)


def _storage_words(event: Event) -> Text:
    name = event.data.get("name")
    return Text(f"error of {name or 'a disk'}", f"{name or '某个磁盘'}出错")


@check(needs=[], facts=_FACTS)
def network_lost(evidence: Evidence, *, outlived: str) -> Answer:
    """A network link went down in the hours before processes lost each other."""
    events = [e for e in _of(evidence, "link_down") if float(e.data.get("uptime", _BOOT)) >= _BOOT]
    told = complaints(evidence)
    moments = [e.time for e in told if e.time is not None]
    if moments:
        events = [e for e in events if e.time is None or abs(e.time - min(moments)) < _ZONES]
    return _answer(evidence, events if told else [], lambda _: Text("network link down", "网络链路断开"), outlived)


CHECKS: tuple[Check, ...] = (
    xid_reported,
    gpu_lost,
    memory_uncorrectable,
    switch_failed,
    driver_failed,
    slowed_by_heat,
    host_failed,
    task_hung,
    storage_failed,
    network_lost,
)
