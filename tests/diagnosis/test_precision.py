"""What settings say about number formats."""

import pytest

from gradforensics.diagnosis.checks.precision import precision
from gradforensics.diagnosis.examples import evidence_of


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"precision": "16-true"}, ("fp16", "pure")),
        ({"precision": "bf16-true"}, ("bf16", "pure")),
        ({"precision": "16-mixed"}, ("fp16", "mixed")),
        ({"precision": 16}, ("fp16", "mixed")),
        ({"precision": "32-true"}, ("fp32", "mixed")),
        ({"precision": "no"}, ("fp32", "mixed")),
        ({"precision": "bfloat16"}, ("bf16", "unknown")),
        ({"precision": "torch.float16"}, ("fp16", "unknown")),
        ({"precision": "bf16", "optimizer._component_": "torch.optim.AdamW"}, ("bf16", "pure")),
        ({"pure_bf16": True, "bf16": True}, ("bf16", "pure")),
        ({"fp16": True, "precision": "float32"}, ("fp16", "mixed")),
        ({"bf16": True, "fp16": False}, ("bf16", "mixed")),
        ({"bf16": False, "fp16": False}, ("fp32", "mixed")),
        ({"bf16": False, "fp16": False, "precision": "bfloat16"}, ("fp32", "unknown")),
        ({"precision": "int8"}, None),
        ({}, None),
    ],
)
def test_precision(settings, expected):
    found = precision(evidence_of({"settings": settings}))
    assert (found and (found.width, found.form)) == expected
