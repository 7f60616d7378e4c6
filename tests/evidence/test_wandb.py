"""W&B's local directories: the binary log of a run and the files beside it."""

import gzip
import io
import json
import math
import random
import struct
import tarfile
import zlib
from pathlib import Path

import pytest

from gradforensics import secrecy
from gradforensics.evidence import protobuf
from gradforensics.evidence.files import File
from gradforensics.evidence.gather import gather
from gradforensics.evidence.readers import wandb_files, wandb_log
from gradforensics.evidence.wandb_log import framing, history, items, output, wire

DATA = Path(__file__).parent / "data" / "wandb"
NEW, OLD = DATA / "0.31.0", DATA / "0.15.12"
VERSIONS = pytest.mark.parametrize("version", [NEW, OLD], ids=["go", "python"])


def folder(version, run):
    return version / f"offline-run-20250102_030405-{run}"


def log_of(version, run):
    return (folder(version, run) / f"run-{run}.wandb").read_bytes()


def read(data, **columns):
    return wandb_log.read(
        File(Path("run-x.wandb"), "run-x.wandb", len(data), columns=columns, opener=lambda: io.BytesIO(data))
    )


def one(path):
    found = gather([path])
    assert len(found) == 1, [e.name for e in found]
    return found[0]


def points(reading, tag):
    track = next(t for t in reading.tracks if t.tag == tag)
    return list(zip(track.stored.frame["step"], track.stored.frame["value"], strict=True))


def notices(reading):
    return [text for _, text in reading.notices]


# -- a writer of such logs ---------------------------------------------------------------------------------------------


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def item(key, value, nested=True):
    """A value as JSON text; of a tuple (field, value) as that typed field."""
    typed = value if isinstance(value, tuple) else (16, value if isinstance(value, bytes) else json.dumps(value))
    return field(2 if nested else 1, key) + field(*typed)


def row(step=None, **values):
    named = values.pop("of", {}) | values
    own = {} if step is None else {"_step": step}
    return field(2, b"".join(field(1, item(k, v)) for k, v in (named | own).items()))


def config(**values):
    return field(17, field(4, b"".join(field(1, item(k, v, nested=False)) for k, v in values.items())))


DONE = field(18, field(1, 0))


def framed(messages, number=True):
    out = bytearray(framing.FILE_HEADER)
    for count, message in enumerate(messages, start=1):
        first, rest = True, field(1, count) + message if number else message
        while first or rest:
            left = framing.BLOCK - len(out) % framing.BLOCK
            if left < 7:
                out += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
    return bytes(out)


def places(data):
    """The offset of every record."""
    file = File(Path("x"), "x", len(data), opener=lambda: io.BytesIO(data))
    return [record.offset for record in framing.records(file)]


# -- the history -------------------------------------------------------------------------------------------------------


@VERSIONS
def test_the_history_becomes_series_over_the_optimizer_steps_with_every_kind_of_number(version):
    evidence = one(folder(version, "full0001"))
    loss = evidence.series("loss")
    assert loss.tag == "train/loss"
    assert loss.step_unit == "step"
    assert loss.steps.tolist() == [i * 10 for i in range(30) if i % 10 != 9]
    assert loss.values[:3].tolist() == [3.0, 1.5, 1.0]
    assert [(s, k) for s, k in zip(loss.steps, loss.kinds, strict=True) if k != "finite"] == [
        (200, "nan"),
        (210, "posinf"),
        (220, "neginf"),
    ]
    assert loss.epochs[:3].tolist() == [0.0, 0.1, 0.2]
    assert (loss.times > 1.7e9).all()
    assert evidence.series("loss", "eval").steps.tolist() == [90, 190, 290]
    assert evidence.series("lr").values[0] == 3e-4
    assert len(evidence.series("elapsed")) == 30
    assert evidence.steps == (0, 290)


@VERSIONS
def test_nested_and_huge_values_are_series_and_media_texts_and_lists_are_counted(version):
    reading = read(log_of(version, "full0001"))
    assert points(reading, "nested.b.c") == [(90, 2.0), (190, 2.0), (290, 2.0)]
    assert points(reading, "big")[0] == (90, 2.0**70)
    assert points(reading, 'odd"key\\')[0] == (90, 1.0)
    tags = {t.tag for t in reading.tracks}
    assert not tags & {"flag", "note", "several", "nothing", "_step", "_timestamp", "train/global_step", "train/epoch"}
    assert not [t for t in tags if t.startswith(("gradients", "examples"))]
    assert sorted(notices(reading)) == [
        '3 values are booleans: no series (key "flag")',
        '3 values are lists: no series (key "several")',
        '3 values are of the type "histogram": no series (key "gradients")',
        '3 values are of the type "table-file": no series (key "examples")',
        '3 values are texts: no series (key "note")',
    ]


