"""The patterns of public incidents with machines, communication and ranks: named by their cause, or kept quiet about.

The lines are modelled on the reports that each test names.
"""

import json

WATCHDOG = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn={size}, NumelOut={size}, Timeout(ms)=1800000) "
    "ran for 1800090 milliseconds before timing out."
)


def steps(last, **more):
    return "\n".join(f"step: {i} loss: {4.0 - i / 200:.4f} lr: 0.0001" for i in range(1, last + 1)) + "\n"


def watchdog(*ranks, number=811, size=1):
    return "".join(WATCHDOG.format(rank=rank, number=number, size=size) + "\n" for rank in ranks)


def kernel(*lines):
    head = "[Mon Nov 30 06:00:00 2026] Linux version 5.15.0-105-generic\n"
    return head + "".join(f"[Mon Nov 30 08:00:{i:02} 2026] {line}\n" for i, line in enumerate(lines))


def fired(verdicts):
    return {name for name, verdict in verdicts.items() if verdict.alarm}


def test_a_save_on_rank_0_alone_after_the_last_epoch(judged):
    """autocast pull 386: `Trainer.fit` has stopped; half an hour later an all-reduce of one element times out."""
    text = steps(200) + "`Trainer.fit` stopped: `max_epochs=10` reached.\n" + watchdog(0)
    diagnosis, verdicts = judged(text)
    assert diagnosis.primary.rule.id == "GF24"
    assert (verdicts["GF24"].variant, verdicts["GF24"].severity) == ("after-training", "S2")


def test_ranks_that_decide_by_their_own_clocks_when_to_save(judged):
    """speechbrain issue 1166: one rank of four enters the barrier of a checkpoint; here three others complain."""
    diagnosis, verdicts = judged(steps(200) + watchdog(0, 2, 3) + "[rank1]: saving the checkpoint\n", world_size=4)
    assert diagnosis.primary.rule.id == "GF24"
    assert verdicts["GF24"].variant == "missing-rank"
    assert verdicts["GF24"].facts["rank"] == "1"


def test_versions_of_nccl_that_differ_between_nodes(judged):
    """NVIDIA/nccl issue 1267: one of four nodes cannot join; nothing was trained yet."""
    text = (
        "node1: Starting training\n"
        "node1:101:101 [0] misc/socket.cc:484 NCCL WARN ncclSocketInit: connecting to address with family 0 is neither "
        "AF_INET(2) nor AF_INET6(10)\n"
        "Traceback (most recent call last):\n"
        '  File "/workspace/train.py", line 12, in main\n    dist.barrier()\n'
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, internal error - please report "
        "this issue to the NCCL developers, NCCL version 2.19.3\n"
        "ncclInternalError: Internal check failed.\n"
    )
    diagnosis, verdicts = judged(text)
    assert diagnosis.primary.rule.id == "GF24"
    assert verdicts["GF24"].variant == "rendezvous"


def test_a_parameter_without_gradient_is_no_stall(judged):
    """peft issue 951: the reducer complains of parameters that took no part in the loss."""
    text = steps(1) + (
        "Traceback (most recent call last):\n"
        '  File "/workspace/train.py", line 12, in main\n    model(batch)\n'
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
        "Parameter indices which did not receive grad for rank 0: 72 73\n"
    )
    _, verdicts = judged(text)
    assert not {"GF22", "GF24", "GF26"} & fired(verdicts)


def test_a_gpu_at_95_degrees_that_falls_off_the_bus(judged):
    """illinois-scicomp issue 80: Xid 79 on a Titan V."""
    files = {
        "dmesg.txt": kernel("NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', GPU has fallen off the bus."),
        "train.log": steps(100),
    }  # fmt: skip
    diagnosis, verdicts = judged(files)
    assert diagnosis.primary.rule.id == "GF26"
    assert (verdicts["GF26"].variant, verdicts["GF26"].facts["device"]) == ("gpu-lost", "0000:02:00")


def test_nan_on_several_gpus_with_a_silent_kernel_log_is_not_called_hardware(judged):
    """microsoft/dion issue 76: dmesg and NCCL are silent; the motherboard was blamed too early."""
    rows = [{"step": i, "loss": 3.0 - i / 100 if i < 60 else float("nan")} for i in range(1, 101)]
    text = "\n".join(json.dumps(row) for row in rows)
    _, verdicts = judged({"log.jsonl": text, "dmesg.txt": kernel("nvidia 0000:17:00.0: enabling device")})
    assert verdicts["GF26"].outcome == "clear"


