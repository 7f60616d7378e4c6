"""Public incidents of GF25 and GF18, and logs that only look like one."""

import json

import pytest

UNDEFINED = (
    "ImportError: /env/lib/python3.9/site-packages/flash_attn_2_cuda.cpython-39-x86_64-linux-gnu.so: "
    "undefined symbol: _ZNK3c1011StorageImpl27throw_data_ptr_access_errorEv"
)
ROWS = "".join(f"step {i} loss {3 - i / 100:.3f} lr 0.0001\n" for i in range(1, 60))


def traceback(last, frame='  File "/home/user/train.py", line 12, in <module>\n    import flash_attn'):
    return f"Traceback (most recent call last):\n{frame}\n{last}\n"


def test_a_flash_attention_of_another_torch(judged):
    """Logic-RL (verl): the worker cannot import flash_attn, the driver then fails on an assertion of its own."""
    text = (
        "(main_task pid=1) Total training steps: 560\n"
        + traceback(UNDEFINED)
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + traceback("RuntimeError: Failed to import transformers.models.mistral.modeling_mistral because of the error")
        + traceback("AssertionError: failed to get register_center_actor: V9_register_center in []")
    )
    diagnosis, verdicts = judged(text)
    assert diagnosis.primary.rule.id == "GF25"
    assert verdicts["GF25"].variant == "import-failure"
    assert "flash_attn_2_cuda" in verdicts["GF25"].texts().what


@pytest.mark.parametrize(
    ("last", "variant"),
    [
        ("ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory", "import-failure"),
        ("ImportError: libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /env/x.so)", "import-failure"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "launch-failure"),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "launch-failure"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "launch-failure"),
    ],
)
def test_a_run_that_ends_before_its_first_step(judged, last, variant):
    """The messages that PyTorch, the dynamic linker and CUDA print at start-up."""
    diagnosis, verdicts = judged("Starting training: train.py\n" + traceback(last))
    assert diagnosis.primary.rule.id == "GF25"
    assert verdicts["GF25"].variant == variant


def test_an_optional_extension_that_does_not_load_is_no_fault(judged):
    """Many programs print the traceback of an optional import and go on without it."""
    diagnosis, verdicts = judged(traceback(UNDEFINED) + "falling back to sdpa\n" + ROWS + "Training completed\n")
    assert diagnosis.alarms == []
    assert verdicts["GF25"].outcome != "fired"


def test_the_warning_of_a_library_that_is_not_used(judged):
    """TensorFlow's usual lines on a machine without CUDA."""
    text = (
        "W dso_loader.cc:64 Could not load dynamic library 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: "
        "cannot open shared object file: No such file or directory\n"
    )
    diagnosis, _ = judged(text + ROWS)
    assert diagnosis.alarms == []


def test_an_illegal_access_from_an_index_is_not_the_stack(judged):
    """pytorch issue 68418 and its many kin: the assertion above the error names an index."""
    text = ROWS + (
        "indexSelectLargeIndex: block: [0,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        + traceback("RuntimeError: CUDA error: an illegal memory access was encountered")
    )
    _, verdicts = judged(text)
    assert verdicts["GF25"].outcome == "clear"
    assert [a.case for a in verdicts["GF25"].refuted_by] == ["GF14"]


def test_nodes_with_different_nccl(judged):
    """NCCL issue 1267: the nodes of one job had different versions of NCCL."""

    def node(host, rank, nccl):
        found = {
            "tool": "gradforensics 0.1.0", "kind": "environment", "host": host, "rank": rank, "facts": {},
            "packages": {"torch": "2.3.0", "nvidia-nccl-cu12": nccl},
        }  # fmt: skip
        return json.dumps(found, indent=1)

    files = {"train.log": ROWS, "env-a.json": node("a", 0, "2.20.5"), "env-b.json": node("b", 8, "2.18.1")}
    diagnosis, verdicts = judged(files)
    assert diagnosis.alarms == []
    drift = next(h for h in verdicts["GF25"].holdings if h.sign.variant == "node-drift")
    assert drift.hits[0].facts["what"] == "nvidia-nccl-cu12"


@pytest.mark.parametrize(("version", "fired"), [("4.47.0", True), ("4.48.0", False)])
def test_the_release_whose_accumulated_loss_was_doubled(judged, version, fired):
    """transformers pull 35438: 4.47.0 with two accumulation steps."""
    files = {
        "train.log": ROWS,
        "pip_freeze.txt": f"torch==2.5.1\ntransformers=={version}\n",
        "training_args.json": json.dumps({"gradient_accumulation_steps": 2, "learning_rate": 5e-5, "optim": "adamw"}),
    }
    diagnosis, verdicts = judged(files)
    assert diagnosis.alarms == []
    assert (verdicts["GF25"].variant == "known-fault") is fired


def test_the_trainer_does_not_know_lion(judged):
    """Articles recommend optim="lion"; the Trainer has lion_32bit and lion_8bit."""
    last = "ValueError: lion is not a valid OptimizerNames, please select one of ['adamw_torch', 'lion_8bit']"
    diagnosis, verdicts = judged("Starting training: train.py\n" + traceback(last))
    assert diagnosis.primary.rule.id == "GF18"
    assert verdicts["GF18"].variant == "name-refused"


def test_an_eps_that_fp16_weights_need_is_no_fault(judged):
    """glide-finetune issue 5 and pytorch issue 8860: eps 1e-8 is 0 in fp16, users take 1e-4."""
    config = json.dumps({"optim": "adam", "adam_epsilon": 1e-4, "precision": "16-true", "weight_decay": 0.0})
    _, verdicts = judged({"train.log": ROWS, "config.json": config})
    assert verdicts["GF18"].outcome == "clear"


def test_what_megatron_calls_adam(judged):
    """Megatron's --optimizer adam is AdamW; weight decay 0.1 belongs to it."""
    config = json.dumps({"optimizer": "adam", "weight_decay": 0.1, "lr": 3e-4, "tensor_model_parallel_size": 2})
    diagnosis, verdicts = judged({"train.log": ROWS, "args.json": config})
    assert diagnosis.alarms == []
    assert verdicts["GF18"].outcome == "clear"