def test_typed_values_are_read_as_those_in_json():
    reading = read((NEW / "typed" / "run-typed001.wandb").read_bytes())
    assert points(reading, "loss")[:3] == [(0, 2.0), (5, 1.0), (10, 2.0 / 3)]
    assert points(reading, "loss")[7] == (35, None)
    assert points(reading, "count")[-1] == (55, -33.0)
    assert points(reading, "parts.a")[2] == (10, 0.5)
    assert {t.tag for t in reading.tracks} == {"loss", "count", "parts.a"}
    assert '12 values are booleans: no series (key "flag")' in notices(reading)
    assert '11 values are texts: no series (key "note")' in notices(reading)


def test_numbers_that_are_spelled_as_texts_count():
    reading = read(
        framed([row(10, loss=1.0), row(20, loss="NaN"), row(30, loss="-Infinity"), row(40, loss=b"NaN"), DONE])
    )
    frame = reading.tracks[0].stored.frame
    assert frame["kind"].to_list() == ["finite", "nan", "neginf", "nan"]


def test_the_fast_path_and_the_walk_agree():
    generator = random.Random(3)
    values = [
        0.5,
        -1e-9,
        3,
        math.nan,
        math.inf,
        "x",
        True,
        None,
        [1],
        {"a": 1, "b": {"c": 2}},
        "y" * 300,
        (6, 0.25),
        (5, 7),
    ]
    for _ in range(300):
        chosen = [
            (f"k{generator.randrange(9)}ü.{i}", generator.choice(values)) for i in range(generator.randrange(1, 9))
        ]
        message = b"".join(field(1, item(k, v, generator.random() < 0.5)) for k, v in chosen) + field(2, field(1, 9))
        both = []
        for way in ("read", "_walk"):
            reader = items.Items()
            codes, found, rest = getattr(reader, way)(message)
            both.append(([reader.names[c] for c in codes], list(map(repr, found)), rest))
        assert both[0] == both[1]
        assert both[0][2] == field(2, field(1, 9))


def test_the_step_of_the_record_counts_where_no_value_tells_it():
    rows = []
    for step in (3, 7, 12):
        inner = field(1, item("loss", step / 2)) + field(2, field(1, step))
        rows.append(field(2, inner))
    assert points(read(framed([*rows, DONE])), "loss") == [(3, 1.5), (7, 3.5), (12, 6.0)]


def test_a_key_that_falls_or_is_rare_is_no_step():
    falling = [row(10 * i, of={"batch": i % 4}, loss=1.0 + i) for i in range(12)]
    assert [s for s, _ in points(read(framed([*falling, DONE])), "loss")][:3] == [0, 10, 20]
    rare = [row(10 * i, of={"global_step": i} if i % 4 == 0 else {}, loss=1.0 + i) for i in range(12)]
    assert [s for s, _ in points(read(framed([*rare, DONE])), "loss")][:3] == [0, 10, 20]


def test_the_metric_that_others_are_plotted_over_is_the_step():
    metric = field(12, field(2, "*") + field(4, "seen"))
    reading = read(framed([metric, *(row(i, seen=64 * i, loss=1.0 + i) for i in range(6)), DONE]))
    assert points(reading, "loss")[:2] == [(0, 1.0), (64, 2.0)]


def test_the_user_names_the_step():
    reading = read(framed([*(row(i, n=5 * i, loss=1.0 + i) for i in range(6)), DONE]), n="step")
    assert points(reading, "loss")[:2] == [(0, 1.0), (5, 2.0)]


def unit_of(rows, **settings):
    reading = read(framed([config(**settings), *rows, DONE]))
    return next(t.stored.step_unit for t in reading.tracks if t.tag == "loss"), reading


