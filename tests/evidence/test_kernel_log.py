"""Kernel logs in all their forms, and what they tell of a machine."""

# ruff: noqa: E501  lines of logs stand here as they are written

import pytest

from gradforensics.diagnosis import needs
from gradforensics.errors import NoEvidenceError
from gradforensics.evidence.events import kernel
from gradforensics.evidence.files import File
from gradforensics.evidence.readers import kernel_log

XID = "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=python, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
QUIET = "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready"
NEW_YEAR = 1767225600.0


def read_text(path, text, name="dmesg.txt"):
    (path / name).write_text(text, encoding="utf-8")
    file = File(path / name, name, len(text))
    return kernel_log.read(file) if kernel_log.sniff(file) else None


@pytest.mark.parametrize(
    ("front", "host", "time", "uptime"),
    [
        ("[  123.456789] ", None, None, 123.456789), ("[Thu Jan  1 00:00:00 2026] ", None, NEW_YEAR, None), ("6,1234,5678901,-;", None, None, 5.678901), ("<4>[ 12.500000] ", None, None, 12.5),
        ("kern  :warn  : 2026-01-01T00:00:00,000000+00:00 ", None, NEW_YEAR, None), ("kern  :err   : [  12.500000] ", None, None, 12.5),
        ("Jan  1 00:00:00 node07 kernel: ", "node07", None, None), ("Jan  1 00:00:00 node07 kernel: [  12.500000] ", "node07", None, 12.5),
        ("2026-01-01T00:00:00+0000 node07.lan kernel: ", "node07.lan", NEW_YEAR, None), ("2026-01-01T01:00:00.000000+01:00 node07 kernel: ", "node07", NEW_YEAR, None), ("1767225600.000000 node07 kernel: ", "node07", NEW_YEAR, None),
    ],
)  # fmt: skip
def test_every_form_of_a_kernel_log(tmp_path, front, host, time, uptime):
    text = "".join(f"{front}{message}\n" for message in (QUIET, QUIET, XID, QUIET))
    reading = read_text(tmp_path, text, "host.txt")
    (event,) = reading.events
    assert (event.kind, event.line, event.host, event.time, event.data.get("uptime")) == ("xid", 3, host, time, uptime)
    assert (event.data["number"], event.data["pci"], event.data["pid"], event.data["name"]) == (
        119,
        "0000:9b:00",
        2024380,
        "python",
    )
    assert [(f.key, f.value) for f in reading.facts] == ([("host", host)] if host else [])


MESSAGES = [
    ("NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "xid", {"number": 79, "pci": "0000:02:00", "message": "GPU has fallen off the bus."}),
    ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "xid", {"number": 14, "pci": "0000:03:00", "message": "Channel 00000001"}),
    ("NVRM: Xid (PCI:0000:38:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008", "xid", {"number": 43, "pci": "0000:38:00", "pid": 2924364, "name": "pt_main_thread", "message": "Ch 00000008"}),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", "sxid", {"number": 12028, "pci": "0000:05:00.0", "switch": 3, "fatal": False, "link": 32, "message": "egress non-posted PRIV error (First)"}),
    ("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "sxid", {"number": 20034, "pci": "0000:00:00.0", "switch": 0, "fatal": True, "link": 30, "message": "LTSSM Fault Up"}),
    ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", "gpu_fallen", {"pci": "0000:01:00.0"}),
    ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0x65:1438)", "gpu_driver", {"error": "init_failed"}),
    ("NVRM: API mismatch: the client has the version 535.1, but", "gpu_driver", {"error": "mismatch"}),
    ("INFO: task python:280058 blocked for more than 120 seconds.", "hung_task", {"process": "python", "pid": 280058, "seconds": 120}),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]", "lockup", {"cpu": 3, "seconds": 22, "process": "python", "pid": 1234}),
    ("Kernel panic - not syncing: Fatal machine check", "panic", {"message": "Fatal machine check"}),
    ("pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]", "segfault", {"process": "pt_main_thread", "pid": 2536443, "library": "libnccl.so.2"}),
    ("Out of memory: Killed process 4567 (python) total-vm:8123456kB, anon-rss:5234567kB, file-rss:0kB, shmem-rss:0kB, UID:1000", "oom_killer", {"pid": 4567, "process": "python", "bytes": 5234567 << 10}),
    ("Memory cgroup out of memory: Killed process 4182 (python3) total-vm:812044kB, anon-rss:518420kB", "oom_killer", {"pid": 4182, "process": "python3", "cgroup": True, "bytes": 518420 << 10}),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "ecc", {"where": "host memory", "corrected": True, "count": 1}),
    ("EDAC MC1: 1 UE memory read error on unknown label", "ecc", {"where": "host memory", "corrected": False, "count": 1}),
    ("mce: [Hardware Error]: Machine check events logged", "mce", {}), ("[Hardware Error]: Corrected error, no action required.", "mce", {"corrected": True}), ("{1}[Hardware Error]: event severity: fatal", "mce", {"corrected": False}),
    ("mce: Uncorrected hardware memory error in user-access at af34214200", "mce", {"corrected": False}),
    ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", "pcie_error", {"corrected": True, "device": "0000:00:01.0"}),
    ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", "pcie_error", {"corrected": False, "device": "0000:00:01.0"}),
    ("CPU17: Package temperature above threshold, cpu clock throttled (total events = 26)", "thermal", {"where": "CPU17", "count": 26}),
    ("blk_update_request: I/O error, dev sda, sector 123", "io_error", {"device": "sda"}), ("nvme nvme0: I/O 12 QID 3 timeout, aborting", "io_error", {"device": "nvme0"}),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0", "file_system", {"name": "ext4", "device": "sda1"}),
    ('XFS (dm-0): metadata I/O error in "xfs_trans_read_buf_map" at daddr 0x1', "file_system", {"name": "xfs", "device": "dm-0"}),
    ("nfs: server fs01 not responding, still trying", "file_system", {"name": "nfs", "device": "fs01"}),
    ("Lustre: work-OST0003-osc-ffff: Connection to work-OST0003 (at 10.0.0.3@o2ib) was lost; in progress operations using this service will wait", "file_system", {"name": "lustre"}),
    ("LustreError: 11-0: work-OST0003: operation ost_write to node 10.0.0.3@o2ib timed out", "file_system", {"name": "lustre"}),
    ("mlx5_core 0000:12:00.0 ens1f0: Link down", "link_down", {"device": "0000:12:00.0"}), ("bond0: link status definitely down for interface eth1, disabling it", "link_down", {"device": "eth1"}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "kind", "data"), MESSAGES, ids=[m[:45] for m, _, _ in MESSAGES])
