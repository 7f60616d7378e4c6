"""The user's program: what it may return, and that a fix gets its own modules."""

import sys

import pytest
import torch

from gradforensics.errors import UsageError
from gradforensics.replay.program import Request, load, understood


def loss(model, batch):
    return model(batch).sum()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("autocast", "bf16"), ("batches", [1]), ("divide", 0.5), ("max_grad_norm", "1"), ("seed", None),
        ("settings", None), ("optimizer", "SGD"), ("learning_rate", 0.1), ("loss_scale", "dynamic"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_refused_before_it_could_look_like_a_failure_of_the_step(field, value):
    with pytest.raises(UsageError, match=f"a.py:build: {field} must be"):
        understood({"model": torch.nn.Linear(1, 1), "loss": loss, field: value}, "a.py:build")


def test_every_field_as_documented_is_taken():
    model = torch.nn.Linear(1, 1)
    for divide in (True, False, 4):
        understood(
            {
                "model": model, "loss": loss, "batches": loss, "learning_rate": loss, "divide": divide,
                "optimizer": torch.optim.SGD(model.parameters()), "autocast": "bfloat16", "max_grad_norm": 1,
                "loss_scale": 2.0, "seed": 3, "settings": {"pad_token_id": 0},
            },
            "a.py:build",
        )  # fmt: skip


def test_a_fix_in_a_copy_of_the_folder_gets_its_own_modules(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    code = "import gf_helper, gf_package.inner\nimport torch\n{extra}\ndef build():\n    return dict(\n"
    code += "        model=torch.nn.Linear(1, 1), loss=len, settings={{'from': (gf_helper.X, gf_package.inner.X)}})\n"
    for name in ("old", "new"):
        folder = tmp_path / name
        (folder / "gf_package").mkdir(parents=True)
        (folder / "gf_train.py").write_text(code.format(extra="import gf_only_old" if name == "old" else ""))
        (folder / "gf_helper.py").write_text(f"X = {name!r}")
        (folder / "gf_package" / "inner.py").write_text(f"X = {name!r}")
    (tmp_path / "old" / "gf_only_old.py").write_text("")
    request = Request(7, "cpu")
    first = load(tmp_path / "old" / "gf_train.py", "build", request)
    second = load(tmp_path / "new" / "gf_train.py", "build", request)
    assert first.settings["from"] == ("old", "old")
    assert second.settings["from"] == ("new", "new")
    assert "gf_only_old" in sys.modules
