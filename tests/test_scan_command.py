"""`gradforensics scan` and `diff`: what is shown first, outputs, exit codes, and that nothing of a file is run."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.cli import main

SHARED = Path(__file__).parents[1].parent / "shared" / "checkpoints"
# torch and safetensors are found, as polars wants it, and break when they are imported
BLOCKED = """
import sys
from importlib.util import spec_from_loader

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors"):
            return spec_from_loader(name, self)

    def create_module(self, spec):
        raise ImportError(f"{spec.name} is broken")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Broken())
from gradforensics.cli import main
sys.exit(main(sys.argv[1:]))
"""


class _Runs:
    """Pickled as a call of os.system: what no scan may ever do."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.fixture(scope="module")
def torch():
    import torch

    torch.set_num_threads(1)
    return torch


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "110")
    return folder


@pytest.fixture
def save(torch, tmp_path):
    def make(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, path)
        return path

    return make


@pytest.fixture
def trained(torch, tmp_path):
    """Makes a folder of checkpoints of one small model, at each of the given steps."""

    def make(name, steps, *, nan_at=None, frozen=False, lr=1e-3):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
        if frozen:
            model[0].weight.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
        for step in range(1, max(steps) + 1):
            loss = model(torch.randn(8, 8)).square().mean() * (float("nan") if step == nan_at else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step in steps:
                folder = tmp_path / name / f"checkpoint-{step}"
                folder.mkdir(parents=True)
                torch.save(model.state_dict(), folder / "pytorch_model.bin")
                torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        return tmp_path / name

    return make


@pytest.fixture(scope="module")
def valid():
    def check(command, text):
        data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        schema = json.loads((files("gradforensics.report") / f"{command}.schema.json").read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.Draft202012Validator(schema).validate(data)
        return data

    return check


def rows(text):
    """The first word of every row of the tables of a text."""
    return [line.split()[0] for line in text.splitlines() if " float" in line and line.startswith("  ")]


# -- scan: what is shown ----------------------------------------------------------------------------------------------


def test_the_worst_tensors_come_first(here, save, torch, capsys):
    normal = torch.linspace(-1, 1, 64)
    outlier = normal.clone()
    outlier[3] = 50.0
    subnormal = normal.clone()
    subnormal[:5] = 1e-40
    broken = normal.clone()
    broken[0], broken[1] = float("nan"), float("-inf")
    path = save(
        "m.pt",
        {"even": normal, "outlier": outlier, "tiny": subnormal, "zero": torch.zeros(9), "broken": broken},
    )
    assert main(["scan", str(path)]) == 0
    out = capsys.readouterr().out
    assert rows(out) == ["broken", "zero", "tiny", "outlier", "even"]
    assert "1 of 5 tensors hold NaN or infinity" in out
    first = next(line for line in out.splitlines() if line.startswith("  broken"))
    assert first.split() == ["broken", "param", "float32", "64", "1", "1", "0%", "-0.937", "1", "0.0317", "0.568"]


def test_a_headline_says_what_a_checkpoint_holds(here, trained, capsys):
    run = trained("run", [3])
    assert main(["scan", str(run / "checkpoint-3")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("checkpoint-3 (torch-zip, step 3, complete)\n")
    assert "18 tensors (6 param, 6 exp_avg, 6 exp_avg_sq), 244 parameters" in out
    assert "adamw, lr 0.001, betas 0.9 0.999, eps 1e-08, weight decay 0.1, step 3, 6 parameters" in out
    assert "confirmed: The order of checkpoint-3/pytorch_model.bin names the states" in out
    assert out.endswith("1 checkpoint, 18 tensors, 0 with NaN or infinity\n")


def test_checkpoints_of_a_folder_come_by_step_and_in_an_overview(here, trained, capsys):
    run = trained("run", [2, 4, 10], nan_at=4)
    assert main(["scan", str(run), "--limit", "1"]) == 0
    out = capsys.readouterr().out
    heads = [line.split()[0] for line in out.splitlines() if "(torch-zip, step" in line]
    assert heads == ["run/checkpoint-2", "run/checkpoint-4", "run/checkpoint-10"]
    assert "17 more tensors: --limit 0 shows all" in out
    overview = out[out.index("checkpoint  ") :]
    assert [line.split() for line in overview.splitlines()[1:4]] == [
        ["run/checkpoint-2", "2", "yes", "18", "0"],
        ["run/checkpoint-4", "4", "yes", "18", "18"],
        ["run/checkpoint-10", "10", "yes", "18", "18"],
    ]
    assert out.endswith("3 checkpoints, 54 tensors, 36 with NaN or infinity\n")


@pytest.mark.parametrize(("limit", "shown"), [("0", 30), ("5", 5), ("40", 30)])
def test_the_limit_counts_tensors(here, save, torch, capsys, limit, shown):
    path = save("m.pt", {f"w{i:02}": torch.ones(2) for i in range(30)})
    for option in ([], ["--list"]):
        assert main(["scan", str(path), "--limit", limit, *option]) == 0
        assert len(rows(capsys.readouterr().out)) == shown


def test_names_cannot_steer_the_terminal(here, save, torch, capsys, valid):
    path = save(
        "m\x1b[2J.pt", {"a\x1b]0;b\x07\r\nc": torch.ones(2), "half\ud800": torch.ones(1), "\u202ex": torch.ones(1)}
    )
    for command in (["scan", str(path)], ["scan", "--list", str(path)], ["diff", str(path), str(path)]):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert not set(out) & {"\x1b", "\x07", "\r", "\u202e", "\ud800"}
        assert "a\\x1b]0;b\\x07\\x0d c" in out
        assert "half\\ud800" in out
    assert main(["scan", str(path), "--output", "json=-"]) == 0
    data = valid("scan", capsys.readouterr().out)
    assert "a\x1b]0;b\x07\r\nc" in [t["name"] for t in data["tensors"]]


@pytest.mark.parametrize("columns", ["40", "60", "80", "200"])
def test_tables_keep_to_the_width(here, trained, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    run = trained("run", [1])
    assert main(["scan", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  name ") and "nan" in line)
    assert all(len(line) <= int(columns) for line in lines[start : start + 19])
    assert (" std" in lines[start]) == (columns == "200")


# -- scan: outputs and exit codes -------------------------------------------------------------------------------------


def test_fail_on_decides_the_exit_code(here, trained, capsys):
    good, bad = trained("good", [2]), trained("bad", [2], nan_at=1)
    assert main(["scan", str(bad)]) == 0
    assert main(["scan", str(bad), "--fail-on", "nonfinite"]) == 1
    assert main(["scan", str(good), "--fail-on", "nonfinite", "--fail-on", "damaged", "--fail-on", "dangerous"]) == 0


def test_what_is_no_part_of_the_model_may_be_infinite(here, save, torch, capsys):
    content = {"state_dict": {"w": torch.ones(2)}, "callbacks": {"stop": {"best": torch.tensor(float("inf"))}}}
    assert main(["scan", str(save("m.ckpt", content)), "--fail-on", "nonfinite"]) == 0
    assert "1 of 2 tensors hold NaN or infinity, none of them of the model or its optimizer" in capsys.readouterr().out


def test_code_in_a_pickle_is_shown_and_not_run(here, save, torch, tmp_path, capsys, valid):
    marker = tmp_path / "ran"
    path = save("m.pt", {"w": torch.ones(2), "x": _Runs(f"touch {marker}")})
    assert main(["scan", str(path), "--fail-on", "damaged"]) == 0
    out = capsys.readouterr().out
    assert f"would run {os.system.__module__}.system('touch {marker}')" in " ".join(out.split())
    assert "nothing was run here" in " ".join(out.split())
    assert main(["scan", str(path), "--fail-on", "dangerous", "--output", "json=-"]) == 1
    (call,) = valid("scan", capsys.readouterr().out)["calls"]
    assert (call["name"], call["danger"]) == (f"{os.system.__module__}.system", True)
    assert main(["scan", "--list", str(path), "--fail-on", "dangerous"]) == 1
    assert not marker.exists()


def test_damage_is_found_and_named(here, save, torch, capsys):
    path = save("m.pt", {"w": torch.full((1000,), 0.5)})
    content = bytearray(path.read_bytes())
    content[content.index(b"\x00\x00\x00\x3f" * 8) + 3] ^= 1
    path.write_bytes(content)
    assert main(["scan", str(path), "--fail-on", "damaged"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "incomplete or damaged" in out
    assert "CRC-32" in out
    assert "wrong, such as tensor w" in out


def test_json_holds_everything(here, trained, tmp_path, capsys, valid):
    run = trained("run", [2, 4], nan_at=4)
    assert main(["scan", str(run), "--limit", "1", "--output", "json=-"]) == 0
    out, err = capsys.readouterr()
    assert "2 checkpoints" in err
    data = valid("scan", out)
    assert [(c["path"], c["step"], c["nonfinite"]) for c in data["checkpoints"]] == [
        ("run/checkpoint-2", 2, 0), ("run/checkpoint-4", 4, 3 * 244),
    ]  # fmt: skip
    assert len(data["tensors"]) == 36
    (group, _) = data["groups"]
    assert (group["lr"], group["betas"], group["optimizer"]) == (1e-3, [0.9, 0.999], "adamw")
    assert group["names"][:2] == ["0.weight", "0.bias"]
    assert {"key": "optimizer.step", "value": 4} in [{k: f[k] for k in ("key", "value")} for f in data["facts"]]
    assert main(["scan", "--list", str(run), "--output", "json=-"]) == 0
    listed = valid("scan", capsys.readouterr().out)
    assert [t["key"] for t in listed["tensors"]] == [t["key"] for t in data["tensors"]]
    assert {t["nan"] for t in listed["tensors"]} == {None}
    assert {c["nonfinite"] for c in listed["checkpoints"]} == {None}


def test_parquet_holds_the_table_of_tensors(here, trained, capsys):
    import polars as pl

    run = trained("run", [2])
    assert main(["scan", str(run), "--output", "parquet=t.parquet", "--output", "json=t.json"]) == 0
    assert capsys.readouterr().out.endswith("Written: t.parquet\nWritten: t.json\n")
    table = pl.read_parquet("t.parquet")
    rows_ = json.loads(Path("t.json").read_text())["tensors"]
    assert table.rows(named=True) == rows_
    assert main(["scan", str(run), "--output", "parquet=t.parquet"]) == 0  # ours: replaced
    table.write_parquet("mine.parquet")
    assert main(["scan", str(run), "--output", "parquet=mine.parquet"]) == 2
    assert main(["scan", str(run), "--output", "parquet=mine.parquet", "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["scan"], "Missing argument"),
        (["scan", "nowhere"], "nowhere: no such file"),
        (["scan", ""], "a PATH is empty"),
        (["scan", "RUN", "--list", "--fail-on", "nonfinite"], "--list reads no tensor"),
        (["scan", "RUN", "--fail-on", "S1"], "S1"),
        (["scan", "RUN", "--limit", "-1"], "-1"),
        (["scan", "RUN", "--output", "html=x.html"], "no format 'html' (json, parquet)"),
        (["scan", "RUN", "--output", "parquet=-"], "parquet is no text"),
        (["scan", "RUN", "--output", "json=RUN/x.json"], "inside the run directory"),
        (["scan", "RUN", "--output", "json=x", "--output", "parquet=x"], "the same path"),
        (["diff", "RUN"], "Missing argument"),
        (["diff", "RUN", "RUN/checkpoint-1"], "holds 2 checkpoints; name one of them"),
        (["diff", "RUN/checkpoint-1", "RUN/checkpoint-2", "--output", "parquet=x"], "no format 'parquet'"),
        (["diff", "RUN/checkpoint-1", "RUN/checkpoint-2", "--output", "json=RUN/checkpoint-2/x"], "inside the run"),
    ],
)
def test_usage_errors_end_with_2_and_say_why(here, trained, capsys, arguments, complaint):
    run = str(trained("run", [1, 2]))
    assert main([a.replace("RUN", run) for a in arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_no_checkpoint_ends_with_4(here, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"\x00" * 20)
    for command in ("scan", "diff"):
        assert main([command, *[str(tmp_path / "empty")] * (1 + (command == "diff"))]) == 4
        err = capsys.readouterr().err
        assert "no checkpoint that could be read" in err
        assert "model.safetensors: not read" in err


def test_a_file_that_is_named_alone_may_have_any_name(here, save, torch, capsys):
    path = save("weights", {"w": torch.ones(2)})
    assert main(["scan", str(path)]) == 0
    assert "1 tensor (1 param)" in capsys.readouterr().out


def test_nothing_is_written_into_the_evidence(here, trained, capsys):
    run = trained("run", [1, 2])
    before = {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in run.rglob("*")}
    assert main(["scan", str(run)]) == 0
    assert main(["diff", str(run / "checkpoint-1"), str(run / "checkpoint-2")]) == 0
    assert {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in run.rglob("*")} == before


def test_a_list_needs_neither_polars_nor_the_tensors(here, trained):
    run = trained("run", [1])
    code = (
        "import sys, gradforensics.checkpoints.refs as refs\n"
        "blocks = refs.blocks\n"
        "def step_counters(runs, itemsize, buffer):\n"
        "    assert sum(run.count for run in runs) == 1, 'a tensor was read'\n"
        "    return blocks(runs, itemsize, buffer)\n"
        "refs.blocks = step_counters\n"
        "from gradforensics.cli import main\n"
        "code = main(['scan', '--list', sys.argv[1]])\n"
        "print(code, sorted({'polars', 'torch', 'scipy', 'rich', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n0 []\n")
    assert "18 tensors" in done.stdout
    assert "nan" not in done.stdout


def test_transformers_is_asked_once_per_configuration_and_only_where_it_is_wanted(here, trained, capsys, monkeypatch):
    from gradforensics.checkpoints import meta_names

    run = trained("run", [1, 2])
    (run / "checkpoint-1" / "config.json").write_text("{}")
    (run / "checkpoint-2" / "config.json").write_text("{}")
    asked = []

    def answer(folder):
        asked.append(folder.name)
        return meta_names.Found(None, "there is no such architecture")

    monkeypatch.setattr(meta_names, "names_from_config", answer)
    assert main(["scan", str(run)]) == 0
    assert asked == []
    assert main(["scan", str(run), "--names-from-config"]) == 0
    assert asked == ["checkpoint-1"]
    assert capsys.readouterr().out.count("there is no such architecture") == 2


def test_names_of_a_configuration_name_the_states(here, torch, tmp_path, capsys, monkeypatch):
    from gradforensics.checkpoints import meta_names

    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    first, second = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    optimizer = torch.optim.Adam([second, first])
    (first + second).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    (folder / "config.json").write_text("{}")
    found = meta_names.Found([("late", (4, 4), True), ("early", (4, 4), True)])
    monkeypatch.setattr(meta_names, "names_from_config", lambda _: found)
    assert main(["scan", "--list", str(folder)]) == 0
    assert "none: The states keep their ids" in capsys.readouterr().out
    assert main(["scan", "--list", str(folder), "--names-from-config"]) == 0
    out = capsys.readouterr().out
    assert "confirmed: The model that config.json describes names the states" in out
    assert rows(out) == ["late", "late", "early", "early"]


# -- diff -------------------------------------------------------------------------------------------------------------


def test_diff_shows_what_moved_and_what_did_not(here, trained, capsys, valid):
    run = trained("run", [3, 7], frozen=True)
    later, earlier = str(run / "checkpoint-7"), str(run / "checkpoint-3")
    assert main(["diff", later, earlier, "--output", "json=-"]) == 0
    out, err = capsys.readouterr()
    data = valid("diff", out)
    assert (data["ordered"], data["older"]["path"], data["newer"]["path"]) == (True, "checkpoint-3", "checkpoint-7")
    assert data["identical"] == ["0.weight"]
    ways = [m["rel_travel"] for m in data["moved"]]
    assert len(ways) == 5
    assert ways == sorted(ways, key=lambda way: -(way or float("inf")))
    assert {m["recovered_lr"] for m in data["moved"]} == {None}
    assert {"what": "group 0 step", "before": 3, "after": 7} in data["groups"]
    assert [(s["role"], len(s["changed"]), len(s["identical"])) for s in data["others"]] == [
        ("exp_avg", 5, 0), ("exp_avg_sq", 5, 0),
    ]  # fmt: skip
    assert err.startswith("older: checkpoint-3 (torch-zip, step 3, 16 tensors)\nnewer: checkpoint-7 ")
    assert "1 of 6 parameters are bit-identical: 0.weight" in err
    assert "group 0 step: 3 → 7" in err
    assert err.endswith("5 parameters changed, 1 bit-identical\n")


def test_diff_recovers_the_learning_rate_of_one_step(here, trained, capsys, valid):
    run = trained("run", [5, 6], lr=3e-3)
    assert main(["diff", str(run / "checkpoint-5"), str(run / "checkpoint-6"), "--output", "json=-"]) == 0
    out, err = capsys.readouterr()
    moved = valid("diff", out)["moved"]
    recovered = [m["recovered_lr"] for m in moved if m["recovered_lr"] is not None]
    assert recovered == pytest.approx([3e-3] * len(recovered), rel=1e-2)
    assert len(recovered) >= 4
    assert "weight decay" in err
    assert "0.003" in err


def test_diff_names_what_appeared_vanished_and_has_another_shape(here, save, torch, capsys, valid):
    old = save(
        "old.pt", {"kept": torch.ones(3), "gone": torch.ones(1), "grown": torch.ones(2, 2), "cast": torch.ones(2)}
    )
    new = save(
        "new.pt",
        {"kept": torch.ones(3), "come": torch.ones(1), "grown": torch.ones(2, 3), "cast": torch.ones(2).half()},
    )
    assert main(["diff", str(old), str(new), "--output", "json=-"]) == 0
    out, err = capsys.readouterr()
    data = valid("diff", out)
    assert [t["name"] for t in data["appeared"]] == ["come"]
    assert [t["name"] for t in data["vanished"]] == ["gone"]
    assert [(r["before"]["shape"], r["after"]["shape"]) for r in data["reshaped"]] == [([2, 2], [2, 3]), ([2], [2])]
    assert [r["after"]["dtype"] for r in data["reshaped"]] == ["float32", "float16"]
    assert not data["ordered"]
    assert "their steps do not tell which one is older" in err
    assert "grown: float32 [2, 2] → float32 [2, 3]" in err


def test_diff_tells_checkpoints_of_one_name_apart(here, trained, capsys):
    one, other = trained("one", [2]), trained("other", [2], lr=2e-3)
    assert main(["diff", str(one / "checkpoint-2"), str(other / "checkpoint-2")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("first: one/checkpoint-2 (")
    assert "\nsecond: other/checkpoint-2 (" in out
    assert "group 0 lr: 0.001 → 0.002" in out


def test_diff_of_a_parameter_that_became_nan_shows_it_first(here, save, torch, capsys):
    before = save("before.pt", {"a": torch.ones(4), "b": torch.ones(4), "c": torch.ones(4)})
    broken = torch.ones(4)
    broken[1] = float("nan")
    after = save("after.pt", {"a": torch.ones(4) * 9, "b": broken, "c": torch.ones(4)})
    assert main(["diff", str(before), str(after)]) == 0
    out = capsys.readouterr().out
    table = out[out.index("  parameter") :].splitlines()
    assert [line.split()[0] for line in table[1:3]] == ["b", "a"]
    assert table[1].split()[-1] == "1"


# -- without torch ----------------------------------------------------------------------------------------------------


def test_nothing_needs_torch_or_safetensors(here, trained, torch, tmp_path, monkeypatch):
    from safetensors.torch import save_file

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # a report says when it was made
    run = trained("run", [1, 2])
    save_file({"w": torch.ones(2, 2)}, tmp_path / "run" / "checkpoint-2" / "model.safetensors")
    (run / "log.jsonl").write_text("\n".join(json.dumps({"step": s, "loss": 2 + 2 / s}) for s in range(1, 101)))
    for command in (
        ["scan", str(run)],
        ["diff", str(run / "checkpoint-1"), str(run / "checkpoint-2")],
        ["analyze", str(run), "--output", "json=-", "--output", f"html={here / 'report.html'}"],
    ):
        done = [
            subprocess.run([sys.executable, *how, *command], capture_output=True, text=True, check=False)
            for how in (["-c", BLOCKED], ["-m", "gradforensics"])
        ]
        assert done[0].returncode == done[1].returncode == 0, done[0].stderr
        assert done[0].stdout == done[1].stdout
        assert "checkpoint-2" in done[0].stdout


# -- real checkpoints of every framework ------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="the collection of real checkpoints is not here")
@pytest.mark.parametrize("name", sorted(p.name for p in SHARED.iterdir() if p.name != "how") if SHARED.is_dir() else [])
def test_real_checkpoints_are_read_whole(here, capsys, valid, name):
    failing = ["--fail-on", "nonfinite", "--fail-on", "damaged", "--fail-on", "dangerous"]
    assert main(["scan", str(SHARED / name), *failing, "--output", "json=-"]) == 0
    data = valid("scan", capsys.readouterr().out)
    assert all(checkpoint["complete"] for checkpoint in data["checkpoints"])
    assert all(tensor["fingerprint"] for tensor in data["tensors"])
