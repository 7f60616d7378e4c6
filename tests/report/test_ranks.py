"""Ranks over the steps and the nodes to drain: against the files themselves; their drawing and tables."""

import json
from importlib.resources import files
from pathlib import Path
from statistics import median
from xml.etree import ElementTree as ET

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.diagnosis.causes import Diagnosis, diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.diagnosis.vocabulary import Hit
from gradforensics.evidence.gather import gather
from gradforensics.report import as_json, rank_svg, terminal
from gradforensics.report.build import build
from gradforensics.report.drain import drain
from gradforensics.report.html import render
from gradforensics.report.ranks import ALL, DEVIATING, WINDOWS, ranks
from gradforensics.report.words import ranges
from gradforensics.tables import Event, Evidence, Fact
from tests.report.page import Page

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def judged():
    rules = load_rules(examples=False)
    found: dict[str, Diagnosis] = {}

    def judge(name):
        if name not in found:
            (evidence,) = gather([SAMPLES / name / "run"])
            found[name] = diagnose(evidence, rules)
        return found[name]

    return judge


def logged(name, rank, key):
    lines = (SAMPLES / name / "run" / f"metrics.rank{rank}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["step"], row[key]) for row in map(json.loads, lines)]


# -- ranks over the steps ---------------------------------------------------------------------------------------------


def test_the_rank_that_others_waited_for_is_silent_from_its_last_step_on(judged):
    found = ranks(judged("gf24-missing-rank"))
    assert found is not None
    first, second = found.rows
    assert (first.state, second.state) == ("waiting", "silent")
    assert [row.last_step for row in found.rows] == [
        logged("gf24-missing-rank", r, "forward_time")[-1][0] for r in (0, 1)
    ]
    assert all(first.seen)
    last = max(place for place, seen in enumerate(second.seen) if seen)
    low, high = found.windows[last]
    assert low <= (second.last_step or 0) <= high
    assert [(e.kind, e.line) for e in first.errors] == [("timeout", 106)]
    assert (found.known, found.world, found.rest) == (2, 2, None)


def test_cells_are_medians_of_the_logged_times(judged):
    found = ranks(judged("gf41-slow-data"))
    assert found is not None
    assert (found.series, found.unit, len(found.windows)) == ("forward_time", "step", WINDOWS)
    for row in found.rows:
        values = logged("gf41-slow-data", row.ranks[0], "forward_time")
        assert row.step_time == pytest.approx(median(value for _, value in values))
        for (low, high), cell in zip(found.windows, row.cells, strict=True):
            assert cell == pytest.approx(median(value for step, value in values if low <= step <= high))
    assert [row.state for row in found.rows] == ["", "slow"]
    assert (found.windows[0][0], found.windows[-1][1]) == (1, 150)


def test_ranks_without_a_finding_that_speaks_of_them_are_not_shown(judged):
    for name in ("gf24-twin", "gf24-variables", "gf24-rendezvous", "gf26-storage"):
        assert ranks(judged(name)) is None
        assert drain(judged(name)) == ()
        page = render(build([judged(name)], []))
        assert 'class="ranks"' not in page
        assert 'class="drain"' not in page


def test_ranks_that_called_different_operations_show_theirs(judged):
    found = ranks(judged("gf24-mismatch"))
    assert found is not None
    assert [row.collective for row in found.rows] == ["broadcast #97", "all_reduce #97"]
    assert drain(judged("gf24-mismatch")) == ()  # the program did that, not a node


def test_a_rank_that_died_of_its_own_program_is_marked_and_its_node_is_not_drained(judged):
    found = ranks(judged("gf24-consequence"))
    assert found is not None
    assert [row.state for row in found.rows] == ["", "failed"]
    assert drain(judged("gf24-consequence")) == ()


def straggler(maker, count, *, hosts=False, times=True):
    """So many ranks of which rank 5 is slow and stopped early; on hosts of eight."""
    evidence = Evidence("large")
    steps = list(range(1, 41))
    series: dict[str, list[float]] = {"rank": [], "step": [], "value": []}
    for rank in range(count):
        for step in steps[: 30 if rank == 5 else 40]:
            series["rank"].append(rank)
            series["step"].append(step)
            series["value"].append(1.5 if rank == 5 else 1.0)
    name = "step_time" if times else "loss"
    maker.series(evidence, name, series["value"], steps=series["step"], rank=series["rank"])
    if hosts:
        evidence.environment = [Fact("host", f"node{r // 8}", "env.json", rank=r) for r in range(count)]
    facts = {"rank": 5, "excess": 0.5, "ranks": count}
    verdict = maker.fired(maker.rule("GF41"), [Hit(4, None, "step_time", source="log.jsonl", line=7, facts=facts)])
    return Diagnosis(evidence, (verdict,), verdict)


def test_of_thousands_of_ranks_those_that_deviate_have_rows_and_the_others_one(maker):
    found = ranks(straggler(maker, 4096, hosts=True))
    assert found is not None
    assert [(row.ranks, row.state, row.host, row.last_step) for row in found.rows] == [((5,), "slow", "node0", 30)]
    assert found.rest is not None
    assert (len(found.rest.ranks), found.rest.last_step, found.rest.step_time) == (4095, 40, 1.0)
    assert set(found.rest.cells) == {1.0}
    text = rank_svg.draw(found, "ranks", "en")
    assert "4,095 others" in "".join(ET.fromstring(text).itertext())
    assert len(text) < 20_000


def test_where_more_ranks_deviate_than_have_rows_the_report_says_how_many(maker):
    diagnosis = straggler(maker, 200)
    diagnosis.evidence.events = [Event("nccl_error", "NCCL error", "train.log", r + 1, rank=r) for r in range(100)]
    found = ranks(diagnosis)
    assert found is not None
    assert (len(found.rows), found.deviating, len(found.rest.ranks if found.rest else ())) == (DEVIATING, 100, 160)
    page = Page(render(build([diagnosis], []))).text
    assert "100 of 200 ranks deviate, 40 have a row; the last row holds the medians of the others." in page


def test_as_many_ranks_as_fit_each_have_a_row_grouped_by_host(maker):
    found = ranks(straggler(maker, ALL, hosts=True))
    assert found is not None
    assert (len(found.rows), found.rest) == (ALL, None)
    assert [row.host for row in found.rows] == [f"node{r // 8}" for r in range(ALL)]
    text = rank_svg.draw(found, "ranks", "en")
    names = [t.text for t in ET.fromstring(text).iter(f"{SVG}text") if (t.text or "").startswith("node")]
    assert names == [f"node{n}" for n in range(ALL // 8)]
    assert len(text) < 100_000
    assert DEVIATING < ALL


def test_without_times_a_row_shows_where_something_was_logged(maker):
    found = ranks(straggler(maker, 8, times=False))
    assert found is not None
    assert (found.series, found.rows[0].step_time) == ("", None)
    assert set(found.rows[0].cells) == {None}
    assert (all(found.rows[0].seen), all(found.rows[5].seen)) == (True, False)
    kinds = {p.get("class") for p in ET.fromstring(rank_svg.draw(found, "ranks", "en")).iter(f"{SVG}path")}
    assert {"hz", "hx"} <= kinds


# -- the nodes to drain -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "host", "reason", "device", "place"),
    [
        ("gf26-gpu-lost", "node01", "hardware", "0000:3b:00", ("kernel.log", 6)),
        ("gf26-gpu-memory", "node01", "hardware", "0000:3b:00", ("kernel.log", 6)),
        ("gf26-host", "node01", "hardware", "", ("kernel.log", 6)),
        ("gf26-outlived", "node01", "outlived", "0000:3b:00", None),
    ],
)
def test_a_host_that_a_hardware_error_names_is_drained_once(judged, name, host, reason, device, place):
    (one,) = drain(judged(name))
    assert (one.host, one.rule, one.reason, one.device) == (host, "GF26", reason, device)
    assert place in (None, (one.source, one.line))
    line = (SAMPLES / name / "run" / str(one.source)).read_text(encoding="utf-8").splitlines()[(one.line or 0) - 1]
    assert one.message in line


def test_a_silent_rank_is_named_without_a_host_where_the_record_has_none(judged):
    (one,) = drain(judged("gf24-missing-rank"))
    assert (one.host, one.ranks, one.reason, one.source, one.line) == (None, (1,), "silent", "train.log", 106)
    page = Page(render(build([judged("gf24-missing-rank")], [])))
    assert "Ranks to look at first" in page.text
    assert "Nodes to drain" not in page.text  # no hardware is known to be at fault
    assert "not in the record" in page.text
    assert "The record does not name all hosts" in page.text


def test_a_straggler_is_drained_with_the_host_that_the_record_gives_it(maker):
    diagnosis = straggler(maker, 16, hosts=True)
    (one,) = drain(diagnosis)
    assert (one.host, one.ranks, one.reason, one.excess, one.line) == ("node0", (5,), "slow", 0.5, 7)
    told = terminal.render(build([diagnosis], []), color=False, width=120)
    assert "  drain       node0: GF41, log.jsonl:7\n" in told
    assert "slower than the others by 50%" in Page(render(build([diagnosis], []))).text
    chinese = terminal.render(build([diagnosis], [], language="zh"), color=False, width=120)
    assert "隔离节点" in chinese


def test_the_terminal_does_not_call_for_a_drain_where_the_error_ended_nothing(judged):
    (one,) = drain(judged("gf26-outlived"))
    assert (one.reason, one.severity) == ("outlived", "S3")
    report = build([judged("gf26-outlived")], [])
    assert "\n  drain " not in terminal.render(report, color=False, width=120)
    assert "have it checked before the next one" in Page(render(report)).text


def test_the_straggler_is_proven_by_a_line_of_its_own_file(judged):
    (one,) = drain(judged("gf41-slow-data"))
    assert (one.ranks, one.source, one.line) == ((1,), "metrics.rank1.jsonl", 4)
    assert one.excess == pytest.approx(1.7, abs=0.05)


def test_only_fired_findings_name_nodes(maker, healthy):
    healthy.evidence.events = [Event("xid", "NVRM: Xid 79", "dmesg.txt", 3, rank=1, host="node7")]
    assert drain(healthy) == ()
    assert ranks(healthy) is None


# -- in the reports ---------------------------------------------------------------------------------------------------


def test_ranges_put_runs_of_numbers_together():
    assert ranges((3, 5, 6, 7, 9)) == "3, 5–7, 9"
    assert ranges(()) == ""


@pytest.mark.parametrize("name", ["gf24-missing-rank", "gf24-mismatch", "gf41-slow-data", "gf26-gpu-lost"])
def test_html_and_json_hold_them_in_both_languages(judged, name):
    report = build([judged(name)], [])
    text = render(report)
    english, chinese = Page(text), Page(text, "zh")
    data = as_json.data(report)
    schema = json.loads((files("gradforensics.report") / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(data, schema)
    run = data["runs"][0]
    assert (run["ranks"] is None) == (name == "gf26-gpu-lost")
    faulty = any(one["reason"] in ("hardware", "outlived") for one in run["drain"])
    heads = ("Nodes to drain", "应隔离的节点") if faulty else ("Ranks to look at first", "应先查看的 rank")
    assert (heads[0] in english.text, heads[1] in chinese.text) == (bool(run["drain"]),) * 2
    if run["ranks"]:
        assert "Ranks over the steps" in english.text
        assert "各 rank 随步数的变化" in chinese.text
        assert 'id="r1-ranks-name"' in text
        assert 'aria-labelledby="r1-ranks-name"' in text
        assert len(run["ranks"]["rows"][0]["cells"]) == len(run["ranks"]["windows"])


def test_names_of_hosts_and_messages_are_hostile_text(maker):
    diagnosis = straggler(maker, 16, hosts=True)
    evil = 'x"><script>alert(1)</script>'
    diagnosis.evidence.environment = [Fact("host", evil, "env.json", rank=r) for r in range(16)]
    assert "<script>alert" not in render(build([diagnosis], []))