def test_messages(message, kind, data):
    found = kernel.message(message)
    assert found is not None
    assert (found[0], dict(found[1])) == (kind, data)


@pytest.mark.parametrize(
    "message",
    [
        QUIET, "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing", "nvidia-nvswitch2: open (major=510)", "perf: interrupt took too long (2509 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  The GPU likely needs to be reset.", "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d", "clocksource: Long readout interval, skipping watchdog check",
        "WARNING: kernel stack frame pointer at 000000005611dc97 in nvidia-smi:2024380 has bad value", "CPU17: Core temperature/speed normal", "EDAC MC: Ver: 3.0.0", "EDAC skx: ECC is disabled", "EXT4-fs (sda1): mounted filesystem with ordered data mode", "nfs: server fs01 OK", "mlx5_core 0000:12:00.0 ens1f0: Link up",
        "ACPI Error: AE_NOT_FOUND, Evaluating _PSS", "mce: CPU supports 22 MCE banks", "pcieport 0000:00:01.0: AER: enabled with IRQ 26", "thermal thermal_zone0: failed to read out thermal zone", "x86/fpu: Supporting XSAVE feature 0x001", "systemd[1]: Started Journal Service.", "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB", "rcu: Hierarchical RCU implementation.",
    ],
)  # fmt: skip
def test_ordinary_messages(message):
    assert kernel.message(message) is None


HUNG = """\
[  100.000000] INFO: task python:280058 blocked for more than 120 seconds.
[  100.000001]       Tainted: P           OE    --------- -  - 4.18.0-372.36.1.el8_6.x86_64 #1
[  100.000002] "echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.
[  100.000003] task:python          state:D stack:    0 pid:280058 ppid:279966 flags:0x00000080
[  100.000004] Call Trace:
[  100.000005]  __schedule+0x2d1/0x860
[  100.000006]  ? try_to_wake_up+0x1b4/0x4e0
[  100.000007]  schedule+0x35/0xa0
[  100.000008]  gpfs_f_rdwr_iter+0x217/0x300 [mmfslinux]
[  100.000009]  ksys_write+0x4f/0xb0
[  100.000010] RIP: 0033:0x14f7d0d9da07
[  100.000011]  not_a_frame+0x1/0x2
"""


def test_the_stack_below_a_hung_task(tmp_path):
    (event,) = read_text(tmp_path, HUNG).events
    assert event.data["frames"] == ["__schedule", "schedule", "gpfs_f_rdwr_iter", "ksys_write"]
    assert event.data["waits"] == "file system"


def test_the_lines_of_one_kill_are_one_event(tmp_path):
    text = (
        "[1.000000] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "[1.000001] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/slurm/job_1,task=python,pid=77,uid=0\n"
        "[1.000002] Memory cgroup out of memory: Killed process 77 (python) total-vm:900kB, anon-rss:800kB\n"
        "[1.000003] oom_reaper: reaped process 77 (python), now anon-rss:0kB\n"
    )
    (event,) = read_text(tmp_path, text).events
    assert (event.kind, event.line) == ("oom_killer", 2)
    assert dict(event.data) == {
        "pid": 77, "process": "python", "invoked_by": "python", "cgroup": True, "bytes": 800 << 10, "uptime": 1.000001,
    }  # fmt: skip


