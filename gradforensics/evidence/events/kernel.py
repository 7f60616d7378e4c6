"""What a line of a Linux kernel log says of GPUs, memory, processes, disks and links.

Wordings of Linux 3.10 to 6.12, of NVIDIA's drivers 418 to 580 (Xid: docs.nvidia.com/deploy/xid-errors; SXid: Fabric
Manager user guide, appendix D), of Lustre, GPFS, NFS and Mellanox drivers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gradforensics.patterns import lazy

Found = tuple[str, Mapping[str, Any]]

_XID = lazy(
    r"NVRM:.{0,40}?\bXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{5,20})(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): "
    r"(?P<number>\d{1,5})\b"
    r"(?:, pid='?(?P<pid><unknown>|\d{1,10})'?)?(?:, name='?(?P<name><unknown>|[^,']{1,64})'?)?[,:]?\s*(?P<message>.*)"
)
_SXID = lazy(
    r"nvidia-nvswitch(?P<switch>\d{1,3}): SXid \(PCI:(?P<pci>[0-9a-fA-F:.]{5,20})\): (?P<number>\d{1,6}), "
    r"(?P<severity>Fatal|Non-fatal)?,?\s*(?:Link (?P<link>\d{1,4}))?\s*(?P<message>.*)"
)
_ADDRESS = lazy(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b")
_DRIVER: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("init_failed", lazy(r"NVRM:.{0,60}RmInitAdapter failed|NVRM: GPU .{0,60}rm_init_adapter failed")),
    ("mismatch", lazy(r"NVRM: API mismatch")),
    ("uvm", lazy(r"nvidia-uvm: .{0,80}(?:fatal error|Fatal error)")),
)
_HUNG = lazy(r"INFO: task (?P<process>.{1,64}):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d{1,9}) seconds")
_LOCKUP = lazy(
    r"BUG: soft lockup - CPU#(?P<cpu>\d{1,5}) stuck for (?P<seconds>\d{1,9})s! "
    r"\[(?P<process>.{1,64}):(?P<pid>\d{1,10})\]|(?P<hard>Watchdog detected hard LOCKUP) on cpu (?P<hard_cpu>\d{1,5})|"
    r"rcu: INFO: (?P<rcu>rcu_\w+) (?:self-)?detected .{0,40}stall"
)
_PANIC = lazy(r"Kernel panic - not syncing: (?P<message>.{1,200})")
_SEGFAULT = lazy(
    r"(?P<process>\S.{0,63})\[(?P<pid>\d{1,10})\]: segfault at (?P<address>[0-9a-f]{1,16}) ip .{10,120}? error \d+"
    r"(?: in (?P<library>[^\[\s]{1,120}))?"
)
_OOM_KILL = lazy(
    r"(?P<scope>Memory cgroup o|O)ut of memory: Kill(?:ed)? process (?P<pid>\d{1,10})(?:, UID \d+,)? "
    r"\((?P<process>[^)]{1,64})\)|"
    r"^\s*Killed process (?P<old_pid>\d{1,10})(?:, UID \d+,)? \((?P<old_process>[^)]{1,64})\)"
)
_RESIDENT = lazy(r"anon-rss:(\d{1,15})kB")
_MCE = lazy(
    r"\[Hardware Error\]: (?:Machine check events logged|CPU:? ?\d+: Machine Check|event severity: (?P<severity>\w+)|"
    r"(?:Corrected|Uncorrected|Deferred) error)|mce: Uncorrected hardware memory error|MCE: Killing|"
    r"Memory failure: 0x[0-9a-f]+: .{0,60}(?:Failed|Ignored)"
)
_EDAC = lazy(r"EDAC \S{1,40}: (?:(?P<count>\d{1,9}) )?(?P<kind>CE|UE)\b.{0,20}")
_PCIE = lazy(
    r"(?:AER: |PCIe Bus Error: severity=)"
    r"(?P<severity>Corrected|Uncorrected \((?:Non-)?Fatal\)|Uncorrectable|Multiple \w+)|DPC: containment event"
)
_DEVICE = lazy(r"\b(?P<device>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\b")
_THERMAL = lazy(
    r"(?P<where>CPU\d{1,5}): (?P<what>Core|Package) temperature (?:is )?above threshold|critical temperature reached|"
    r"(?P<gpu>HW Thermal Slowdown|thermal shutdown|Thermal shutdown)"
)
_THROTTLED = lazy(r"total events = (\d{1,12})")
_IO = lazy(
    r"(?:I/O error|critical (?:medium|target) error),? (?:on )?dev (?P<device>[\w!-]{1,40})|"
    r"(?P<nvme>nvme\w{0,12}): (?:I/O (?:tag )?\d+.{0,40}timeout|controller is down|Device not ready|Abort status|"
    r"frozen state error)|"
    r"\b(?P<ata>ata\d{1,3}(?:\.\d\d)?): (?:exception Emask|failed command)"
)
_FILES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, lazy(pattern))
    for name, pattern in (
        ("ext4", r"EXT4-fs error(?: \(device (?P<device>[\w-]{1,40})\))?"),
        ("xfs", r"XFS \((?P<device>[\w!-]{1,40})\): .{0,80}(?:I/O error|shut(?:ting)? down|Corruption|corruption)"),
        ("btrfs", r"BTRFS (?:critical|error)(?: \(device (?P<device>[\w-]{1,40})\))?"),
        ("nfs", r"nfs: server (?P<device>[\w.:-]{1,100}) (?:not responding|timed out)"),
        ("lustre", r"Lustre(?:Error)?: .{0,160}(?:was lost|timed out|operation failed|evicted|has failed|is full)"),
        ("gpfs", r"GPFS:? .{0,160}(?:[Uu]nmounted|panic|timed out|lost membership|not responding)"),
        ("ceph", r"(?:ceph|libceph): .{0,160}(?:hung|socket closed|session lost|timed out|hunting)"),
        ("cifs", r"CIFS(?:: VFS)?: .{0,160}(?:not responding|has not responded|timed out|reconnect)"),
        ("fuse", r"fuse: .{0,80}(?:timed out|aborted)"),
        ("read_only", r"Remounting filesystem read-only"),
    )
)
_LINK = lazy(
    r"\b(?P<driver>mlx[45]\w*|bnxt_en|ice|i40e|ixgbe|efa|cxi|hfi1|irdma)\b.{0,120}?"
    r"(?:[Ll]ink [Dd]own|Link DOWN|Port: \d+ Link DOWN|"
    r"health (?:compromised|poll failed)|device's health|Fatal error|TX timeout|cmd_exec.{0,40}timeout)|"
    r"link status definitely down for interface (?P<interface>[\w.-]{1,40})|"
    r"(?P<ib>ib\d{1,3}): .{0,60}(?:link down|transmit timeout)|NETDEV WATCHDOG: (?P<queue>[\w.-]{1,40})"
)


def message(text: str) -> Found | None:
    """(kind, data) of the message of a kernel log line, without its time, or None where it tells nothing remarkable."""
    for marks, read in _READERS:
        if any(map(text.__contains__, marks)) and (found := read(text)) is not None:
            return found
    return None


def _xid(text: str) -> Found | None:
    if found := _XID.search(text):
        data: dict[str, Any] = {"number": int(found["number"]), "pci": found["pci"]}
        if found["pid"] and found["pid"].isdecimal():
            data["pid"] = int(found["pid"])
        if found["name"] and not found["name"].startswith("<"):
            data["name"] = found["name"].strip()
        if found["message"]:
            data["message"] = found["message"].strip()[:200]
        return "xid", data
    if found := _SXID.search(text):
        data = {"number": int(found["number"]), "pci": found["pci"], "switch": int(found["switch"])}
        data |= {"fatal": found["severity"] == "Fatal"} if found["severity"] else {}
        data |= {"link": int(found["link"])} if found["link"] else {}
        return "sxid", {**data, "message": found["message"].strip()[:200]}
    if "NVRM" not in text or "fallen off the bus" not in text:
        return None
    address = _ADDRESS.search(text)
    return "gpu_fallen", {"pci": address[0]} if address else {}


def _driver(text: str) -> Found | None:
    error = next((name for name, pattern in _DRIVER if pattern.search(text)), None)
    return ("gpu_driver", {"error": error}) if error else None


def _process(text: str) -> Found | None:
    if found := _HUNG.search(text):
        return "hung_task", {"process": found["process"], "pid": int(found["pid"]), "seconds": int(found["seconds"])}
    if found := _LOCKUP.search(text):
        if found["process"]:
            where: dict[str, Any] = {"process": found["process"], "pid": int(found["pid"])}
            return "lockup", {"cpu": int(found["cpu"]), "seconds": int(found["seconds"]), **where}
        return "lockup", {"cpu": int(found["hard_cpu"])} if found["hard"] else {"what": found["rcu"]}
    if found := _PANIC.search(text):
        return "panic", {"message": found["message"].strip()}
    if found := _SEGFAULT.search(text):
        library = {"library": found["library"]} if found["library"] else {}
        return "segfault", {"process": found["process"].strip(), "pid": int(found["pid"]), **library}
    return None


def _oom_killer(text: str) -> Found | None:
    found = _OOM_KILL.search(text)
    if not found:
        return None
    data: dict[str, Any] = {
        "pid": int(found["pid"] or found["old_pid"]),
        "process": found["process"] or found["old_process"],
    }
    if (found["scope"] or "").startswith("Memory"):
        data["cgroup"] = True
    if resident := _RESIDENT.search(text):
        data["bytes"] = int(resident[1]) << 10
    return "oom_killer", data


def _hardware(text: str) -> Found | None:
    if found := _EDAC.search(text):
        count = {"count": int(found["count"])} if found["count"] else {}
        return "ecc", {"where": "host memory", "corrected": found["kind"] == "CE", **count}
    if found := _MCE.search(text):
        low = text.lower()
        told = {"corrected": "uncorrected" not in low} if "corrected" in low else {}
        if found["severity"]:
            told = {"corrected": found["severity"] == "corrected"}
        return "mce", told
    if found := _PCIE.search(text):
        device = _DEVICE.search(text)
        where = {"device": device["device"]} if device else {}
        return "pcie_error", {**({"corrected": found["severity"] == "Corrected"} if found["severity"] else {}), **where}
    return None


def _thermal(text: str) -> Found | None:
    found = _THERMAL.search(text)
    if not found:
        return None
    count = _THROTTLED.search(text)
    where = {"where": found["where"]} if found["where"] else {}
    return "thermal", {**where, **({"count": int(count[1])} if count else {})}


def _storage(text: str) -> Found | None:
    for name, pattern in _FILES:
        if found := pattern.search(text):
            device = found.groupdict().get("device")
            return "file_system", {"name": name, **({"device": device} if device else {})}
    if found := _IO.search(text):
        return "io_error", {"device": found["device"] or found["nvme"] or found["ata"]}
    return None


def _link(text: str) -> Found | None:
    found = _LINK.search(text)
    if not found:
        return None
    device = _DEVICE.search(text)
    named = found["interface"] or found["ib"] or found["queue"] or (device["device"] if device else found["driver"])
    return "link_down", {"device": named}


_READERS: tuple[tuple[tuple[str, ...], Callable[[str], Found | None]], ...] = (
    (("Xid (", "off the bus"), _xid),
    (("RmInitAdapter", "rm_init_adapter", "API mismatch", "nvidia-uvm"), _driver),
    (("blocked for more", "soft lockup", "hard LOCKUP", "stall", "Kernel panic", "segfault at"), _process),
    (("ill process", "illed process"), _oom_killer),
    (
        (
            "Hardware Error", "hardware memory error", "MCE: Killing", "Memory failure", "EDAC ", "AER: ",
            "PCIe Bus Error", "DPC: ",
        ),
        _hardware,
    ),
    (("above threshold", "critical temperature", "HW Thermal", "hermal shutdown"), _thermal),
    (
        (
            "I/O error", "target error", "medium error", "timeout", "controller is down", "Device not ready",
            "Abort status", "frozen state", "exception Emask", "failed command", "EXT4-fs error", "XFS (", "BTRFS ",
            "nfs: server", "Lustre", "GPFS", "ceph: ", "CIFS", "fuse: ", "filesystem read-only",
        ),
        _storage,
    ),
    (
        (
            "ink down", "ink Down", "Link DOWN", "health", "Fatal error", "TX timeout", "definitely down",
            "NETDEV WATCHDOG", "timeout",
        ),
        _link,
    ),
)  # fmt: skip
# At least one of these stands in every message that is remarkable.
MARKS = tuple(dict.fromkeys(mark for marks, _ in _READERS for mark in marks))
