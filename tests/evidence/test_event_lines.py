"""What single lines say: wordings that are events, with what they tell, and lines that merely look like one."""

# ruff: noqa: E501  lines of logs stand here as they are written

import pytest

from gradforensics.evidence import events
from gradforensics.evidence.events import Scanner, classify

GIB = 1 << 30
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.31 GiB is free. "
    "Including non-PyTorch memory, this process has 77.84 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 5.50 GiB is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.75 GiB total capacity; 14.50 GiB already allocated; 1.25 GiB free; 14.75 GiB reserved in total by PyTorch) "
    "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
)
WORK = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=58264896, Timeout(ms)=600000) ran for 600123 milliseconds before timing out."
WATCHDOG = {
    "sequence": 17, "collective": "ALLREDUCE", "numel_in": 466119168, "numel_out": 58264896, "timeout_ms": 600000, "ran_ms": 600123,
}  # fmt: skip
ASSERT = "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1146: indexSelectLargeIndex: block: [58,0,0], thread: [24,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
LABEL_ASSERT = "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed."


def data(kind, **told):
    return kind, told


EVENTS = [
    # memory
    (OOM, data("oom", bytes=2 * GIB, gpu=3, total=int(79.15 * GIB), free=int(1.31 * GIB), in_use=int(77.84 * GIB), allocated=70 * GIB, reserved=int(75.5 * GIB))),
    (OLD_OOM, data("oom", bytes=20 << 20, gpu=0, total=int(15.75 * GIB), free=int(1.25 * GIB), allocated=int(14.5 * GIB), reserved=int(14.75 * GIB))),
    ("RuntimeError: CUDA error: out of memory", data("oom")),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", data("oom")),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)", data("oom", bytes=8 * GIB)),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.50 GiB for an array with shape (1000000, 1000) and data type float64", data("oom", bytes=int(7.5 * GIB))),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=77.batch. Some of the step tasks have been OOM Killed.", data("oom")),
    ("srun: error: node07: task 3: Out Of Memory", data("oom")),
    ("State: Terminated, Reason: OOMKilled, Exit Code: 137", data("oom")),
    # limits
    ("[Rank 3] " + WORK, data("timeout", **WATCHDOG)),
    ("[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25624887 milliseconds before timing out.", data("timeout", sequence=96120, collective="ALLREDUCE", timeout_ms=1800000, ran_ms=25624887)),
    ("  what():  [PG ID 2 PG GUID 9 Rank 4] Process group watchdog thread terminated with exception: [Rank 4] " + WORK, data("timeout", **WATCHDOG, group="9")),
    ("slurmstepd: error: *** STEP 123.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***", data("timeout")),
    ("=>> PBS: job killed: walltime 86415 exceeded limit 86400", data("timeout")),
    ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", data("timeout")),
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", data("timeout")),
    ("RuntimeError: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms", data("timeout", missing_ranks=[1, 3])),
    ("[PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info.", data("timeout", group="0(default_pg)", from_rank=5)),
    ("[PG ID 0 PG GUID 0(default_pg) Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.", data("timeout", group="0(default_pg)")),
    # signals
    ("Killed", data("killed", signal=9)),
    ("/bin/bash: line 1:   123 Killed                  python train.py --lr 3", data("killed", signal=9)),
    ("run.sh: line 3: 4242 Segmentation fault      (core dumped) python train.py", data("killed", signal=11)),
    ("srun: error: node07: task 3: Killed", data("killed", signal=9)),
    ("srun: error: node07: tasks 0-3,5: Segmentation fault (core dumped)", data("killed", signal=11)),
    ("slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***", data("killed")),
    ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***", data("killed", reason="preemption")),
    ("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", data("killed", reason="node failure")),
    ("Received SIGTERM: 15", data("killed", signal=15)),
    ("Received Signals.SIGTERM death signal, shutting down workers", data("killed", signal=15)),
    ("Caught SIGTERM, saving a checkpoint", data("killed", signal=15)),
    ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 42 got signal: 15", data("killed", signal=15)),
    ("subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.", data("killed", signal=9)),
    ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV", data("killed", signal=11)),
    ("command terminated with exit code 137", data("killed", signal=9)),
    ("[node07:00123] Signal: Segmentation fault (11)", data("killed", signal=11)),
    ("TERM_OWNER: job killed by owner.", data("killed")),
    # CUDA, data and autograd
    (ASSERT, data("device_assert", assertion="srcIndex < srcSelectDimSize", kernel="indexSelectLargeIndex")),
    (LABEL_ASSERT, data("device_assert", assertion="t >= 0 && t < n_classes", kernel="nll_loss_forward_reduce_cuda_kernel_2d")),
    ("RuntimeError: CUDA error: device-side assert triggered", data("device_assert")),
    ("IndexError: Target 64 is out of bounds.", data("index_error", index=64)),
    ("IndexError: index out of range in self", data("index_error")),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", data("cuda_error", error="illegal_memory_access")),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", data("cuda_error", error="no_kernel_image")),
    ("ImportError: /env/lib/flash_attn_2_cuda.cpython-39-x86_64-linux-gnu.so: undefined symbol: _ZNK3c1011StorageImplEv", data("library_error", error="undefined_symbol", library="flash_attn_2_cuda.cpython-39-x86_64-linux-gnu.so", symbol="_ZNK3c1011StorageImplEv")),
    ("ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /env/a.so)", data("library_error", error="old_library", library="libstdc++.so.6", symbol="GLIBCXX_3.4.32")),
    ("OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory", data("library_error", error="missing_library", library="libcudart.so.11.0")),
    ("RuntimeError: operator torchvision::nms does not exist", data("library_error", error="operator_missing")),
    ("RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile", data("cuda_error", error="cuda_mismatch")),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", data("cuda_error", error="driver_too_old")),
    ("AssertionError: Torch not compiled with CUDA enabled", data("cuda_error", error="no_cuda_build")),
    ("RuntimeError: CUDA error: unspecified launch failure", data("cuda_error", error="launch_failure")),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", data("cuda_error", error="cudnn_status_execution_failed")),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`", data("cuda_error", error="cublas_status_execution_failed")),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", data("ecc", error="uncorrectable")),
    ("RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.FloatTensor [3]], which is output 0 of ReluBackward0, is at version 1; expected version 0 instead.", data("autograd_error", error="inplace")),
    ("RuntimeError: Trying to backward through the graph a second time, but the buffers have already been freed. Specify retain_graph=True", data("autograd_error", error="second_backward")),
    ("RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn", data("autograd_error", error="no_grad")),
    ("RuntimeError: One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the desired behavior.", data("autograd_error", error="unused")),
    ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss.", data("autograd_error", error="unfinished_reduction")),
    ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", data("autograd_error", error="anomaly", function="MulBackward0", output=0)),
    ("torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.", data("autograd_error", error="recomputation")),
    ("RuntimeError: unscale_() has already been called on this optimizer since the last update().", data("gradscaler", error="unscaled_twice")),
    ("AssertionError: No inf checks were recorded for this optimizer.", data("gradscaler", error="no_inf_checks")),
    ("ValueError: Attempting to unscale FP16 gradients.", data("gradscaler", error="fp16_gradients")),
    ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", data("loss_scale", error="minimum")),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", data("loss_scale", error="minimum")),
    # collectives
    ("gpu617:22841:22841 [0] bootstrap.cc:37 NCCL WARN Bootstrap : no socket interface found", data("nccl_error", error="no_interface", level="warning", message="Bootstrap : no socket interface found")),
    ("a100-22:183006:183220 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.200.84.247<58355> failed : Connection reset by peer", data("nccl_error", error="connection_reset", level="warning", message="Net : Call to recv from 10.200.84.247<58355> failed : Connection reset by peer")),
    ("n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with error 12, opcode 0, len 0, vendor err 129", data("nccl_error", error="completion_error", level="warning", message="NET/IB : Got completion from peer 10.0.0.1<5> with error 12, opcode 0, len 0, vendor err 129")),
    ("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, remote process exited or there was a network error, NCCL version 2.18.6", data("nccl_error", error="remote")),
    ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", data("nccl_error", error="system")),
    ("ncclUnhandledCudaError: Call to CUDA function failed.", data("nccl_error", error="cuda")),
    ("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node0, 29500).", data("nccl_error", error="connect_timeout")),
    ("[W socket.cpp:663] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111 - Connection refused).", data("nccl_error", error="connection_refused", level="warning")),
    ("RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", data("nccl_error", error="address_in_use")),
    ("[PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.", data("nccl_error", error="watchdog", group="0(default_pg)", sequence=808, enqueued=811, completed=807)),
    ("[Rank 4] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.", data("nccl_error", error="aborted")),
    # machine, disk
    ("OSError: [Errno 28] No space left on device", data("disk_full", error="no_space")),
    ("OSError: [Errno 122] Disk quota exceeded: 'out/checkpoint-500'", data("disk_full", error="quota")),
    ("[1234.5] NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", data("xid", number=79, pci="0000:02:00", message="GPU has fallen off the bus.")),
    # loss scale, order, resume, end
    ("OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768", data("overflow", **{"from": 65536.0, "to": 32768.0})),
    ("UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 and later", data("warning", about="lr_scheduler.step() before optimizer.step()")),
    ("UserWarning: Seems like `optimizer.step()` has been overridden after learning rate scheduler initialization.", data("warning", about="optimizer.step() replaced after the scheduler was made")),
    ("UserWarning: None of the inputs have requires_grad=True. Gradients will be None", data("warning", about="no input requires grad")),
    ("Resuming from checkpoint out/checkpoint-500", data("resume", step=500)),
    ("  Continuing training from global step 1200", data("resume", step=1200)),
    ("  successfully loaded checkpoint from ckpt/iter_0001000 [ t 0, p 0 ] at iteration 1000", data("resume", step=1000)),
    ("Restored all states from the checkpoint at lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt", data("resume", step=20)),
    ("Loading states from out/checkpoint_1", data("resume")),
    ("Training has finished", data("completed")),
    ("***** train metrics *****", data("completed")),
]  # fmt: skip


