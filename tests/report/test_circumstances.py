"""Settings and why some are conspicuous, environment, events, notices, the inventory."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

from gradforensics.diagnosis import rules
from gradforensics.diagnosis.causes import Diagnosis
from gradforensics.diagnosis.judge import Holding
from gradforensics.diagnosis.vocabulary import Answer, Hit, check
from gradforensics.report.build import build
from gradforensics.report.circumstances import kinds, stated
from gradforensics.tables import Event, Evidence, Fact, Notice, Setting, Source
from tests.report.page import Page, page_of


@check(needs=["settings:{name}", "baseline:settings:seed"])
def settings_check(_evidence: Evidence, *, name: str) -> Answer:  # a check's arguments fill its needs
    return []


SETTINGS = [
    Setting("weight_decay", "weight_decay", 0.1, "config.json", 3),
    Setting("optim", "optim", "adam", "config.json", 4),
    Setting("warmup_steps", "warmup_steps", 10, "config.json", 5),
    Setting("seed", "seed", 0, "config.json", 6),
    Setting("layers", "model.layers", 2, "config.json", 7),
]


def with_settings(maker: Any, *, hit: Hit, name: str = "weight_decay") -> Diagnosis:
    evidence = Evidence("run", settings=list(SETTINGS))
    rule = maker.rule("GF18")
    holding = Holding(rules.Sign("decay", rules.Test(settings_check, {"name": name}), "probable"), (hit,))
    return Diagnosis(evidence, (replace(maker.fired(rule, [hit]), holdings=(holding,)),))


def marked(diagnosis: Diagnosis) -> dict[str, tuple[str, ...]]:
    (run,) = build([diagnosis], []).runs
    return {row.key: row.rules for row in run.settings if row.rules}


def test_settings_that_a_sign_needs_are_conspicuous(maker: Any) -> None:
    assert marked(with_settings(maker, hit=Hit(None))) == {"weight_decay": ("GF18",)}


def test_settings_that_a_hit_names_or_quotes_are_conspicuous(maker: Any) -> None:
    named = with_settings(maker, hit=Hit(None, facts={"name": "model.layers"}), name="x")
    assert marked(named) == {"layers": ("GF18",)}
    quoted = with_settings(maker, hit=Hit(None, source="config.json", line=4), name="x")
    assert marked(quoted) == {"optim": ("GF18",)}
    logged = with_settings(maker, hit=Hit(3, series="loss", source="config.json", line=4), name="x")
    assert marked(logged) == {}


def test_conspicuous_settings_stand_first_each_with_its_reason(maker: Any) -> None:
    made = with_settings(maker, hit=Hit(None))
    made.evidence.settings = [*SETTINGS, Setting("seed", "seed", 7, "train.log", 1, "runtime")]
    other = Evidence("good", settings=[Setting("warmup_steps", "warmup_steps", 500, "config.json")])
    made = replace(made, evidence=replace(made.evidence, baseline=other))
    page = page_of(build([made], []))
    told = page[page.index("Conspicuous settings") : page.index("Other settings")]
    rows = [Page(row).text for row in re.findall("<tr.*?</tr>", told)]
    assert rows == [
        "Key Value Why Where",
        "weight_decay 0.1 a finding rests on it: GF18 config.json:3",
        "warmup_steps 10 the compared run has 500 config.json:5",
        "seed 0 overridden; in force: 7 train.log:1 config.json:6",
    ]
    assert 'href="#r1-GF18"' in told
    assert "Other settings (3)" in Page(page).text
    rest = page[page.index("Other settings") :]
    assert "<code>optim</code>" in rest
    assert "<code>warmup_steps</code>" not in rest[: rest.index("</details>")]


def test_a_run_without_conspicuous_settings_has_them_in_one_list(maker: Any) -> None:
    evidence = Evidence("run", settings=list(SETTINGS))
    text = Page(page_of(build([Diagnosis(evidence, ())], []))).text
    assert "Settings (5)" in text
    assert "Conspicuous" not in text


def test_facts_of_many_ranks_stand_once_and_values_that_differ_beside_each_other() -> None:
    facts = [Fact(key, value, f"env{r}.json", None, r, f"node{r // 4}") for r in range(8)
             for key, value in (("nccl", "2.19" if r == 5 else "2.20"), ("cuda", "12.4"))]  # fmt: skip
    told = [(one.key, one.value, one.ranks, one.hosts) for one in stated(facts)]
    assert told == [
        ("nccl", "2.20", (0, 1, 2, 3, 4, 6, 7), ("node0", "node1")),
        ("nccl", "2.19", (5,), ("node1",)),
        ("cuda", "12.4", tuple(range(8)), ("node0", "node1")),
    ]


def test_packages_are_folded_behind_the_rest_of_the_environment(maker: Any) -> None:
    facts = [Fact(f"package:p{i}", "1.0", "pip.txt", i, 0, "a") for i in range(1, 31)]
    evidence = Evidence(
        "run", environment=[*facts, *(Fact("driver", "550", "env.json", None, r, "a") for r in range(8))]
    )
    page = page_of(build([Diagnosis(evidence, ())], []))
    told = page[page.index("Environment (38)") :]
    assert "driver 550 0-7; a env.json" in Page(told[told.index("<div") : told.index("<details")]).text
    folded = told[told.index("<details") : told.index("</details>")]
    assert "30 packages" in folded
    assert folded.count("<tr") == 31


def test_events_are_counted_by_kind() -> None:
    events = [Event("xid", f"Xid {i}", "dmesg", i) for i in range(1, 4)] + [Event("oom", "out of memory", "a.log", 9)]
    text = Page(page_of(build([Diagnosis(Evidence("run", events=events), ())], []))).text
    assert "Events (4) xid × 3, oom × 1" in text


def test_notices_of_one_kind_are_one_line_with_the_first_places() -> None:
    notices = [Notice("log.jsonl", i, f"line {i} holds 'tag-{i}' twice") for i in range(1, 1001)]
    notices.insert(500, Notice("a.csv", None, "the last line is torn"))
    first, second = kinds(notices)
    assert (first.text, len(first.places)) == ("line 1 holds 'tag-1' twice", 1000)
    assert second.places == (("a.csv", None),)
    page = page_of(build([Diagnosis(Evidence("run", notices=notices), ())], []))
    items = re.findall("<li>(.*?)</li>", page[page.index("Notices</h3>") :])
    assert [unescape(re.sub("<[^>]+>", "", item)) for item in items] == [
        "log.jsonl:1, log.jsonl:2, log.jsonl:3 and 997 more places line 1 holds 'tag-1' twice",
        "a.csv the last line is torn",
    ]


def test_the_inventory_names_what_was_not_read_first_with_the_reason_and_whole_digests(healthy: Diagnosis) -> None:
    files = [
        Source("log.jsonl", 1000, "ab" * 32, "json-lines"),
        Source("clip.bin", 2_000_000, None, None, "too large to hash"),
        Source("notes.txt", 500, "cd" * 32),
    ]
    page = page_of(build([healthy], files))
    told = page[page.index('class="inventory"') : page.index("<footer")]
    text = Page(told[told.index(">") + 1 : told.index("</section>")]).text
    assert "1 file read, 2 not read, 2 MB" in text
    rows = [
        "clip.bin not hashed 2,000,000 not read : too large to hash",
        f"notes.txt {'cd' * 32} 500 not read : no reader knows this kind of file",
        f"log.jsonl {'ab' * 32} 1,000 json-lines",
    ]
    places = [text.index(row) for row in rows]
    assert places == sorted(places)
    assert "title=" not in told


def test_an_empty_value_that_another_replaces_is_not_conspicuous(maker: Any) -> None:
    made = with_settings(maker, hit=Hit(None))
    made.evidence.settings = [
        Setting("eval_steps", "eval_steps", None, "args.json", 1),
        Setting("eval_steps", "eval_steps", 30, "log", 1, "runtime"),
    ]
    assert "Conspicuous settings" not in page_of(build([made], []))