def test_calls_of_log_are_taken_for_steps_only_where_nothing_speaks_against_it():
    calls = [row(i, loss=1.0 + i) for i in range(20)]
    assert unit_of(calls)[0] == "step"
    assert unit_of(calls, max_steps=20)[0] == "step"
    unit, reading = unit_of(calls, max_steps=2000)
    assert unit == "row"
    assert any("counts the calls of wandb.log()" in text for text in notices(reading))
    assert reading.trail.last_step is None
    assert unit_of(calls, warmup_steps=100)[0] == "row"
    given = [row(100 * i, loss=1.0 + i) for i in range(20)]
    assert unit_of(given, max_steps=200000)[0] == "step"


def test_one_call_of_log_per_epoch_counts_epochs():
    unit, reading = unit_of([row(i, of={"epoch": i + 1}, loss=2.0 - i / 10) for i in range(8)])
    assert unit == "epoch"
    assert points(reading, "loss")[0] == (1, 2.0)
    assert unit_of([row(i + 1, loss=2.0) for i in range(50)], epochs=50)[0] == "epoch"


def test_more_keys_than_anybody_logs_are_cut_and_said(monkeypatch):
    monkeypatch.setattr(items, "KEY_LIMIT", 5)
    reading = read(framed([row(i, **{f"k{j}": 0.5 for j in range(9)}) for i in range(3)]))
    assert len(reading.tracks) == 4
    assert "more than 5 keys: 15 values of the others were not read" in notices(reading)


# -- what the run says of itself ---------------------------------------------------------------------------------------


@VERSIONS
def test_the_configuration_becomes_settings_of_the_run_with_what_was_changed_later(version):
    evidence = one(folder(version, "full0001"))
    found = {s.name: (s.key, s.value, s.origin) for s in evidence.settings}
    assert found["lr"] == ("learning_rate", 1e-4, "runtime")
    assert found["optimizer.name"] == ("optim", "adamw", "runtime")
    assert evidence.number("adam_beta2") == 0.95
    assert found["model.dims.d_model"][1] == 64
    assert found["late"][1] == 5
    assert not any("_wandb" in name for name in found)


@VERSIONS
def test_what_gives_access_to_an_account_is_not_read(version):
    assert b"made-up-for-this-test" in log_of(version, "full0001")
    evidence = one(folder(version, "full0001"))
    assert "made-up-for-this-test" not in repr((evidence.settings, evidence.environment))


def test_a_token_of_a_vocabulary_is_no_secret():
    reading = read(framed([config(pad_token="<pad>", max_tokens=512, api_key="abcdefgh1234"), DONE]))
    assert {s.name: s.value for s in reading.settings} == {"pad_token": "<pad>", "max_tokens": 512}


def test_the_environment_becomes_facts():
    reading = read(log_of(NEW, "crash001"))
    found = {f.key: f.value for f in reading.facts}
    assert found["host"] == "node1"
    assert found["python"] == "3.11.7"
    assert found["command"] == "/home/user/project/train.py crash"
    assert int(found["memory"]) > 1 << 30
    assert found["wandb"] == "0.31.0"
    assert found["wandb_run"] == "crash001"
    assert "user" not in found
    assert all(f.host == "node1" for f in reading.facts)


def test_addresses_lose_their_credentials_and_arguments_their_secrets():
    assert secrecy.without_credentials("https://me:ghp_x@github.com/a/b.git?token=1") == "https://github.com/a/b.git"
    assert secrecy.without_credentials("git@github.com:a/b.git") == "git@github.com:a/b.git"
    given = ["--lr=1", "--api-key", "abc", "--hf_token=hf_abcdefgh", "--token", "--x", "y"]
    assert list(secrecy.without_secrets(given)) == [
        "--lr=1",
        "--api-key",
        "***",
        "--hf_token=***",
        "--token",
        "--x",
        "y",
    ]


def test_gpus_and_the_job_of_slurm_are_facts_of_a_rank():
    gpu = field(24, field(1, "NVIDIA H100") + field(2, 85 << 30) + field(4, "Hopper"))
    slurm = b"".join(
        field(27, field(1, k) + field(2, v)) for k, v in {"job_id": "7", "procid": "3", "jwt": "x"}.items()
    )
    git = field(9, field(1, "https://u:p@host/x.git") + field(2, "abc123"))
    first = field(26, field(12, "n1") + field(25, "12.4") + git)
    reading = read(framed([first, field(26, gpu + gpu + slurm), DONE]))
    found = {f.key: f.value for f in reading.facts}
    assert found == {
        "host": "n1",
        "cuda": "12.4",
        "git_commit": "abc123",
        "git_remote": "https://host/x.git",
        "gpu": "NVIDIA H100",
        "gpu_count": "2",
        "gpu_memory": str(85 << 30),
        "gpu_architecture": "Hopper",
        "slurm_job_id": "7",
        "slurm_procid": "3",
    }
    assert {f.rank for f in reading.facts} == {3}