@pytest.mark.parametrize(("line", "want"), EVENTS, ids=[line[:50] for line, _ in EVENTS])
def test_lines_that_are_events(line, want):
    assert events.suspicious(line)
    found = classify(line)
    assert found is not None
    assert (found[0], dict(found[1])) == want


NOTHING = [
    # settings and argument dumps
    "--nan-check --detect-anomaly --nccl-timeout 1800", "Namespace(detect_anomaly=True, resume=None, error_threshold=0.1, timeout=1800)",
    "timeout=1800", "NCCL_TIMEOUT=1800", "NCCL_ASYNC_ERROR_HANDLING=1", "ddp_timeout: 1800", "  rerun_error_injection_rate ........................ 0", "  check_for_nan_in_loss_and_grad .................. True",
    "Resume: null", "resume_from_checkpoint=None,", "resume: False", "no resume checkpoint", "auto_resume ................. False", "early_stopping: True, patience 10", "skip_memory_metrics=True,",
    # numbers
    "step:11/6200 train_loss:6.6933 train_time:214ms step_avg:nanms", "{'loss': 0.1, 'acc': 0.9} (+nanz)", "number of nan iterations: 0", " number of skipped iterations:   0 | number of nan iterations:   0 |",
    "Error: 0.0123", "val_error 0.3", "mean absolute error: 0.32", "test Error rate: 12.3%", "memory (MiB) | allocated: 1234.5 | reserved: 2048.0", "grad overflow check: off", "Memory: 11.5 GB",
    # prose, samples, base64
    "The dog was killed by a car in 1987", "Killed in action, he was buried at Arlington", "prompt: Traceback (most recent call last): what does it mean?", "tokens: ['Trace', 'back', 'Killed', 'SIG', 'TERM']",
    "Xid4kfJRVJST1IhOOMSIGTERMKilled+/nccl==", "An error occurred is a common phrase", "<s> The CUDA kernel ran out of registers </s>", "Her memory of the accident faded after she resumed her studies",
    "This may cause OOM errors during the initial memory profiling phase", "When using more than one image per GPU you may encounter an out-of-memory (OOM) error",
    # programs that speak of what may come
    "SIGTERM handler installed", "Registering a handler for SIGUSR1 and SIGTERM", "Sending process 42 closing signal SIGTERM", "training will be completed when loss < 1", "Saved checkpoint out/checkpoint-500", "Saving model checkpoint to out/checkpoint-500",
    "If you get CUDA out of memory, reduce the batch size".replace("If", "if"), "RuntimeError is raised if x", "Training: 100%|####| 10/10 [00:01<00:00]", "Signal handling: enabled", "exit code 0", "srun: Job 77 step creation temporarily disabled, retrying (Requested nodes are busy)",
    "node07:534:1763 [3] NCCL INFO misc/socket.cc:535 -> 6", "node07:534:1763 [3] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", "NCCL version 2.27.3+cuda12.9", "[W socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).",
    "Some weights of GPT2Model were not initialized from the model checkpoint at gpt2 and are newly initialized: ['score.weight']", "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use `torch.amp.GradScaler('cuda', args...)` instead.",
    "The attention mask is not set and cannot be inferred from input because pad token is same as eos token.", "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    "/usr/lib/python3.11/subprocess.py:1883: RuntimeWarning: os.fork() was called.", "urllib3.exceptions.NewConnectionError: Failed to establish a new connection: [Errno 111] Connection refused", "wandb: Network error (ConnectTimeout), entering retry loop.",
    "skilled workers", "The Terminated column is empty", "Checkpoint 500 is complete", "Terminated=False truncated=False reward=0.5",
    # source code that a log prints
    '    raise RuntimeError("CUDA out of memory")', "        except KeyboardInterrupt:", "except torch.cuda.OutOfMemoryError as error:", "    except RuntimeError as e: # CUDA out of memory", "+        raise ValueError('NCCL WARN')", '  warnings.warn("Detected call of `lr_scheduler.step()` before `optimizer.step()`. "',
    "    print('Training finished')", "        logger.info('Received SIGTERM: 15')", "    # CUDA out of memory. Tried to allocate 2.00 GiB", "    'Trying to backward through the graph a second time'", "    timed_steps = float('nan') if step <= 11 else (step - 10) + 1 # <= 11 to avoid bug in val", "assert not torch.isnan(loss), 'No space left on device'",
]  # fmt: skip


