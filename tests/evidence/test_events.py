"""Remarkable lines and how a run ended."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import json
from pathlib import Path

import pytest

from gradforensics.evidence.events import Scanner

DATA = Path(__file__).parent / "data" / "events"
TRAIN = "step 1 loss: 2.5\nstep 2 loss: 2.4\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    trainer.fit(model)\n'


@pytest.mark.parametrize(
    ("line", "kind", "data"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0", "oom", {"bytes": 2 << 30}),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:83] . DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes", "oom", {"bytes": 8}),
        ("[1234.5] Out of memory: Killed process 4242 (python) total-vm:1kB", "oom", {}),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0", "oom", {}),
        ("run.sh: line 25: 1200261 Killed                  python train.py", "killed", {"signal": 9}),
        ("Killed", "killed", {"signal": 9}), ("^CKeyboardInterrupt", "killed", {"signal": 2}), (" > Keyboard interrupt detected.", "killed", {"signal": 2}),
        ("slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***", "killed", {}),
        ("Received SIGTERM: 15", "killed", {"signal": 15}), ("       exitcode  : -9 (pid: 4242)", "killed", {"exit_code": -9, "signal": 9}),
        ("slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***", "timeout", {}),
        (
            "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600123 milliseconds before timing out.",
            "timeout", {"collective": "ALLREDUCE", "sequence": 17, "timeout_ms": 600000, "ran_ms": 600123},
        ),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768", "overflow", {"from": 65536, "to": 32768}),
        ("OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, but hysteresis is 2. Reducing hysteresis to 1", "overflow", {"from": 4294967296.0}),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0", "overflow", {"to": 32768}),
        ("NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0", "overflow", {"to": 64}),
        ("Resuming from checkpoint out/checkpoint-500", "resume", {"step": 500}), ("Resuming training from epoch 3", "resume", {}),
        ("Training completed. Do not forget to share your model =)", "completed", {}),
        ("`Trainer.fit` stopped: `max_epochs=10` reached.", "completed", {}), ("Finished Training", "completed", {}),
        ("UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch", "warning", {"about": "lr_scheduler.step() before optimizer.step()"}),
    ],
)  # fmt: skip
def test_kinds(read, line, kind, data):
    evidence = read("train.log", TRAIN + line + "\n")
    (event,) = evidence.events
    assert (event.kind, dict(event.data), event.line, event.step, event.source) == (kind, data, 3, 2, "train.log")
    assert event.text == line.strip()


@pytest.mark.parametrize(
    "line",
    [
        "This may cause OOM errors during the initial memory profiling phase", "resume: False", "no resume checkpoint",
        "When using more than one image per GPU you may encounter an out-of-memory (OOM) error", "skilled workers",
        "except KeyboardInterrupt:", "raise RuntimeError('x')", "training will be completed when loss < 1", "Saved checkpoint",
        "Sending process 42 closing signal SIGTERM", "RuntimeError is raised if x", "timeout=600",
    ],
)  # fmt: skip
def test_harmless_lines(read, line):
    assert read("train.log", TRAIN + line + "\n").events == []


def test_the_rank_of_an_event(read):
    evidence = read("train.log", TRAIN + "[rank3]: torch.OutOfMemoryError: CUDA out of memory.\n")
    assert evidence.events[0].rank == 3


@pytest.mark.parametrize(
    ("tail", "kind", "line", "name"),
    [
        (TRACEBACK + "ValueError: bad\nvalue\n", "exception", 6, "ValueError"),
        (TRACEBACK + "    ^^^^^^\nmy.module.CustomProblem: bad\n", "exception", 7, "CustomProblem"),
        (TRACEBACK + "NotImplementedError\n", "exception", 6, "NotImplementedError"),
        (TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB\n", "oom", 6, "OutOfMemoryError"),
        (TRACEBACK + "KeyboardInterrupt\n", "killed", 6, "KeyboardInterrupt"),
        ("(main pid=12) " + TRACEBACK.replace("\n", "\n(main pid=12) ", 2) + "(main pid=12) ValueError: x\n", "exception", 6, "ValueError"),
        (TRACEBACK + "ValueError: a\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK + "KeyError: 'b'\n", "exception", 13, "KeyError"),
    ],
)  # fmt: skip
def test_tracebacks(read, tail, kind, line, name):
    evidence = read("train.log", TRAIN + tail)
    event = evidence.events[-1]
    assert (event.kind, event.line, event.data["type"]) == (kind, line, name)
    assert (evidence.ending.kind, evidence.ending.line) == (kind, line)


def test_an_exception_that_the_training_survives_is_no_ending(read):
    evidence = read("train.log", TRAIN + TRACEBACK + "ValueError: skipped\nstep 3 loss: 2.3\nstep 4 loss: 2.2\n")
    assert [(e.kind, e.step) for e in evidence.events] == [("exception", 2)]
    assert evidence.ending.kind == "unknown"


def test_a_failed_launch_before_a_healthy_one_is_no_ending(read):
    log = "[rank: 0] Starting training!\n" + TRACEBACK + "ValueError: no data\n[rank: 0] Starting training!\nset up\n"
    evidence = read("train.log", log)
    assert [e.kind for e in evidence.events] == ["exception"]
    assert evidence.ending.kind == "unknown"


@pytest.mark.parametrize(
    ("tail", "kind", "line"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.\n" + TRACEBACK + "torch.distributed.elastic.ChildFailedError: failed\n", "oom", 3),
        ("JOB 1 CANCELLED AT 2024 DUE TO TIME LIMIT\nKilled\n", "timeout", 3),
        (TRACEBACK + "ValueError: x\n" + TRACEBACK + "torch.x.ChildFailedError: y\n", "exception", 6),
        (TRACEBACK + "KeyboardInterrupt\n" + TRACEBACK + "RuntimeError: at exit\n", "killed", 6),
        ("Training completed.\n" + TRACEBACK + "OSError: upload\n", "exception", 7),
        (TRACEBACK + "OSError: one worker\nTraining completed.\n", "completed", 7),
    ],
)  # fmt: skip
def test_the_cause_among_several_endings(read, tail, kind, line):
    evidence = read("train.log", TRAIN + tail)
    assert (evidence.ending.kind, evidence.ending.line) == (kind, line)


def test_thousands_of_overflows_are_bounded_and_the_last_stays(read):
    line = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: %d, reducing to 1\n"
    evidence = read("train.log", TRAIN + "".join(line % i for i in range(2500)))
    assert len(evidence.events) == 2000
    assert evidence.events[-1].data["from"] == 2499
    assert [n.text for n in evidence.notices] == ['500 more events of the kind "overflow" were left out']


def test_attempts_of_events(read):
    evidence = read("train.log", TRAIN + "Resuming from checkpoint 1\n" + TRAIN + "step 3 loss: 2.0\nKilled\n")
    assert [(e.kind, e.attempt, e.step) for e in evidence.events] == [("resume", 0, 2), ("killed", 1, 3)]


# -- what a traceback tells -------------------------------------------------------------------------------------------


def raised(text, name="train.log"):
    scanner = Scanner(name, lambda: None)
    for number, line in enumerate(text.splitlines(), 1):
        scanner.feed(number, line)
    return scanner.events


def labelled(label, text):
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def test_where_and_what_was_raised():
    (event,) = raised(
        TRACEBACK
        + '  File "/v/lib/python3.11/site-packages/torch/nn/m.py", line 9, in forward\n    x\nValueError: bad\n'
    )
    assert dict(event.data) == {
        "type": "ValueError", "message": "bad", "traceback": 1, "where": "main (train.py:3)",
    }  # fmt: skip


def test_the_root_of_a_chain_stays_known():
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    direct = "\nThe above exception was the direct cause of the following exception:\n\n"
    events = raised(
        TRACEBACK + "ValueError: a\n" + during + TRACEBACK + "KeyError: 'b'\n" + direct + TRACEBACK + "OSError: c\n"
    )
    root = {"type": "ValueError", "message": "a", "line": 4}
    assert [e.data.get("cause") for e in events] == [None, root, root]


def test_the_tracebacks_of_ranks_that_print_at_once_are_taken_apart():
    one = labelled("[rank1]: ", TRACEBACK + "ValueError: one\n").splitlines()
    two = labelled("[rank0]: ", TRACEBACK + "KeyError: 'two'\n").splitlines()
    text = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    assert [(e.rank, e.data["type"], e.line) for e in raised(text)] == [(1, "ValueError", 7), (0, "KeyError", 8)]


def test_ranks_hosts_and_moments_of_events():
    text = labelled("2026-01-01T00:00:00Z node3: [rank12]: ", TRACEBACK + "ValueError: x\n")
    (event,) = raised(text)
    assert (event.rank, event.host, event.time) == (12, "node3", 1767225600.0)
    (event,) = raised("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n")
    assert (event.host, event.time) == ("n1", 1767225600.0)
    (event,) = raised("srun: error: node07: task 3: Killed\n")
    assert (event.host, event.rank) == ("node07", 3)
    (event,) = raised("(WorkerDict pid=12, ip=10.0.0.2) RuntimeError: CUDA error: device-side assert triggered\n")
    assert (event.kind, event.host) == ("device_assert", "10.0.0.2")


@pytest.mark.parametrize(
    ("last", "kind", "told"),
    [
        ("RuntimeError: CUDA error: device-side assert triggered", "device_assert", {}),
        ("RuntimeError: Trying to backward through the graph a second time", "autograd_error", {"error": "second_backward"}),
        ("AssertionError: No inf checks were recorded for this optimizer.", "gradscaler", {"error": "no_inf_checks"}),
        ("OSError: [Errno 28] No space left on device", "disk_full", {"error": "no_space"}),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.1", "nccl_error", {"error": "system"}),
        ("IndexError: Target 64 is out of bounds.", "index_error", {"index": 64}),
    ],
)  # fmt: skip
def test_an_exception_that_is_known_by_its_message_ends_the_run_as_one(read, last, kind, told):
    evidence = read("train.log", TRAIN + TRACEBACK + last + "\n")
    (event,) = evidence.events
    assert event.kind == kind
    assert told.items() <= event.data.items()
    assert (evidence.ending.kind, evidence.ending.line) == ("exception", 6)


def test_a_message_that_nothing_raised_ends_nothing(read):
    evidence = read("train.log", TRAIN + "n1:1:2 [0] NCCL WARN Call to connect returned Connection refused, retrying\n")
    assert [e.kind for e in evidence.events] == ["nccl_error"]
    assert evidence.ending.kind == "unknown"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Exception ignored in: <function D.__del__ at 0x7f>\n" + TRACEBACK + "TypeError: x\n", ["warning"]),
        ("--- Logging error ---\n" + TRACEBACK + "TypeError: x\n", ["warning"]),
        ("Exception in thread Thread-3:\n" + TRACEBACK + "TypeError: x\n", ["exception"]),
        (TRACEBACK + "SystemExit: 1\n", []),
        ("Traceback (most recent call last):\nstep 5\nstep 6\nstep 7\nstep 8\nstep 9\nValueError: x\n", []),
        (TRACEBACK + "Epoch 3: 10%|#\nNote: a line that another process printed\nValueError: x\n", ["exception"]),
        ('  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 1, in f\n  |     g()\n  | ExceptionGroup: two (2 sub-exceptions)\n', ["exception"]),
        ("╭──── Traceback (most recent call last) ───╮\n│ /r/train.py:10 in main        │\n│ ❱ 10 │   raise ValueError  │\n╰───╯\nValueError: bad\n", ["exception"]),
    ],
)  # fmt: skip
def test_tracebacks_of_all_sorts(text, kinds):
    assert [e.kind for e in raised(text)] == kinds


def test_a_traceback_in_a_box_names_its_place():
    text = "╭──── Traceback (most recent call last) ───╮\n│ /r/train.py:10 in main        │\n╰───╯\nValueError: bad\n"
    assert raised(text)[0].data["where"] == "main (/r/train.py:10)"


def test_an_exception_in_a_thread_or_of_the_interpreter_is_no_ending(read):
    aside = "Exception in thread Thread-3:\n" + TRACEBACK + "TypeError: x\n"
    evidence = read("train.log", TRAIN + aside + TRACEBACK + "ValueError: y\n")
    assert evidence.ending.text == "ValueError: y"


SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:07
  host      : node07
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 122)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:05
  host      : node07
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 123)
============================================================
"""


