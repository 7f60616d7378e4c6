"""Errors of autograd, as the consoles of public reports showed them, and messages that are no fault."""

import pytest

FRAMES = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 58, in <module>
    main()
  File "/workspace/train.py", line 43, in main
    loss.backward()
  File "/opt/venv/lib/python3.10/site-packages/torch/_tensor.py", line 488, in backward
    torch.autograd.backward(
"""
WARNING = (
    "/opt/venv/lib/python3.10/site-packages/torch/utils/checkpoint.py:31: UserWarning: None of the inputs have "
    "requires_grad=True. Gradients will be None\n"
    '  warnings.warn("None of the inputs have requires_grad=True. Gradients will be None")\n'
)
NO_GRAD = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n"
REDUCTION = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error "
    "indicates that your module has parameters that were not used in producing loss.\n"
    "Parameter indices which did not receive grad for rank 0: 72 73\n"
)
SECOND = (
    "RuntimeError: Trying to backward through the graph a second time, but the buffers have already been freed. "
    "Specify retain_graph=True when calling backward the first time.\n"
)
METADATA = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have "
    "different metadata than during the forward pass.\n"
    "tensor at position 46:\n"
    "saved metadata: {'shape': torch.Size([965, 5120]), 'dtype': torch.bfloat16, "
    "'device': device(type='cuda', index=3)}\n"
    "recomputed metadata: {'shape': torch.Size([964, 5120]), 'dtype': torch.bfloat16, 'device': device(type='cuda', "
    "index=3)}\n"
)
SCALAR = "RuntimeError: grad can be implicitly created only for scalar outputs\n"


def rows(first, last):
    return "".join(f"step: {i} loss: {4.2 - i / 100:.4f} lr: 0.0003\n" for i in range(first, last + 1))


def of_rank(text, rank):
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def test_lora_on_a_frozen_base_with_re_entrant_checkpointing(judged):
    """lm-sys/FastChat issue 581, artidoro/qlora issue 224: the warning, then element 0 of tensors; no step is done."""
    launch = (
        "***** Running training *****\n  Total optimization steps = 1,540\n  0%|          | 0/1540 [00:00<?, ?it/s]\n"
    )
    diagnosis, verdicts = judged(launch + WARNING + FRAMES + NO_GRAD)
    assert diagnosis.primary.rule.id == "GF01"
    assert (verdicts["GF01"].variant, verdicts["GF01"].strength) == ("re-entrant-stop", "proven")
    assert verdicts["GF04"].outcome == "clear"


def test_without_the_warning_nothing_required_a_gradient(judged):
    """brian6091/Dreambooth issue 23: the loss itself requires no gradient."""
    _, verdicts = judged(rows(1, 20) + FRAMES + NO_GRAD)
    assert verdicts["GF01"].variant == "no-graph"
    assert (verdicts["GF01"].onset_after, verdicts["GF01"].onset) == (20, 21)


@pytest.mark.parametrize("before", [1, 30])
def test_lora_on_a_module_that_the_loss_does_not_use(judged, before):
    """huggingface/peft issue 951: on more than one GPU the second step never begins, on any rank."""
    text = rows(1, before) + of_rank(FRAMES + REDUCTION, 1) + of_rank(FRAMES + REDUCTION, 0)
    diagnosis, verdicts = judged(text)
    assert diagnosis.primary.rule.id == "GF01"
    assert verdicts["GF01"].variant == "unused-in-ddp"
    assert "finished reduction" in verdicts["GF01"].texts().what
    assert verdicts["GF04"].outcome == "clear"


def test_truncated_backpropagation_with_the_result_of_detach_dropped(judged):
    """OpenNMT/OpenNMT-py issue 403."""
    diagnosis, verdicts = judged(rows(1, 50) + FRAMES + SECOND)
    assert diagnosis.primary.rule.id == "GF04"
    assert verdicts["GF04"].variant == "freed-graph"
    assert "main (/workspace/train.py:43)" in verdicts["GF04"].texts().what


def test_a_recomputation_of_another_shape_with_the_prefixes_of_ranks(judged):
    """pytorch/torchtitan issue 1117, hiyouga/LlamaFactory issue 6438: CheckpointError, the lines of ranks mixed."""
    diagnosis, verdicts = judged(rows(1, 50) + of_rank(FRAMES + METADATA, 11))
    assert diagnosis.primary.rule.id == "GF04"
    assert verdicts["GF04"].variant == "recomputed-otherwise"
    assert verdicts["GF01"].outcome != "fired"


def test_a_frozen_tower_under_checkpointing_only_warns(judged):
    """hiyouga/LlamaFactory issue 6357, 2U1/Qwen-VL-Series-Finetune issue 56: a frozen image tower; the run is fine."""
    diagnosis, verdicts = judged(WARNING + rows(1, 80) + "Training completed\n")
    assert diagnosis.alarms == []
    assert (verdicts["GF01"].variant, verdicts["GF01"].strength) == ("re-entrant-warning", "suspect")


def test_a_fault_that_a_later_launch_no_longer_has_is_no_alarm(judged):
    """A first launch stops with the error; the program is mended and started again in the same folder."""
    first = "***** Running training *****\n" + rows(1, 20) + FRAMES + SECOND
    text = first + "***** Running training *****\n" + rows(1, 80) + "Training completed\n"
    diagnosis, verdicts = judged(text)
    assert diagnosis.alarms == []
    assert (verdicts["GF04"].variant, verdicts["GF04"].severity) == ("survived", "S3")


def test_a_log_that_quotes_the_message_is_no_fault(judged):
    """Source code and documentation name the error; nothing raised it."""
    quoted = "  # RuntimeError: Trying to backward through the graph a second time\n"
    quoted += '    raise RuntimeError("modified by an inplace operation")\n'
    diagnosis, verdicts = judged(quoted + rows(1, 60) + "Training completed\n")
    assert diagnosis.alarms == []
    assert verdicts["GF04"].outcome == "clear"


def test_a_loss_that_nothing_averaged(judged):
    """reduction="none" is a fault of the loss, and the cases of the graph stay silent."""
    diagnosis, verdicts = judged(rows(1, 1) + FRAMES + SCALAR)
    assert (diagnosis.primary.rule.id, verdicts["GF02"].variant) == ("GF02", "not-scalar")
    assert verdicts["GF01"].outcome != "fired"
    assert verdicts["GF04"].outcome == "clear"


def test_a_stop_for_another_reason_says_nothing_about_the_graph(judged):
    """Out of memory after a warning of checkpointing."""
    text = rows(1, 30) + FRAMES + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    _, verdicts = judged(text)
    assert verdicts["GF04"].outcome == "clear"
    assert verdicts["GF01"].outcome == "not_judged"