@pytest.mark.parametrize("line", NOTHING, ids=[line[:50] for line in NOTHING])
def test_lines_that_are_no_events(line):
    scanner = Scanner("train.log", lambda: None)
    scanner.feed(1, line)
    assert scanner.events == []


def test_a_mark_stands_in_every_line_that_is_used_and_they_are_few():
    assert len(events.MARKS) <= 64
    assert all(len(mark) >= 3 for mark in events.MARKS)
    assert not any(other != mark and other in mark for mark in events.MARKS for other in events.MARKS)
    rows = [
        "iteration      100/  500 | elapsed time per iteration (ms): 512.3 | learning rate: 1.0E-04 | lm loss: 2.512E+00 |",
        "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.13, 'memory/max_mem_active(gib)': 12.3}",
        "[2026-01-01 00:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]",
        " 12%|#2        | 120/1000 [00:12<01:30,  9.71it/s]", "Epoch: [0][ 10/500] Time 0.5 (0.6) Loss 6.9 (7.0) Acc@1 0.1 (0.1)",
    ]  # fmt: skip
    assert not any(events.suspicious(row) for row in rows)


@pytest.mark.parametrize("digits", ["9" * 39, "1" * 4000])
def test_numbers_of_any_length_are_no_defect(digits):
    for line in (
        f"OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {digits}, reducing to {digits}",
        f"CUDA out of memory. Tried to allocate {digits}.5 GiB. GPU {digits} has a total capacity of {digits} GiB",
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={digits}, OpType=X, Timeout(ms)={digits})",
        f"NVRM: Xid (PCI:0000:02:00): {digits}, pid={digits}, name=x", f"Target {digits} is out of bounds.",
        f"exitcode : -{digits} (pid: 1)", f"Resuming from checkpoint-{digits}",
    ):  # fmt: skip
        scanner = Scanner("train.log", lambda: None)
        scanner.feed(1, line)