def test_measurements_of_the_machine_are_rows_with_times_and_no_steps():
    evidence = one(folder(NEW, "full0001"))
    memory = evidence.series("system/memory_percent")
    assert len(memory) >= 2
    assert memory.step_unit == "row"
    assert (memory.times > 1.7e9).all()
    assert (memory.values > 0).all()
    assert evidence.steps == (0, 290)


def test_the_summary_adds_only_what_the_history_does_not_hold():
    reading = read(log_of(NEW, "full0001"))
    best = next(t for t in reading.tracks if t.series == "best")
    assert (best.stored.step_unit, best.stored.frame["value"].to_list()) == ("row", [0.1])
    summary = field(3, b"".join(field(1, item(k, v)) for k, v in {"loss": 9.0, "val/loss": 2.5, "_step": 5}.items()))
    reading = read(framed([row(10, loss=1.0), summary, DONE]))
    assert sorted((t.phase, t.series) for t in reading.tracks) == [("eval", "val/loss"), ("train", "loss")]
    assert points(reading, "loss") == [(10, 1.0)]


def test_a_run_that_the_server_resumed_says_so_and_begins_where_it_stood():
    resumed = field(17, field(1, "abc") + field(14, 120) + field(18, 1))
    reading = read(framed([resumed, row(121, loss=1.0), row(122, loss=0.9), DONE]))
    assert [(e.kind, e.step) for e in reading.events] == [("resume", 120)]
    assert reading.events[0].text == "W&B resumed the run at step 120"


@VERSIONS
def test_steps_that_the_program_gives_are_steps(version):
    loss = one(folder(version, "later001")).series("loss")
    assert loss.steps.tolist() == [100, 110, 120, 130, 140]
    assert loss.step_unit == "step"


# -- how it ended ------------------------------------------------------------------------------------------------------


@VERSIONS
def test_a_finished_run_is_completed(version):
    ending = one(folder(version, "full0001")).ending
    assert (ending.kind, ending.text) == ("completed", "W&B recorded exit code 0")


@VERSIONS
def test_a_crashed_run_ends_with_the_exception_that_it_printed_once(version):
    evidence = one(folder(version, "crash001"))
    assert evidence.ending.kind == "exception"
    assert evidence.ending.text == "RuntimeError: CUDA error: device-side assert triggered"
    told = [e for e in evidence.events if "device-side assert" in e.text]
    assert len(told) == 1
    inside = "run-crash001.wandb/output.log"
    assert told[0].source == ("files/output.log" if version is NEW else inside)
    assert [e.text for e in evidence.events if e is not told[0]] == ["W&B recorded exit code 1"]


@pytest.mark.parametrize(("code", "kind"), [(1, "exception"), (3, "exception"), (255, "killed"), (-9, "exception")])
def test_an_exit_code_alone_tells_that_it_failed(run, code, kind):
    log = framed([*(row(10 * i, loss=1.0) for i in range(5)), field(18, field(1, code))])
    ending = run.write({"run-a.wandb": log}).one().ending
    assert (ending.kind, ending.text) == (kind, f"W&B recorded exit code {code}")


def test_a_log_without_an_exit_record_says_so(run):
    evidence = run.write({"run-a.wandb": framed([row(10 * i, loss=1.0) for i in range(5)])}).one()
    assert evidence.ending.kind == "unknown"
    assert [n.text for n in evidence.notices] == ["no exit record: the program was killed, or it was still running"]


def test_the_printed_text_gives_series_that_the_history_lacks(run):
    text = "".join(f"step {i} loss: {2 - i / 10:.3f} grad_norm: 0.{i + 1}\n" for i in range(9))
    printed = [field(13, field(1, 1) + field(3, part)) for part in (text[:30], text[30:])]
    log = framed([*(row(i * 5, loss=1.0) for i in range(4)), *printed, DONE])
    evidence = run.write({"run-a.wandb": log}).one()
    assert evidence.series("grad_norm").source == "run-a.wandb/output.log"
    assert evidence.series("grad_norm").lines[0] == 1
    assert [key.source for key in evidence.keys("loss")] == ["run-a.wandb"]


