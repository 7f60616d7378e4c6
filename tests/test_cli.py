"""The command line: exit codes, outputs, and what a user sees when something is wrong."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradforensics import COMMANDS, cli
from gradforensics.cli import commands, main
from gradforensics.progress_bar import Bar
from tests.report.page import shown

GOOD = "\n".join(json.dumps({"step": s, "loss": 2 + 2 / s, "lr": 1e-4}) for s in range(1, 101))
BAD = "\n".join(
    json.dumps({"step": s, "loss": 2 + 2 / s if s < 60 else float("nan"), "lr": 1e-4}) for s in range(1, 101)
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run_of(tmp_path):
    def make(text, name="run"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "log.jsonl").write_text(text)
        return folder

    return make


def test_a_healthy_run_ends_with_0_and_writes_the_report(here, run_of, capsys):
    assert main(["analyze", str(run_of(GOOD))]) == 0
    assert (here / "gradforensics-report.html").read_text().startswith("<!")
    assert "gradforensics-report.html" in capsys.readouterr().out


def test_findings_end_with_1_and_fail_on_decides(here, run_of, capsys):
    run = run_of(BAD)
    assert main(["analyze", str(run)]) == 1
    assert "GF11" in capsys.readouterr().out
    tiny = run_of("\n".join(json.dumps({"step": s, "loss": 4.17, "lr": 1e-6}) for s in range(1, 101)), "tiny")
    assert main(["analyze", str(tiny)]) == 0
    assert main(["analyze", str(tiny), "--fail-on", "S3"]) == 1


def test_json_on_stdout_is_alone_there(here, run_of, capsys):
    main(["analyze", str(run_of(BAD)), "--output", "json=-"])
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"][0]["primary"] == "GF11"
    assert "GF11" in err


def test_a_single_file_is_a_run_and_columns_can_be_mapped(here, tmp_path, capsys):
    file = tmp_path / "loss.csv"
    file.write_text("step,objective\n" + "".join(f"{s},{3 - s / 100}\n" for s in range(1, 101)))
    assert main(["analyze", str(file), "--map", "objective=loss", "--output", "json=-"]) == 0
    series = json.loads(capsys.readouterr().out)["runs"][0]["series"]
    assert [(s["series"], s["tag"], s["points"]) for s in series] == [("loss", "objective", 100)]


def test_set_gives_facts_that_the_files_lack(here, run_of, capsys):
    rows = "\n".join(json.dumps({"step": s, "loss": 3.0, "lr": 3e-4}) for s in range(1, 101))
    facts = ["--set", "lr_scheduler_type=cosine", "--set", "max_steps=100", "--set", "learning_rate=3e-4"]
    assert main(["analyze", str(run_of(rows)), *facts, "--output", "json=-"]) == 1
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert run["primary"] == "GF07"


def test_a_run_is_judged_beside_a_baseline(here, run_of, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    (other / "log.jsonl").write_text(GOOD)
    (other / "config.json").write_text(json.dumps({"learning_rate": 1e-3, "weight_decay": 0.1, "max_steps": 60}))
    run = run_of(GOOD.replace("}", ', "epoch": 1}'))
    (run / "config.json").write_text(json.dumps({"learning_rate": 2e-3, "weight_decay": 0.1, "max_steps": 60}))
    assert main(["analyze", str(run), "--baseline", str(other), "--output", "json=-"]) == 0
    out, err = capsys.readouterr()
    compared = json.loads(out)["runs"][0]["compared"]
    assert compared["path"] == str(other)
    assert compared["differences"] == [{"key": "learning_rate", "here": 2e-3, "there": 1e-3}]
    assert "1 setting differs: learning_rate" in err
    page = shown((here / "gradforensics-report.html").read_text())
    assert "Settings that differ from the compared run (1)" in page
    assert sum(s["path"] == "log.jsonl" for s in json.loads(out)["sources"]) == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["analyze", "nowhere"], "nowhere"),
        (["analyze", "RUN", "--baseline", "nowhere"], "nowhere"),
        (["analyze"], "Missing argument"),
        (["analyze", ""], "a PATH is empty"),
        (["analyze", "RUN", "--output", "json="], "names no path"),
        (["analyze", "RUN", "--map", "loss="], "loss"),
        (["analyze", "RUN", "--output", "xml=x.xml"], "no format 'xml'"),
        (["analyze", "RUN", "--output", "json"], "--output NAME=VALUE"),
        (["analyze", "RUN", "--set", "x"], "--set NAME=VALUE"),
        (["analyze", "RUN", "-o", "RUN/report.html"], "inside the run directory"),
        (["analyze", "RUN", "-o", "a.html", "--output", "json=a.html"], "the same path"),
        (["analyze", "RUN", "--output", "json=-", "--output", "html=-"], "only one output"),
        (["analyze", "RUN", "-o", "missing/report.html"], "does not exist"),
        (["analyze", "RUN", "--rules", "nowhere"], "no rule files"),
        (["analyze", "RUN", "--fail-on", "S9"], "S9"),
        (["rules", "show", "GF99"], "no rule 'GF99'"),
    ],
)
def test_usage_errors_end_with_2_and_say_why(here, run_of, capsys, arguments, complaint):
    run = str(run_of(GOOD))
    assert main([a.replace("RUN", run) for a in arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_no_evidence_ends_with_4(here, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["analyze", str(tmp_path / "empty")]) == 4
    assert "gradforensics:" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_the_default_report_never_falls_into_the_run_directory(tmp_path, monkeypatch, run_of):
    run = run_of(GOOD)
    monkeypatch.chdir(run)
    assert main(["analyze", "."]) == 0
    assert sorted(p.name for p in run.iterdir()) == ["log.jsonl"]
    assert (tmp_path / "gradforensics-report.html").exists()


def test_a_foreign_file_is_not_overwritten_without_force(here, run_of, capsys):
    run = str(run_of(GOOD))
    (here / "thesis.html").write_text("mine")
    assert main(["analyze", run, "-o", "thesis.html"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (here / "thesis.html").read_text() == "mine"
    assert main(["analyze", run, "-o", "thesis.html", "--force"]) == 0
    assert main(["analyze", run, "-o", "thesis.html"]) == 0  # now it is ours


def test_a_bad_rule_file_ends_with_2_and_names_file_and_line(here, run_of, tmp_path, capsys):
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "x.toml").write_text('id = "TT01"\nslug = 3\n')
    assert main(["analyze", str(run_of(GOOD)), "--rules", str(tmp_path / "rules")]) == 2
    assert "x.toml" in capsys.readouterr().err


def test_an_internal_error_ends_with_3_without_a_traceback(here, run_of, capsys, monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("told you")

    monkeypatch.setattr("gradforensics.diagnosis.causes.diagnose", broken)
    assert main(["analyze", str(run_of(GOOD))]) == 3
    err = capsys.readouterr().err
    assert "ZeroDivisionError: told you" in err
    assert "Traceback" not in err
    details = Path(err.rsplit(": ", 1)[1].strip())
    assert "Traceback" in details.read_text()
    details.unlink()


def test_ctrl_c_leaves_no_output_and_no_traceback(here, run_of):
    run = run_of(GOOD)
    code = (
        "import sys, time, gradforensics.diagnosis.causes as c\n"
        "def slow(*a, **k):\n    print('ready', flush=True)\n    time.sleep(30)\n"
        "c.diagnose = slow\nfrom gradforensics.cli import main\nsys.exit(main(['analyze', sys.argv[1]]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert list(here.iterdir()) == []


def test_a_closed_pipe_is_no_error(run_of, here):
    command = f"{sys.executable} -m gradforensics rules list | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("GF01")
    assert "Traceback" not in done.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from gradforensics.cli import main; main(['--help']);"
        "print(sorted({'torch','polars','numpy','scipy','jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_an_analysis_of_logs_imports_neither_torch_nor_scipy_nor_what_opens_checkpoints(run_of, here):
    code = (
        "import sys; from gradforensics.cli import main; main(['analyze', sys.argv[1]]);"
        "heavy = {'torch','scipy','rich','ruamel','gradforensics.checkpoints.load','gradforensics.untrusted.pickles'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run_of(GOOD))], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_every_command_and_option_has_help():
    def walk(group):
        for name, command in group.commands.items():
            assert command.help, f"{name} has no help"
            if hasattr(command, "commands"):
                walk(command)
            else:
                for parameter in command.params:
                    if parameter.opts[0].startswith("-"):
                        assert parameter.help, f"{parameter.opts} has no help"

    walk(commands)


def test_the_package_knows_its_commands():
    assert set(commands.commands) == set(COMMANDS)


def test_tensors_can_be_listed_without_being_measured(here, run_of, capsys):
    import struct

    run = run_of(GOOD)
    (run / "checkpoint-50").mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    file = run / "checkpoint-50" / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", float("nan")))
    for option, nonfinite in ([], 1), (["--no-tensors"], None):
        main(["analyze", str(run), "--output", "json=-", *option])
        (row,) = json.loads(capsys.readouterr().out)["runs"][0]["checkpoints"]
        assert (row["path"], row["tensors"], row["nonfinite"]) == ("checkpoint-50", 1, nonfinite)


def test_the_progress_bar_says_what_is_being_done(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Bar() as bar:
        bar("opening checkpoints", 1, 2)
        assert vars(bar)["_bar"] is None  # not in the first second
        bar._start -= 2.0
        for what, done, total in (
            ("opening checkpoints", 1, 2),
            ("measuring tensors", 0, 90),
            ("measuring tensors", 30, 90),
        ):
            bar(what, done, total)
            (task,) = bar._bar[0].tasks
            assert (task.description, task.completed, task.total) == (what, done, total)
        bar("reading", 1_500_000, 3_000_000)
        assert (task.description, task.completed) == ("reading 1.5 MB of 3.0 MB", 1_500_000)


def test_rules_show_and_list(capsys):
    assert main(["rules", "show", "lr-too-high", "--lang", "zh"]) == 0
    assert "学习率" in capsys.readouterr().out
    assert main(["rules", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = Path(cli.__file__).parent.parent / "rules"
    assert len(lines) == len(list(folder.rglob("*.toml")))
    assert not [line for line in lines if "this version has no test for it" in line]


def test_rules_check_runs_the_examples(tmp_path, capsys):
    folder = Path(cli.__file__).parent.parent / "rules"
    assert main(["rules", "check", str(folder)]) == 0
    text = (folder / "learning-rate" / "lr-too-low.toml").read_text()
    (tmp_path / "low.toml").write_text(text.replace("clear  = true", "fires_at = 3"))
    assert main(["rules", "check", str(tmp_path)]) == 2
    assert "should fire" in capsys.readouterr().err


def test_nothing_is_written_into_the_run_directory(run_of, here):
    run = run_of(BAD)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*")}
    run.chmod(0o555)
    main(["analyze", str(run)])
    run.chmod(0o755)
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*")} == before


def test_several_runs_keep_their_sources_apart(here, tmp_path, run_of, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run_of(GOOD if name == "a" else BAD, f"{name}/run")
    assert main(["analyze", str(tmp_path / "a/run"), str(tmp_path / "b/run"), "--output", "json=-"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert len(report["sources"]) == 2
    assert len({s["path"] for s in report["sources"]}) == 2
    assert len({r["name"] for r in report["runs"]}) == 2


def test_the_html_goes_to_stdout_on_request(here, run_of, capsys):
    assert main(["analyze", str(run_of(GOOD)), "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!")
    assert list(here.iterdir()) == []


def test_a_defect_of_one_check_does_not_cost_the_others(here, run_of, capsys, monkeypatch):
    from dataclasses import replace

    from gradforensics.diagnosis.checks import CHECKS

    def broken(_evidence, **_arguments):
        raise ZeroDivisionError("told you")

    monkeypatch.setitem(CHECKS, "left_best_level", replace(CHECKS["left_best_level"], function=broken))
    assert main(["analyze", str(run_of(BAD)), "--output", "json=-"]) == 1
    verdicts = {v["rule"]: v for v in json.loads(capsys.readouterr().out)["runs"][0]["verdicts"]}
    assert verdicts["GF11"]["outcome"] == "fired"
    assert any("defect of this tool" in m for m in verdicts["GF05"]["missing"])


def test_a_replay_decides_and_a_wrong_folder_is_a_usage_error(here, run_of, tmp_path, capsys):
    from gradforensics.experiments import Quantity, Replay, Result, append, write_header
    from gradforensics.questions import QUESTIONS

    folder = tmp_path / "replay"
    folder.mkdir()
    write_header(folder, Replay("gradforensics 0", "run", 60, "cpu", "capsule", finished=True))
    quantities = (Quantity("trainable", 9.0), Quantity("severed", 4.0), Quantity("module", text="blocks.0"))
    question = QUESTIONS["severed"]
    append(folder, Result("severed", 60, question, "nothing", "4 of 9", "Cut at blocks.0.", "fault", quantities))
    run = str(run_of(GOOD))
    assert main(["analyze", run]) == 0
    assert main(["analyze", run, "--with", str(folder), "--output", "json=-"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out[out.index("{") :])["runs"][0]
    assert found["primary"] == "GF01"
    assert [one["step"] for one in found["replays"]] == [60]
    assert "Cut at blocks.0." in err
    assert main(["analyze", run, "--with", run]) == 2
    assert "no replay directory" in capsys.readouterr().err
    assert main(["analyze", run, "--with", ""]) == 2


def test_analyze_with_a_replay_loads_no_torch(run_of, tmp_path):
    from gradforensics.experiments import Replay, write_header

    folder = tmp_path / "replay"
    folder.mkdir()
    write_header(folder, Replay("gradforensics 0", "run", 60, "cpu", "capsule", finished=True))
    code = (
        "import sys; from gradforensics.cli import main; main(sys.argv[1:]); "
        "print([m for m in ('torch', 'gradforensics.replay', 'gradforensics.recorder') if m in sys.modules])"
    )
    arguments = ["analyze", str(run_of(GOOD)), "--with", str(folder), "-o", str(tmp_path / "r.html")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