def test_driver_and_kernel_are_facts(tmp_path):
    text = (
        "[    0.000000] Linux version 5.15.0-112-generic (buildd@lcy02) (gcc 11.4.0) #122-Ubuntu SMP\n"
        "[    9.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022\n"
        "[    9.100000] x\n"
    )
    reading = read_text(tmp_path, text)
    assert [(f.key, f.value, f.line) for f in reading.facts] == [
        ("kernel", "5.15.0-112-generic", 1),
        ("driver", "525.60.13", 2),
    ]
    assert (reading.events, reading.speaks_of_training) == ([], False)


def test_other_programs_of_a_journal_are_passed_over(tmp_path):
    text = (
        "Jan  1 00:00:00 node07 systemd[1]: Started Session 5 of user x.\n"
        "Jan  1 00:00:00 node07 sshd[77]: Out of memory: Killed process 1 (a claim of a user)\n"
        f"Jan  1 00:00:00 node07 kernel: {XID}\n"
    )
    assert [(e.kind, e.line) for e in read_text(tmp_path, text, "messages").events] == [("xid", 3)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.log", "[2026-01-01 00:00:00,123] step 1 loss 2\n" * 5), ("messages.txt", "hello\nworld\n"), ("syslog", "step 1 loss: 2.0\n" * 9), ("train.log", "2026-01-01T00:00:00Z step 1 loss 2\n" * 9),
        ("a.txt", "[1.5] x\n[2.5] y\n[3.5] z\n"), ("train.log", "[    1.234567] step 1 loss: 2.0\n" + "step 2 loss: 1.0\n" * 30), ("log.csv", "1,2,3,4\n5,6,7,8\n9,8,7,6\n"),
    ],
)  # fmt: skip
def test_what_is_no_kernel_log(tmp_path, name, text):
    assert read_text(tmp_path, text, name) is None


def test_alone_it_is_a_run_where_it_tells_of_a_fault_and_refused_where_it_tells_none(run):
    run.write({"dmesg.txt": "".join(f"[  {i}.000000] {QUIET}\n" for i in range(9))})
    with pytest.raises(NoEvidenceError):
        run.all()
    run.write({"dmesg.txt": f"[  1.000000] {QUIET}\n[  2.000000] {XID}\n"})
    evidence = run.one()
    assert [e.kind for e in evidence.events] == ["xid"]
    assert evidence.ending.kind == "unknown"


def test_the_need_of_a_kernel_log_is_met_where_one_was_read(run):
    kernel_need, console_need = needs.parse("events:kernel"), needs.parse("events:console")
    run.write({"log.csv": "step,loss\n1,2.0\n2,1.0\n", "dmesg.txt": f"[  1.000000] {QUIET}\n[  2.000000] {QUIET}\n"})
    evidence = run.one()
    assert evidence.events == []
    assert needs.satisfied(kernel_need, evidence)
    assert not needs.satisfied(console_need, evidence)
    run.write({"dmesg.txt": f"[  1.000000] {XID}\n", "train.log": "step 1 loss: 2.0\nstep 2 loss: 1.0\n"})
    evidence = run.one()
    assert needs.satisfied(kernel_need, evidence)
    assert needs.satisfied(console_need, evidence)
    run.write({"dmesg.txt": "nothing\n"})
    assert not needs.satisfied(kernel_need, run.one())


def test_thousands_of_one_kind_are_bounded(tmp_path):
    line = "pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0"
    reading = read_text(tmp_path, "".join(f"[  {i}.000000] {line}\n" for i in range(2500)))
    assert len(reading.events) == 2000
    assert reading.notices == [(None, '500 more events of the kind "pcie_error" were left out')]
    assert not reading.speaks_of_training


# -- whose it is -------------------------------------------------------------------------------------------------------

CSV = "step,loss\n1,2.0\n2,1.0\n3,0.5\n"
FAULTY = f"[  1.000000] {QUIET}\n[  2.000000] {XID}\n"


def test_the_logs_of_several_hosts_are_one_run(run):
    run.write({f"node{i}/dmesg.txt": FAULTY for i in range(3)})
    evidence = run.one()
    assert sorted(e.source for e in evidence.events) == [f"node{i}/dmesg.txt" for i in range(3)]


def test_a_log_beside_one_run_belongs_to_it(run):
    run.write({"a/log.csv": CSV, "dmesg.txt": FAULTY})
    assert [e.kind for e in run.one().events] == ["xid"]


def test_a_log_beside_several_runs_is_blamed_on_none_of_them(run):
    run.write({"a/log.csv": CSV, "b/log.csv": CSV.replace("0.5", "0.7"), "dmesg.txt": FAULTY, "kern.log": FAULTY})
    assert [len(e.events or []) for e in run.all()] == [0, 0, 2]