def test_much_printed_text_is_read_from_the_log_once_more(monkeypatch):
    log = log_of(NEW, "crash001")
    held = read(log).members["output.log"]
    monkeypatch.setattr(output, "_HELD", 10)
    again = read(log).members["output.log"]
    assert held.events
    assert again.events == held.events


# -- damage ------------------------------------------------------------------------------------------------------------

ROWS = [row(10 * i, loss=2.0 - i / 100, lr=0.1) for i in range(100)]


def test_a_damaged_record_costs_itself_only_and_is_named():
    data = bytearray(framed([*ROWS, DONE]))
    where = places(bytes(data))[40]
    data[where + 20] ^= 4
    reading = read(bytes(data))
    assert [s for s, _ in points(reading, "loss")] == [10 * i for i in range(100) if i != 40]
    size = places(bytes(framed(ROWS)))[41] - where
    assert notices(reading) == [
        f"record 41 at byte offset {where}: the checksum of a record is wrong ({size} bytes): 1 record was lost"
    ]


def test_a_damaged_length_costs_no_other_record():
    data = bytearray(framed([*ROWS, DONE]))
    where = places(bytes(data))[7]
    data[where + 4] ^= 0x41
    assert [s for s, _ in points(read(bytes(data)), "loss")] == [10 * i for i in range(100) if i != 7]


def test_records_that_were_cut_out_are_counted():
    data = framed([*ROWS, DONE])
    start, stop = places(data)[10], places(data)[15]
    reading = read(data[:start] + data[stop:])
    assert notices(reading) == [f"records 11 to 15 are missing before byte offset {start}: 5 records were lost"]


def test_zeros_and_a_torn_end_are_told():
    data = framed([*ROWS, DONE])
    start, stop = places(data)[10], places(data)[14]
    reading = read(data[:start] + bytes(stop - start) + data[stop:])
    assert notices(reading) == [
        f"record 11 at byte offset {start}: zeros instead of a record ({stop - start} bytes): 4 records were lost"
    ]
    reading = read(data[: places(data)[-1] - 5])
    assert notices(reading)[0].startswith(
        f"record 100 at byte offset {places(data)[-2]}: the file ends inside of a record"
    )
    assert len(points(reading, "loss")) == 99


def test_records_over_several_blocks_are_put_together_and_lost_whole():
    long = field(2, field(1, item("loss", 7.0)) + field(1, item("text", "x" * 100_000)) + field(1, item("_step", 500)))
    data = bytearray(framed([ROWS[0], long, *ROWS[60:], DONE]))
    assert points(read(bytes(data)), "loss")[1] == (500, 7.0)
    data[70_000] ^= 1  # inside of a middle part
    reading = read(bytes(data))
    assert [s for s, _ in points(reading, "loss")] == [0, *(10 * i for i in range(60, 100))]
    assert len([text for text in notices(reading) if "1 record was lost" in text]) == 1


def test_a_damaged_header_of_the_file_costs_nothing():
    reading = read(b"XXXXXXX" + framed([*ROWS, DONE])[7:])
    assert len(points(reading, "loss")) == 100
    assert "the header of the file is not W&B's" in notices(reading)[0]


def test_a_record_larger_than_any_is_given_up(monkeypatch):
    monkeypatch.setattr(framing, "RECORD_LIMIT", 50_000)
    long = field(2, field(1, item("text", "x" * 100_000)))
    reading = read(framed([ROWS[0], long, ROWS[1], DONE]))
    assert len(points(reading, "loss")) == 2
    assert any("1 record was lost" in text for text in notices(reading))


def test_the_search_behind_damage_is_bounded(monkeypatch):
    monkeypatch.setattr(framing, "_TRIED_IN_VAIN", 100_000)
    tried = []
    search = framing._next_sound

    def counted(block, start, budget):
        tried.append(budget)
        return search(block, start, budget)

    monkeypatch.setattr(framing, "_next_sound", counted)
    reading = read(framed(ROWS[:2])[:200] + b"\x01" * (20 * framing.BLOCK) + framed([*ROWS, DONE]))
    assert tried.count(0) > 10 * (len(tried) - tried.count(0))
    assert any("checksum of a record is wrong" in text for text in notices(reading))


def test_a_sound_record_without_a_message_is_told():
    reading = read(framed([ROWS[0], field(2, b"\n\xff"), ROWS[1], DONE]))
    assert len(points(reading, "loss")) == 2
    assert any("could not be read" in text for text in notices(reading))