def test_a_machine_that_dies_under_load_leaves_no_verdict_without_its_kernel_log(judged):
    """nnUNet issue 527: the machine goes down when the GPU is loaded; the log just stops."""
    _, verdicts = judged(steps(100))
    assert verdicts["GF24"].outcome == "not_judged"
    assert "events:kernel" in verdicts["GF26"].missing


def test_the_same_loss_on_eight_ranks_is_no_divergence(judged):
    """apex issue 840: all ranks print the same loss, because they see the same batches or it is reduced."""
    lines = [json.dumps({"step": i, "loss": 40000 / i, "grad_norm": 1.0 + 1 / i}) for i in range(1, 61)]
    _, verdicts = judged({f"rank_{rank}.jsonl": "\n".join(lines) for rank in range(8)})
    assert verdicts["GF22"].outcome == "clear"


def test_local_norms_of_shards_are_no_divergence(judged):
    """LlamaFactory pull 10640: norms of local shards that were logged without a reduction."""
    files = {
        f"rank_{rank}.jsonl": "\n".join(
            json.dumps({"step": i, "loss": 3 - i / 100, "grad_norm": 1 + ((i * (rank + 3)) % 7) / 10})
            for i in range(1, 61)
        )
        for rank in range(4)
    }
    _, verdicts = judged(files)
    assert verdicts["GF22"].outcome == "not_judged"


def test_an_xid_before_the_timeout_is_its_cause(judged):
    """The look-alike of the catalogue: no step is known to either, and the timeout is the louder one."""
    files = {
        "dmesg.txt": kernel("NVRM: Xid (PCI:0000:3b:00): 74, pid=77, NVLink: fatal error detected on link 6"),
        "train.log": "Starting training\n" + watchdog(0, 1, number=3),
    }  # fmt: skip
    diagnosis, _ = judged(files)
    assert diagnosis.primary.rule.id == "GF26"
    assert ("GF26", "GF24") in diagnosis.chain


def test_the_xids_of_a_job_that_is_cleaned_up_after_a_timeout_are_consequences(judged):
    """Xid 43 and 45 name channels of processes that were aborted."""
    files = {
        "dmesg.txt": kernel("NVRM: Xid (PCI:0000:3b:00): 43, pid=77, name=python, Ch 00000008",
                            "NVRM: Xid (PCI:0000:3b:00): 45, pid=77, name=python, Ch 00000009"),
        "train.log": steps(50) + watchdog(0, 1),
    }  # fmt: skip
    diagnosis, verdicts = judged(files)
    assert diagnosis.primary.rule.id == "GF24"
    assert verdicts["GF26"].outcome == "clear"


def test_a_rank_out_of_memory_explains_the_timeout_of_the_others(judged):
    """The look-alike of the catalogue: the communication is not at fault."""
    text = steps(50) + (
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/workspace/train.py", line 12, in main\n[rank3]:     loss.backward()\n'
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    _, verdicts = judged(text + watchdog(0, 1, 2))
    assert (verdicts["GF24"].variant, verdicts["GF24"].severity) == ("consequence", "S4")


def test_what_processes_say_while_they_leave_a_finished_run_is_no_fault(judged):
    """PyTorch 2.6 and newer warn where rank 0 and its store leave first; older ones warn of IPv6 at the start."""
    text = (
        "[W1130 07:49:00.1 socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500 "
        "(errno: 97 - Address family not supported by protocol).\n" + steps(100) + "Training completed\n"
        "[rank1]:[W1130 08:49:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=80): Connection reset by "
        "peer\n"
        "[rank0]:[W1130 08:49:00.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed "
        "before we destruct ProcessGroupNCCL.\n"
    )
    diagnosis, verdicts = judged(text)
    assert diagnosis.alarms == []
    assert verdicts["GF24"].outcome == "clear"


def test_errors_of_a_machine_from_weeks_before_the_run_are_not_its_own(judged):
    """A kernel log reaches back to the boot: other jobs ran on this machine."""
    rows = [{"step": i, "loss": 3 - i / 100, "timestamp": 1798000000.0 + i} for i in range(1, 101)]
    old = "[Mon Nov 30 06:00:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    _, verdicts = judged({"log.jsonl": "\n".join(json.dumps(r) for r in rows), "dmesg.txt": old})
    assert verdicts["GF26"].outcome == "clear"
