"""`gradforensics replay`: what it starts from, what it says before it runs anything, exit codes, and what it leaves."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradforensics import capsule as formats
from gradforensics import experiments
from gradforensics.cli import main
from gradforensics.errors import CapsuleError, NoEvidenceError, OutputError, UsageError
from gradforensics.experiments import Result
from gradforensics.replay import command, parent, sources
from gradforensics.replay.sources import Wanted

PROGRAMS = Path(__file__).parent / "programs"
FAULTY = PROGRAMS / "faulty.py"
PARENT = (
    "import sys; from gradforensics.cli import main; code = main(sys.argv[1:]);"
    "print('torch' in sys.modules); sys.exit(code)"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def replay(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-c", PARENT, "replay", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=600, cwd=folder, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def contents(folder):
    return {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in folder.rglob("*")}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory, capsules):
    """A replay of a healthy step with the program that its capsule brings along."""
    folder = tmp_path_factory.mktemp("healthy")
    run = folder / "run"
    capsules.write(run, 7)
    (run / "log.jsonl").write_text("".join(json.dumps({"step": s, "loss": 3 - s / 10}) + "\n" for s in range(1, 10)))
    before = contents(run)
    done = replay(
        folder, "run", "--trust-run-code", "--budget", 4, "--experiment", "severed", "--experiment", "anomaly",
        "--experiment", "reproduce",
    )  # fmt: skip
    return folder, done, before


def test_a_healthy_step_ends_with_0_and_the_parent_never_imports_torch(healthy):
    _, done, _ = healthy
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def test_the_code_is_named_before_it_runs_with_its_hash_and_what_allowed_it(healthy):
    folder, done, _ = healthy
    file = folder / "run" / "capsules" / "capsule-00000007" / "code" / "faulty.py"
    digest = hashlib.sha256(FAULTY.read_bytes()).hexdigest()
    assert f"runs build of {file} (sha256 {digest}), allowed by --trust-run-code" in done.stderr
    header = json.loads((folder / "gradforensics-replay-run-7" / "replay.json").read_text())
    assert header["code"] == [
        {"file": str(file), "function": "build", "sha256": digest, "allowed_by": "--trust-run-code"}
    ]
    assert (header["finished"], header["run"], header["step"], header["device"]) == (True, "run", 7, "cpu")
    assert header["environment"]["torch"] == torch.__version__


def test_the_run_directory_stays_as_it_was(healthy):
    folder, _, before = healthy
    assert contents(folder / "run") == before


def test_the_logged_loss_is_compared(healthy):
    folder, done, _ = healthy
    assert "the run's log says loss 2.3 at step 7 (log.jsonl:7)" in done.stderr
    lines = (folder / "gradforensics-replay-run-7" / "experiments.jsonl").read_text().splitlines()
    (result,) = [json.loads(line) for line in lines if '"reproduce"' in line]
    assert "different" in [q["text"] for q in result["quantities"] if q["name"] == "agreement"]


def test_costs_are_stated_and_the_budget_leaves_out_what_does_not_fit(healthy):
    _, done, _ = healthy
    assert "steps on cpu: reproduce 3, anomaly 1, severed " in done.stderr
    assert "It costs up to " in done.stdout
    assert "--budget leaves 0" in done.stdout


def test_experiments_are_shown_in_the_order_of_their_questions_and_the_next_command_follows(healthy):
    _, done, _ = healthy
    places = [done.stdout.index(name) for name in ("reproduce  Does", "anomaly  Where", "severed  Which")]
    assert places == sorted(places)
    assert done.stdout.splitlines()[-2] == "gradforensics analyze run --with gradforensics-replay-run-7"
    assert done.stderr.count("%") == 0  # no bar in a pipe


def test_a_fault_ends_with_1(tmp_path, capsules):
    def spoil(batches):
        batches[1][0][2, 3] = float("nan")

    capsules.write(tmp_path / "run", 7, spoil=spoil, own=False)
    program = f"{FAULTY}:build"
    done = replay(tmp_path, "run", "--program", program, "--experiment", "anomaly", "-o", "out")
    assert done.returncode == 1, done.stderr
    assert "allowed by --program" in done.stderr
    (line,) = (tmp_path / "out" / "experiments.jsonl").read_text().splitlines()
    texts = {q["name"]: q["text"] or q["value"] for q in json.loads(line)["quantities"]}
    assert (texts["phase"], texts["micro_batch"], texts["sample"]) == ("batch", 1, 2)


def test_a_step_is_reached_from_a_checkpoint_with_the_programs_batches(tmp_path, capsules):
    made = capsules.build()
    capsules.torch_checkpoint(
        tmp_path / "run" / "checkpoint-4.pt", 4, made["model"], torch.optim.AdamW(made["model"].parameters())
    )
    done = replay(
        tmp_path, "run", "--step", 6, "--program", f"{FAULTY}:build", "--experiment", "reproduce", "-o", "out"
    )
    assert done.returncode == 0, done.stderr
    assert "from checkpoint-4.pt (the state after step 4)" in done.stderr
    assert '"state": "checkpoint-4.pt' in (tmp_path / "out" / "replay.json").read_text()


# -- programs that cannot be built ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import nosuchmodule\n", "broken.py:1: ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("def build(:\n", "broken.py:1: SyntaxError"),
        ("def build(request):\n    return {'model': undefined}\n", "broken.py:2: NameError: name 'undefined'"),
        ("import os\ndef build():\n    os._exit(3)\n", "exit code 3 while the program and its state were prepared"),
    ],
)
def test_a_program_that_cannot_be_built_is_told_in_one_message(tmp_path, capsules, code, complaint):
    capsules.write(tmp_path / "run", 7, own=False)
    (tmp_path / "broken.py").write_text(code)
    done = replay(tmp_path, "run", "--program", "broken.py:build", "-o", "out")
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "__pycache__").exists()


# -- what is refused before anything runs ------------------------------------------------------------------------------


def test_code_in_the_evidence_is_not_run_unasked(here, tmp_path, capsules, capsys):
    capsules.write(tmp_path / "run", 7)
    assert main(["replay", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "code/faulty.py" in err
    assert "--trust-run-code" in err
    assert "--program" in err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["../../../../outside.py", "/etc/hostname", "linked.py", "missing.py"])
def test_a_capsule_cannot_name_a_program_outside_of_it(here, tmp_path, capsules, capsys, name):
    (tmp_path / "outside.py").write_text("raise SystemExit(9)")
    folder = capsules.write(tmp_path / "run", 7)
    (folder / "code" / "linked.py").symlink_to(tmp_path / "outside.py")
    header = json.loads((folder / formats.HEADER).read_text())
    header["program"]["file"] = name
    (folder / formats.HEADER).write_text(json.dumps(header))
    assert main(["replay", str(tmp_path / "run"), "--trust-run-code"]) == 4
    assert "is not there" in capsys.readouterr().err


def test_a_capsule_cannot_steer_the_terminal(here, tmp_path, capsules, capsys):
    program = formats.Program("function", "faulty.py", "build\x1b[2J", "", {})
    capsules.write(tmp_path / "run", 7, program=program, text="\x1b]0;owned\x07")
    assert main(["replay", str(tmp_path / "run"), "--trust-run-code"]) == 4
    assert "\x1b" not in capsys.readouterr().err
    found = sources.choose(Wanted(capsules.write(tmp_path / "other", 7, text="\x1b]0;owned\x07"), trust=True))
    assert "\x1b" not in found.text


def test_a_configuration_that_wants_foreign_code_is_refused(here, tmp_path, capsules, capsys):
    for config, code in (({"auto_map": {"AutoModel": "x.Y"}}, 2), ({"nested": [{"auto_map": "z"}]}, 2)):
        program = formats.Program("huggingface", "", "LlamaForCausalLM", "", {"config": config})
        run = tmp_path / f"run{len(str(config))}"
        capsules.write(run, 7, program=program)
        assert main(["replay", str(run)]) == code
        assert "auto_map" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["nowhere"], 2, "nowhere: no such directory"),
        ([""], 2, "a PATH is empty"),
        (["RUN/log.jsonl"], 2, "is no directory"),
        (["RUN"], 2, "there are capsules of steps 7, 9"),
        (["RUN", "--step", "8"], 4, "No capsule of that step (there are some of steps 7, 9); no checkpoint"),
        (["RUN", "--step", "7", "--rank", "3"], 4, "No capsule of that step"),
        (["RUN", "--rank", "3"], 2, "no capsule of rank 3; there are some of ranks 0, 1"),
        (["RUN", "--step", "7", "--program", "train.py"], 2, "write --program FILE.py:FUNCTION"),
        (["RUN", "--step", "7", "--program", "nowhere.py:build"], 2, "no such file"),
        (["RUN", "--step", "7", "--fix", "nowhere.py:build"], 2, "--fix nowhere.py:build"),
        (["RUN", "--step", "7", "--experiment", "fix"], 2, "needs --fix"),
        (["RUN", "--step", "7", "--experiment", "magic"], 2, "magic"),
        (["RUN", "--step", "7", "--from", "nowhere"], 2, "nowhere: no such file"),
        (["RUN", "--step", "7", "--batch", "RUN/log.jsonl"], 2, "--batch goes with a checkpoint"),
        (["RUN", "--step", "7", "--trust-run-code", "-o", "RUN/out"], 2, "inside the run directory"),
        (["RUN/capsules/capsule-00000007", "--trust-run-code", "-o", "RUN/out"], 2, "inside the run directory"),
        (["RUN", "--step", "7", "--trust-run-code", "-o", "RUN/../foreign"], 2, "was not written by a replay"),
        (["RUN", "--step", "7", "--time-limit", "0"], 2, "0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(here, tmp_path, capsules, capsys, arguments, code, complaint):
    run = tmp_path / "run"
    capsules.write(run, 7)
    capsules.write(run, 9)
    capsules.write(run, 9, rank=1, world_size=2)
    (run / "log.jsonl").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    assert main(["replay", *[a.replace("RUN", str(run)) for a in arguments]]) == code
    assert complaint in capsys.readouterr().err
    assert list(here.iterdir()) == []
    assert [p.name for p in (tmp_path / "foreign").iterdir()] == ["thesis.txt"]


# -- where state and program come from ---------------------------------------------------------------------------------


def test_the_capsule_of_the_step_and_rank_is_taken_and_its_run_found(tmp_path, capsules):
    run = tmp_path / "run"
    first, other = (capsules.write(run, 7, rank=rank, world_size=2) for rank in (0, 1))
    # the folder of rank 0 of several is called capsule-00000007-rank0
    for rank, folder in ((0, first), (1, other)):
        found = sources.choose(Wanted(run, 7, trust=True, rank=rank))
        assert found.state.capsule == str(folder.resolve())
    alone = sources.choose(Wanted(other, trust=True, rank=1))
    assert (alone.run, alone.name, alone.step) == (run.resolve(), "run", 7)


def test_a_checkpoint_is_taken_where_there_is_no_capsule_and_never_one_of_a_later_step(tmp_path, capsules):
    run = tmp_path / "run"
    model = torch.nn.Linear(2, 2)
    capsules.write(run, 5)
    for step in (3, 6, 8):
        capsules.torch_checkpoint(run / f"checkpoint-{step}.pt", step, model)
    wanted = Wanted(run, 8, program=f"{FAULTY}:build")
    found = sources.choose(wanted)
    assert (Path(found.state.checkpoint).name, found.state.first) == ("checkpoint-6.pt", 7)
    earlier = sources.choose(Wanted(run, 8, run / "checkpoint-3.pt", wanted.program))
    assert earlier.state.first == 4
    assert [Path(one).name for one in earlier.state.capsules] == ["capsule-00000005"]
    with pytest.raises(UsageError, match="the first step to run from it is 9"):
        sources.choose(Wanted(run, 8, run / "checkpoint-8.pt", wanted.program))


def test_what_is_missing_for_a_checkpoint_is_said(tmp_path, capsules):
    run = tmp_path / "run"
    capsules.torch_checkpoint(run / "checkpoint-6.pt", 6, torch.nn.Linear(2, 2))
    with pytest.raises(NoEvidenceError, match=r"config.json of transformers beside it and --batch FILE is miss"):
        sources.choose(Wanted(run, 7))
    (run / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(NoEvidenceError, match="for that --batch FILE is missing"):
        sources.choose(Wanted(run, 7))
    (tmp_path / "batch.json").write_text("{}")
    with pytest.raises(NoEvidenceError, match="the batches of steps 7 to 8 are not known"):
        sources.choose(Wanted(run, 9, batch=tmp_path / "batch.json"))
    found = sources.choose(Wanted(run, 7, batch=tmp_path / "batch.json"))
    assert (found.program.kind, found.program.function, found.codes) == ("huggingface", "LlamaForCausalLM", [])


def test_a_replay_directory_of_ours_is_written_again_and_what_lies_beside_is_kept(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    command._make(folder, force=False)
    (folder / "replay.json").write_text(json.dumps({"tool": "gradforensics 0.1.0"}))
    (folder / "experiments.jsonl").write_text("old")
    (folder / "note.txt").write_text("mine")
    command._make(folder, force=False)
    assert sorted(p.name for p in folder.iterdir()) == ["note.txt", "stderr.txt", "stdout.txt"]
    with pytest.raises(OutputError, match="--force"):
        command._make(folder, force=False)
    command._make(folder, force=True)
    assert (folder / "note.txt").read_text() == "mine"


def test_two_capsules_of_a_step_are_told_apart_by_name(tmp_path, capsules):
    for name in ("first", "second"):
        capsules.write(tmp_path / name, 7)
    with pytest.raises(UsageError, match=r"two capsules of step 7, first/capsules/.* and second/capsules/"):
        sources.choose(Wanted(tmp_path, 7, trust=True))
    capsules.write(tmp_path / "second", 8)
    found = sources.choose(Wanted(tmp_path, 8, trust=True))
    assert (found.run, found.name) == (tmp_path / "second", "second")


def test_the_run_of_a_capsule_is_found_from_the_folder_of_capsules_too(tmp_path, capsules):
    capsules.write(tmp_path / "run", 7)
    found = sources.choose(Wanted(tmp_path / "run" / "capsules", trust=True))
    assert (found.run, found.name) == (tmp_path / "run", "run")
    planned = command.plan(command.Options(Wanted(tmp_path / "run" / "capsules", trust=True)))
    assert tmp_path / "run" in planned.inputs


def test_a_capsule_that_is_not_of_the_step_in_its_name_is_refused(tmp_path, capsules):
    folder = capsules.write(tmp_path / "run", 9)
    folder.rename(folder.with_name("capsule-00000007"))
    with pytest.raises(CapsuleError, match="it is of step 9 and rank 0, its folder is called capsule-00000007"):
        sources.choose(Wanted(tmp_path / "run", 7, trust=True))


@pytest.mark.parametrize("name", ["a\0b.py", "\ud800.py", "x" * 5000, "../capsule.json", "circle.py"])
def test_a_strange_name_of_a_program_is_no_way_out_of_the_capsule(tmp_path, capsules, name):
    folder = capsules.write(tmp_path / "run", 7)
    (folder / "code" / "circle.py").symlink_to("circle.py")
    header = json.loads((folder / formats.HEADER).read_text())
    header["program"]["file"] = name
    (folder / formats.HEADER).write_text(json.dumps(header))
    with pytest.raises(CapsuleError, match="is not there"):
        sources.choose(Wanted(tmp_path / "run", trust=True))


def test_a_message_that_quotes_the_evidence_cannot_steer_the_terminal(here, tmp_path, capsules, capsys):
    folder = capsules.write(tmp_path / "run", 7)
    header = json.loads((folder / formats.HEADER).read_text())
    header["tied"] = {"\x1b[2J": 1}
    (folder / formats.HEADER).write_text(json.dumps(header))
    assert main(["replay", str(tmp_path / "run"), "--trust-run-code"]) == 4
    err = capsys.readouterr().err
    assert "\\x1b[2J" in err
    assert "\x1b" not in err


@pytest.mark.parametrize("option", ["--memory-limit=nan", "--memory-limit=inf", "--time-limit=nan", "--budget=nan"])
def test_limits_that_are_no_numbers_are_refused(here, tmp_path, capsules, capsys, option):
    capsules.write(tmp_path / "run", 7)
    assert main(["replay", str(tmp_path / "run"), "--trust-run-code", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err


def test_ranks_get_directories_of_their_own(tmp_path, capsules):
    names = []
    for rank in (0, 1):
        capsules.write(tmp_path / "run", 7, rank=rank, world_size=2)
        names.append(command.plan(command.Options(Wanted(tmp_path / "run", 7, trust=True, rank=rank))).default_name)
    assert names == ["gradforensics-replay-run-7", "gradforensics-replay-run-7-rank1"]


# -- the replay directory ----------------------------------------------------------------------------------------------


@pytest.fixture
def unrun(tmp_path, capsules, monkeypatch):
    """A plan, and what its replay does instead of starting a child."""
    capsules.write(tmp_path / "run", 7)
    planned = command.plan(command.Options(Wanted(tmp_path / "run", trust=True)))

    def carry_out(folder, instead=lambda _: None):
        monkeypatch.setattr(parent, "run", lambda *arguments: instead(arguments[-1]))
        return command.carry_out(planned, folder, force=False, say=lambda _: None)

    return carry_out


RESULT = Result("anomaly", 7, "?", "nothing", "\udcff", "", "clean")


def test_two_replays_do_not_write_into_one_directory(unrun, tmp_path):
    def second(listener):
        listener.on_result(RESULT)
        with pytest.raises(OutputError, match="another replay is writing into"):
            unrun(tmp_path / "out")

    unrun(tmp_path / "out", second)
    assert len((tmp_path / "out" / "experiments.jsonl").read_text().splitlines()) == 1
    unrun(tmp_path / "out")


def test_names_that_are_no_utf8_are_written_and_read(unrun, tmp_path):
    unrun(tmp_path / "out", lambda listener: listener.on_result(RESULT))
    assert json.loads((tmp_path / "out" / "experiments.jsonl").read_text())["result"] == "\udcff"


def test_a_full_disk_is_told_and_what_was_found_is_kept(unrun, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def instead(listener):
        listener.on_result(RESULT)
        with monkeypatch.context() as patched:
            patched.setattr(experiments, "append", full)
            listener.on_result(RESULT)

    with pytest.raises(OutputError, match="out: No space left on device"):
        unrun(tmp_path / "out", instead)
    assert json.loads((tmp_path / "out" / "replay.json").read_text())["finished"] is False
    with monkeypatch.context() as patched:
        patched.setattr(experiments, "write_header", full)
        with pytest.raises(OutputError, match="No space left"):
            unrun(tmp_path / "other")
    unrun(tmp_path / "other")  # what was left there is ours


def test_nothing_is_written_through_a_link_that_lies_in_the_directory(unrun, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "replay.json").write_text('{"tool": "gradforensics"}')
    (tmp_path / "mine.txt").write_text("mine")
    for name in (".replay.json.partial", "experiments.jsonl", "stdout.txt", "job.json"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "mine.txt")
    unrun(tmp_path / "out", lambda listener: listener.on_result(RESULT))
    assert (tmp_path / "mine.txt").read_text() == "mine"