def test_a_log_that_is_spliced_says_so():
    data, other = framed([*ROWS[:9], DONE]), framed(ROWS[50:60])
    reading = read(data + other[7:])
    assert any("spliced or repeated" in text for text in notices(reading))


def test_text_or_noise_under_the_name_of_a_log_is_no_run(run):
    generator = random.Random(1)
    run.write({"run-a.wandb": b":W&B\xe1\xbe\x00" + generator.randbytes(5000), "m.csv": "step,loss\n1,2\n2,1\n"})
    evidence = run.one()
    assert "run-a.wandb" not in {key.source for key in evidence.frames}
    assert "no record could be read" in [n.text for n in evidence.notices]


def test_mutated_logs_neither_crash_nor_lose_anything_in_silence():
    generator = random.Random(5)
    seeds = [log_of(NEW, "crash001"), log_of(OLD, "full0001"), (NEW / "typed" / "run-typed001.wandb").read_bytes()]
    whole = {id(seed): {t.tag: t.stored.frame for t in read(seed).tracks} for seed in seeds}
    for turn in range(300):
        seed = generator.choice(seeds)
        data = bytearray(seed)
        at = generator.randrange(len(data))
        match turn % 4:
            case 0:
                del data[at:]
            case 1:
                data[at] ^= 1 << generator.randrange(8)
            case 2:
                other = generator.choice(seeds)
                start = generator.randrange(len(other))
                data[at : at + 50] = other[start : start + generator.randrange(3000)]
            case 3:
                data[at : at + 400] = generator.randbytes(400)
        reading = read(bytes(data))
        found = {t.tag: t.stored.frame for t in reading.tracks}
        same = found.keys() == whole[id(seed)].keys() and all(
            f.equals(whole[id(seed)][tag]) for tag, f in found.items()
        )
        assert same or any("byte offset" in text or "exit record" in text for text in notices(reading))


def test_no_message_ends_the_walk_over_its_fields():
    for data in (b"\x80", b"\xff" * 12, b"\x0a\x05ab", b"\x09\x01", b"\x00\x01", b"\x0b"):
        with pytest.raises(protobuf.MalformedError):
            list(wire.fields(data))


# -- the files beside the log ------------------------------------------------------------------------------------------


def file_of(path, name):
    return File(path, name, path.stat().st_size)


@VERSIONS
def test_the_own_logs_of_wandb_tell_no_events(version):
    for base in ("debug.log", "debug-internal.log"):
        file = file_of(folder(version, "crash001") / "logs" / base, f"logs/{base}")
        assert wandb_files.sniff(file)
        assert wandb_files.read(file).events is None
    assert not wandb_files.sniff(File(Path("/x/logs/debug.log"), "logs/debug.log", 5))


def test_metadata_of_old_and_new_versions_are_facts(run):
    old = {f.key: f.value for f in one(folder(OLD, "crash001")).environment}
    assert old["command"] == "/home/user/project/train.py crash"
    assert 20 << 30 < int(old["memory"]) < 30 << 30
    new = {
        "os": "Linux", "python": "CPython 3.12.1", "args": ["--lr", "1"], "program": "/p/train.py", "host": "n1",
        "git": {"remote": "https://x:y@h/r.git", "commit": "abc"}, "gpu": "NVIDIA A100", "gpu_count": 8,
        "memory": {"total": "25276510208"}, "cudaVersion": "12.2", "email": "me@x.org", "username": "me",
        "gpu_nvidia": [{"name": "NVIDIA A100", "memoryTotal": "42949672960", "architecture": "Ampere"}] * 8,
        "slurm": {"job_id": "55", "procid": "0", "jwt": "secret"},
    }  # fmt: skip
    files = {"run-a.wandb": framed([*ROWS[:5], DONE]), "files/wandb-metadata.json": json.dumps(new)}
    found = {f.key: f.value for f in run.write(files).one().environment}
    assert found["gpu_count"] == "8"
    assert found["gpu_memory"] == "42949672960"
    assert found["memory"] == "25276510208"
    assert found["python"] == "3.12.1"
    assert found["git_remote"] == "https://h/r.git"
    assert found["slurm_job_id"] == "55"
    assert not {"secret", "me", "me@x.org"} & set(found.values())