def test_torchrun_says_which_rank_failed_first(read):
    ranks = labelled("[rank0]: ", TRACEBACK + "ConnectionError: lost the peer\n")
    ranks += labelled("[rank3]: ", TRACEBACK + "ValueError: the cause\n")
    evidence = read("train.log", TRAIN + ranks + TRACEBACK + SUMMARY)
    failed = [(e.rank, dict(e.data)) for e in evidence.events if e.kind == "child_failed"]
    assert failed == [(0, {"exit_code": 1}), (3, {"exit_code": 1, "root": True})]
    assert evidence.ending.text == "[rank3]: ValueError: the cause"


def test_a_rank_that_was_killed_is_known_by_its_exit_code():
    (event,) = [
        e
        for e in raised(SUMMARY.replace("exitcode  : 1 (pid: 123)", "exitcode  : -11 (pid: 123)"))
        if e.kind == "killed"
    ]
    assert (event.rank, dict(event.data)) == (3, {"exit_code": -11, "root": True, "signal": 11})


CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007ff64c9ff6c0 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait

Current thread 0x00007ff962067300 (most recent call first):
  File "/r/model.py", line 12 in forward
  File "/r/train.py", line 40 in <module>

Extension modules: numpy (total: 1)
run.sh: line 3: 77 Segmentation fault      (core dumped) python train.py
"""


def test_a_crash_of_the_interpreter(read):
    evidence = read("train.log", TRAIN + CRASH)
    first, second = evidence.events
    assert (first.kind, dict(first.data)) == ("killed", {"signal": 11, "where": "forward (/r/model.py:12)"})
    assert (second.kind, second.data["signal"]) == ("killed", 11)
    assert (evidence.ending.kind, evidence.ending.line) == ("killed", 3)
    (event,) = raised("Fatal Python error: _enter_buffered_busy: could not acquire lock\n")
    assert (event.kind, event.data["type"]) == ("exception", "Fatal Python error")


# -- logs of processes that really failed (data/events/make.py) ----------------------------------------------------------


def test_a_job_of_torchrun_in_which_one_rank_fails(read):
    evidence = read("train.log", (DATA / "torchrun.log").read_text())
    told = [(e.kind, e.rank, e.data.get("type")) for e in evidence.events]
    assert told[:2] == [("exception", 1, "ValueError"), ("nccl_error", 0, "RuntimeError")]
    failed = [
        (e.kind, e.rank, e.data.get("root")) for e in evidence.events if "exit_code" in e.data and e.rank is not None
    ]
    assert failed == [("killed", 0, None), ("child_failed", 1, True)]
    assert (evidence.ending.kind, evidence.ending.text) == ("exception", "[rank1]: ValueError: a bad sample")


def test_a_process_that_crashes(read):
    evidence = read("train.log", TRAIN + (DATA / "crash.log").read_text())
    (event,) = evidence.events
    assert (event.kind, dict(event.data)) == ("killed", {"signal": 11, "where": "forward (/run/train.py:6)"})


def test_faults_of_pytorch():
    events = raised((DATA / "faults.log").read_text())
    assert [(e.kind, e.data.get("error")) for e in events] == [
        ("autograd_error", "inplace"), ("autograd_error", "second_backward"), ("autograd_error", "no_grad"),
        ("autograd_error", "anomaly"), ("gradscaler", "unscaled_twice"), ("gradscaler", "no_inf_checks"),
        ("index_error", None), ("index_error", None), ("oom", None), ("warning", None),
    ]  # fmt: skip
    assert all("type" in e.data for e in events[:-1])
    assert events[3].data["function"] == "SqrtBackward0"
    assert (events[6].data["index"], events[8].data["bytes"]) == (64, 1 << 52)


# -- the first of several failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "kind", "said"),
    [
        # rank 3 fails, the others time out waiting for it
        (labelled("[rank3]: ", TRACEBACK + "ValueError: cause\n") + "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=X, Timeout(ms)=9)\n", "exception", "ValueError: cause"),
        # a connection is lost before the peer's own traceback is printed
        (labelled("[rank0]: ", TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: x:1, remote process exited or there was a network error\n") + labelled("[rank1]: ", TRACEBACK + "ValueError: cause\n"), "exception", "ValueError: cause"),
        ("Received SIGTERM: 15\nslurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n", "timeout", "TIME LIMIT"),
        (TRACEBACK + "ValueError: one\n" + TRACEBACK + "RuntimeError: two\n", "exception", "ValueError: one"),
        (TRACEBACK + "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 1.\n", "exception", "CalledProcessError"),
        (labelled("[rank0]: ", TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: x:1, internal error\n"), "exception", "DistBackendError"),
    ],
)  # fmt: skip
def test_the_first_failure_is_the_ending(read, tail, kind, said):
    ending = read("train.log", TRAIN + tail).ending
    assert ending.kind == kind
    assert said in ending.text


def test_moments_tell_which_rank_failed_first(read):
    late = labelled("2026-01-01T00:00:09Z [rank0]: ", TRACEBACK + "ValueError: late\n")
    early = labelled("2026-01-01T00:00:02Z [rank1]: ", TRACEBACK + "ValueError: early\n")
    assert read("train.log", TRAIN + late + early).ending.text.endswith("[rank1]: ValueError: early")


def test_the_ending_of_a_job_with_a_file_per_rank(run):
    lost = TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: x:1, remote process exited\n"
    run.write({f"rank_{i}.log": lost for i in range(40)})
    run.write({"rank_0.log": TRAIN + lost, "rank_23.log": TRACEBACK + "ValueError: the cause\n"})
    evidence = run.one()
    assert (evidence.ending.source, evidence.ending.text) == ("rank_23.log", "ValueError: the cause")


# -- endings without words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "kind", "text"),
    [
        ([(10, 100), (100, 100)], "completed", "step 100 of 100 planned steps is the last"),
        ([(10, 100), (50, 100)], "truncated", "the record stops at step 50 of 100 planned steps"),
        ([(10, 25), (20, 25)], "completed", "step 20 of 25 planned steps is the last"),
    ],
)
def test_planned_steps_of_llamafactory(read, rows, kind, text):
    lines = [
        json.dumps({"current_steps": s, "total_steps": t, "loss": 1.0, "elapsed_time": "0:00:05"}) for s, t in rows
    ]
    evidence = read("trainer_log.jsonl", "\n".join(lines) + "\n")
    assert (evidence.ending.kind, evidence.ending.text, evidence.ending.line) == (kind, text, 2)
    assert evidence.setting("max_steps") == rows[0][1]
    assert evidence.series("elapsed").values.tolist() == [5, 5]
    assert evidence.sources[0].reader == "llamafactory-log"


def test_planned_steps_of_a_configuration_and_of_the_user(run):
    run.write({"m.jsonl": '{"step": 1, "loss": 2}\n{"step": 5, "loss": 1}\n', "config.json": '{"max_steps": 5}'})
    assert run.one().ending.kind == "completed"
    assert run.one(settings={"max_steps": "100"}).ending.kind == "truncated"


def test_planned_epochs(run):
    run.write({"log.csv": "epoch,loss\n0,2\n1,1\n", "args.yaml": "epochs: 2\nlr: 0.1\n"})
    assert run.one().ending.kind == "completed"
    (run.path / "args.yaml").write_text("epochs: 3\nlr: 0.1\n")
    assert run.one().ending.text == "the record ends with epoch 2 of 3 planned epochs"


def test_the_logs_own_estimate(read):
    evidence = read("log.txt", "eta: 3:00:00 iter: 20 loss: 2.0\neta: 2:30:00 iter: 40 loss: 1.5\n")
    assert (evidence.ending.kind, evidence.ending.line) == ("truncated", 2)


def test_totals_on_the_lines(read):
    text = "step:1/10 train_loss:2.0\nstep:5/10 train_loss:1.5\n"
    assert read("a.log", text).ending.text == "the record stops at step 5 of 10 planned steps"


def test_a_stderr_log_says_why_the_steps_stop(run):
    state = {"global_step": 20, "max_steps": 100, "log_history": [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}]}
    run.write({"trainer_state.json": json.dumps(state), "stderr.log": TRACEBACK + "RuntimeError: NaN\n"})
    evidence = run.one()
    assert (evidence.ending.kind, evidence.ending.source, evidence.ending.line) == ("exception", "stderr.log", 4)


def test_an_old_failure_beside_a_finished_run_is_no_ending(run):
    state = {"global_step": 20, "max_steps": 20, "log_history": [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}]}
    run.write({"trainer_state.json": json.dumps(state), "first_try.log": TRACEBACK + "RuntimeError: NaN\n"})
    assert run.one().ending.kind == "completed"


# -- bars that are drawn once more when they close ---------------------------------------------------------------------


def hf_bar(n, total=30):
    return f"\r {n * 100 // total}%|###  | {n}/{total} [00:01<00:20,  1.93it/s]"


def hf_log(*steps):
    row = "{{'loss': 2.{n}, 'learning_rate': 1e-05, 'epoch': 0.{n}}}\n"
    return "".join(hf_bar(n) + row.format(n=n) + hf_bar(n) for n in steps)


def lightning_bar(epoch, n, loss):
    return f"\rEpoch {epoch}: {n * 10}%|###| {n}/10 [00:00<00:00, 14.21it/s, v_num=0, train_loss={loss}]"


def lightning_log(epochs, last=10):
    text = "GPU available: False, used: False\n"
    for epoch in range(epochs):
        stop = last if epoch == epochs - 1 else 10
        text += "".join(lightning_bar(epoch, n, f"0.{epoch}{n:02d}") for n in range(1, stop + 1))
        text += lightning_bar(epoch, 0, f"0.{epoch}10") if epoch < epochs - 1 else ""
    return text


def test_a_bar_drawn_anew_below_the_traceback(read):
    glued = hf_bar(22) + TRACEBACK + "RuntimeError: a bad sample\n"
    evidence = read("train.log", hf_log(10, 20) + glued + hf_bar(23) + "\n")
    assert (evidence.ending.kind, evidence.ending.line) == ("exception", 6)


@pytest.mark.parametrize("again", [(), (23,), (23, 23)])
def test_the_state_of_the_traceback_may_be_drawn_any_number_of_times(read, again):
    glued = hf_bar(22) + TRACEBACK + "RuntimeError: a bad sample\n" + "".join(hf_bar(n) for n in again) + "\n"
    assert read("train.log", hf_log(10, 20) + glued).ending.kind == "exception"


def test_a_bar_that_moves_on_is_progress(read):
    went_on = "".join(hf_bar(n) for n in (23, 24, 25, 26)) + "\n"
    text = hf_log(10, 20) + "\n" + TRACEBACK + "RuntimeError: a bad sample\n" + went_on
    assert read("train.log", text).ending.kind == "truncated"


def test_a_row_below_the_traceback_is_progress(read):
    text = hf_log(10, 20) + "\n" + TRACEBACK + "RuntimeError: a bad sample\n" + hf_log(30)
    assert read("train.log", text).ending.kind == "completed"


def test_lightning_stops_and_draws_its_bar_once_more(read):
    end = "`Trainer.fit` stopped: `max_epochs=3` reached.\n\n" + lightning_bar(2, 10, "0.210") + "\n"
    evidence = read("train.log", lightning_log(3) + end)
    assert evidence.ending.text.startswith("`Trainer.fit` stopped")
    assert evidence.series("loss").steps.tolist() == list(range(1, 31))
    assert evidence.frames[evidence.keys("loss")[0]].frame["attempt"].max() == 0


def test_lightning_raises_and_draws_its_bar_once_more(read):
    end = TRACEBACK + "RuntimeError: a bad sample\n\n" + lightning_bar(1, 5, "0.105") + "\n"
    evidence = read("train.log", lightning_log(2, last=5) + "\n" + end)
    assert (evidence.ending.kind, evidence.ending.text) == ("exception", "RuntimeError: a bad sample")


# -- "step 20/50" beside an epoch --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "kind", "said"),
    [((3, 20), "truncated", "120 of 200"), ((4, 50), "completed", "200 of 200"), ((1, 50), "truncated", "50 of 200")],
)
def test_steps_per_epoch_make_the_planned_end(read, last, kind, said):
    places = [(e, s) for e in range(1, 5) for s in range(10, 51, 10) if (e, s) <= last]
    text = "".join(f"Epoch [{e}/4] Step [{s}/50] Loss: {3 - e / 5 - s / 100:.4f}\n" for e, s in places)
    ending = read("train.log", text).ending
    assert (ending.kind, said in ending.text) == (kind, True)


def test_steps_that_run_through_the_epochs_are_the_planned_end(read):
    text = "".join(f"Epoch [{1 + s // 51}/4] Step [{s}/200] Loss: {3 - s / 100:.4f}\n" for s in range(10, 201, 10))
    ending = read("train.log", text).ending
    assert (ending.kind, ending.text) == ("completed", "step 200 of 200 planned steps is the last")


@pytest.mark.parametrize(
    ("left", "said"), [("0:10:00", "10 more minutes"), ("0:01:01", "1 more minute"), ("3:00:00", "3.0 more hours")]
)
def test_an_estimate_is_told_in_fitting_units(read, left, said):
    text = "".join(f"iter: {i}  loss: 2.{i}  eta: {left}\n" for i in (20, 40, 60))
    assert said in read("train.log", text).ending.text
