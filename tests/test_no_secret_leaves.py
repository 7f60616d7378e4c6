"""A run directory full of keys: none of them appears in any output of any command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gradforensics.cli import main
from gradforensics.report import FORMATS
from tests.test_secrecy import KEYS

PASSWORDS = ("hunter22zz", "0badc0de0badc0de", "s3cr3tw0rd")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys in settings, in the log, in the error that ends it, in a checkpoint's arguments, in packages' addresses."""
    folder = tmp_path_factory.mktemp("runs") / "leaky"
    folder.mkdir()
    lines = [f"step {i}: loss {2 - 0.01 * i:.4f} lr 0.0001" for i in range(60)]
    lines += [f"step {60 + i}: loss nan lr 0.0001" for i in range(20)]
    lines[10:10] = [f"login with {key}" for key in KEYS]
    lines += [
        f"Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    login('{KEYS[0]}')",
        f"RuntimeError: 401 Unauthorized for token={KEYS[1]} password={PASSWORDS[0]}",
    ]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    settings: dict[str, object] = {f"setting_{i}": key for i, key in enumerate(KEYS)}
    settings |= {"hub_token": PASSWORDS[1], "wandb": {"api_key": PASSWORDS[2]}, "learning_rate": 1e-4}
    settings["tracking_uri"] = f"https://jane:{PASSWORDS[0]}@mlflow.example.org/x"
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "pip_freeze.txt").write_text(f"torch==2.4.0\nmine @ git+https://jane:{KEYS[3]}@git.example.org/mine\n")
    state = {"model": {"w": torch.ones(3)}, "args": {"api_key": PASSWORDS[2], "note": KEYS[0]}, "step": 40}
    torch.save(state, folder / "step40.pt")
    return folder


def leaks(text: str) -> list[str]:
    return [secret for secret in (*KEYS, *PASSWORDS) if secret in text]


def test_analyze(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = [part for name in sorted(FORMATS) for part in ("--output", f"{name}=out.{name}")]
    assert main(["analyze", str(run), *outputs, "--set", f"hub_token={PASSWORDS[1]}"]) in (0, 1)
    told = capsys.readouterr()
    assert leaks(told.out + told.err) == []
    for name in FORMATS:
        text = (tmp_path / f"out.{name}").read_text()
        assert leaks(text) == []
    assert "***" in (tmp_path / "out.json").read_text()


@pytest.mark.parametrize("command", ["scan", "diff"])
def test_checkpoints(command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(run / "step40.pt")] * (2 if command == "diff" else 1)
    assert main([command, *paths, "--output", f"json={tmp_path / 'out.json'}"]) == 0
    told = capsys.readouterr()
    assert leaks(told.out + told.err) == []
    assert leaks((tmp_path / "out.json").read_text()) == []


def test_messages(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run / f"{KEYS[0]}.log")]) == 2
    assert main(["analyze", str(run), "--set", KEYS[0]]) == 2
    told = capsys.readouterr()
    assert KEYS[0] not in told.out + told.err