@pytest.mark.parametrize("text", ['{"os": "Linu', "[1, 2]", "{" * 50_000])
def test_metadata_that_is_no_object_is_a_notice(run, text):
    run.write({"run-a.wandb": framed([*ROWS[:5], DONE]), "files/wandb-metadata.json": text})
    told = [n for n in run.one().notices if n.source == "files/wandb-metadata.json"]
    assert len(told) == 1
    assert told[0].text.startswith("not read: no")


def test_a_summary_alone_gives_one_point_per_number(run):
    summary = {
        "_step": 40, "_timestamp": 1.7e9, "_runtime": 9, "_wandb": {"runtime": 9}, "train/loss": 0.5, "acc": "NaN",
        "picture": {"_type": "image-file", "size": 10}, "name": "x", "nested": {"a": 1},
    }  # fmt: skip
    evidence = run.write({"files/wandb-summary.json": json.dumps(summary)}).one()
    found = {k.series: f.frame.row(0, named=True) for k, f in evidence.frames.items()}
    assert found.keys() == {"train/loss", "acc", "nested.a"}
    assert (found["train/loss"]["value"], found["train/loss"]["step"], found["train/loss"]["time"]) == (0.5, 40, 1.7e9)
    assert found["acc"]["kind"] == "nan"


def test_a_summary_beside_the_log_adds_only_what_the_log_lacks(run):
    summary = json.dumps({"loss": 0.5, "best": 0.25})
    run.write({"run-a.wandb": framed([*ROWS[:5], DONE]), "files/wandb-summary.json": summary})
    evidence = run.one()
    assert [k.series for k in evidence.frames if k.source == "files/wandb-summary.json"] == ["best"]


def test_versions_of_the_installed_packages_are_facts(run):
    packages = "accelerate==1.2.0\nflash_attn==2.7.0\nnvidia-nccl-cu12==2.21.5\nrequests==2.0\ntorch==2.5.1+cu124\n"
    name = "wandb/run-20250102_030405-abc/files/requirements.txt"
    run.write({"wandb/run-20250102_030405-abc/run-abc.wandb": framed([*ROWS[:5], DONE]), name: packages})
    run.write({"requirements.txt": "torch==1.0\n"})
    found = {f.key: (f.value, f.line) for f in run.one().environment if f.source == name}
    assert found == {
        "package:accelerate": ("1.2.0", 1),
        "package:flash-attn": ("2.7.0", 2),
        "package:nvidia-nccl-cu12": ("2.21.5", 3),
        "package:requests": ("2.0", 4),
        "package:torch": ("2.5.1+cu124", 5),
    }
    beside = [(f.key, f.value) for f in run.one().environment if f.source == "requirements.txt"]
    assert beside == [("pin:torch", "1.0")]


def test_an_online_run_is_one_run_with_the_settings_of_both(run):
    place = "wandb/run-20250102_030405-abc"
    files = {
        f"{place}/run-abc.wandb": framed([config(lr=0.5), *ROWS, DONE]),
        f"{place}/files/config.yaml": "_wandb:\n  value: {}\nlr:\n  value: 0.1\nbatch_size:\n  value: 8\n",
        f"{place}/files/output.log": "Running training\nstep 1 loss 2.0\n",
        f"{place}/files/wandb-summary.json": '{"loss": 1.01}',
        f"{place}/files/wandb-metadata.json": '{"host": "n1"}',
        f"{place}/logs/debug.log": "Traceback (most recent call last):\n  File\nValueError: of wandb\n",
    }
    evidence = run.write(files).one()
    assert evidence.number("learning_rate") == 0.5
    assert evidence.number("per_device_train_batch_size") == 8
    assert not evidence.events
    assert len(evidence.series("loss")) == 100


def test_compressed_logs_and_logs_in_archives_are_read_alike(run, tmp_path):
    data = framed([*ROWS, DONE])
    evidence = run.write({"run-a.wandb.gz": gzip.compress(data)}).one()
    assert len(evidence.series("loss")) == 100
    archive = tmp_path / "runs.tar"
    with tarfile.open(archive, "w") as out:
        out.add(folder(OLD, "crash001"), "offline-run-20250102_030405-crash001")
    evidence = one(archive)
    assert evidence.ending.text == "RuntimeError: CUDA error: device-side assert triggered"
    assert len(evidence.series("loss")) == 5


def test_values_are_turned_into_numbers_now_and_then(monkeypatch):
    monkeypatch.setattr(history, "_PENDING", 7)
    assert points(read(framed([*ROWS, DONE])), "loss") == [(10 * i, 2.0 - i / 100) for i in range(100)]
