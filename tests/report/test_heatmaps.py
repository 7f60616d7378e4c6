"""Heatmaps: layers x checkpoints and modules x steps, against the files themselves; their drawing and numbers."""

import json
import math
import random
import re
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema  # type: ignore[import-untyped]
import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.report import as_json, heatmap_svg, layers, palette
from gradforensics.report.build import build
from gradforensics.report.heatmaps import (
    COLUMNS,
    ROWS,
    Column,
    Grid,
    Quantity,
    checkpoint_grid,
    logged_grid,
    put_together,
)
from gradforensics.report.html import render
from tests.report.page import Page

SAMPLES = Path(__file__).parents[2] / "sample_runs"
SVG = "{http://www.w3.org/2000/svg}"


def judged(name):
    (evidence,) = gather([SAMPLES / name / "run"])
    return diagnose(evidence, load_rules(examples=False))


@pytest.fixture(scope="module")
def poisoned():
    return judged("gf11-moments")


def grid_of(rows, columns, value=lambda i, j: 1.0 + i + j, bad=lambda _i, _j: 0):
    def cells(told):
        return tuple(tuple(told(i, j) for j in range(columns)) for i in range(rows))

    named = tuple(Column(f"step-{j}.pt", f"step-{j}.pt", j, j) for j in range(columns))
    values: dict[Quantity, Any] = {"gradient_rms": cells(value), "nonfinite": cells(bad)}
    return Grid(tuple(f"h.{i}" for i in range(rows)), named, values, rows, columns)


def drawn(grid, quantity="gradient_rms", first="en"):
    text = heatmap_svg.draw(grid, quantity, "map", first)
    return text, ET.fromstring(text)


# -- what it holds ----------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_checkpoints(poisoned):
    import torch

    grid = checkpoint_grid(poisoned)
    assert grid is not None
    assert grid.layers == ("mask", "inner", "outer")
    assert [(c.name, c.first) for c in grid.columns] == [(f"checkpoint-000{s:03}.pt", s) for s in (48, 96, 144)]
    assert (grid.last_good, grid.first_bad) == (1, 2)
    assert grid.shown == ("gradient_rms", "update_rms", "travel", "nonfinite")
    a, b = (
        torch.load(SAMPLES / "gf11-moments" / "run" / f"checkpoint-000{s:03}.pt", weights_only=True) for s in (48, 96)
    )
    states = [b["optimizer"]["state"][index] for index in (0, 1)]
    v, m = (torch.cat([s[key].flatten() for s in states]).double() for key in ("exp_avg_sq", "exp_avg"))
    v_hat, m_hat = v / (1 - 0.999**96), m / (1 - 0.9**96)
    inner = grid.layers.index("inner")
    assert grid.values["gradient_rms"][inner][1] == pytest.approx(float(v_hat.mean().sqrt()), rel=1e-5)
    update = m_hat / (v_hat.sqrt() + b["optimizer"]["param_groups"][0]["eps"])
    assert grid.values["update_rms"][inner][1] == pytest.approx(float(update.square().mean().sqrt()), rel=1e-4)
    w = [torch.cat([s["model"][f"inner.{p}"].flatten() for p in ("weight", "bias")]).double() for s in (a, b)]
    assert grid.values["travel"][inner][0] is None  # nothing to compare the first one with
    assert grid.values["travel"][inner][1] == pytest.approx(float((w[1] - w[0]).norm() / w[0].norm()), rel=1e-4)
    assert grid.values["nonfinite"] == ((0, 0, 0), (0, 0, 400), (0, 0, 200))


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("gf30-weights", ["embedding", "position", "blocks.0", "blocks.1", "norm", "head"]),
        ("gf22-tensor-parallel", ["embedding.word_embeddings", "encoder.layers.0", "encoder.layers.1",
                                  "encoder.final_layernorm", "output_layer"]),
        ("healthy-tied", ["transformer.wpe", "transformer.wte", "transformer.h.0", "transformer.ln_f"]),
    ],
)  # fmt: skip
def test_layers_stand_in_the_order_of_the_network_also_where_the_file_is_sorted_by_name(name, order):
    (evidence,) = gather([SAMPLES / name / "run"])
    assert list(layers.in_order(evidence)) == order


def test_layers_of_a_stack_are_ordered_by_number():
    names = ["tok.weight", *(f"h.{i}.w" for i in sorted(range(12), key=str)), "norm.weight", "head.weight"]
    assert layers.ordered(names) == ["tok", *(f"h.{i}" for i in range(12)), "norm", "head"]


def test_the_first_bad_checkpoint_is_that_behind_the_onset_even_where_it_is_finite():
    grid = checkpoint_grid(judged("gf22-saved-apart"))
    assert grid is not None
    assert (grid.last_good, grid.first_bad) == (0, 1)
    assert not any(any(row) for row in grid.bad)
    assert "nonfinite" not in grid.shown


def test_a_checkpoint_whose_weights_are_missing_is_a_column_without_values():
    grid = checkpoint_grid(judged("gf30-missing-shard"))
    assert grid is not None
    assert [column.name for column in grid.columns] == ["checkpoint-20", "checkpoint-40"]
    assert [row[1] for row in grid.values["gradient_rms"]] == [None] * 3
    assert (grid.last_good, grid.first_bad) == (0, 1)


def test_logged_norms_of_modules_are_put_together_by_layer_and_step(maker, healthy):
    evidence = healthy.evidence
    maker.series(evidence, "grad_norm/h.0.up", [3.0, 3.0, math.inf], source="log.jsonl")
    maker.series(evidence, "grad_norm/h.0.down", [4.0, 4.0, 4.0], source="log.jsonl")
    maker.series(evidence, "grad_norm/h.1.up", [1.0, math.nan], steps=[1, 3], source="log.jsonl")
    grid = logged_grid(evidence)
    assert grid is not None
    assert grid.layers == ("h.0", "h.1")
    assert [(c.first, c.last) for c in grid.columns] == [(1, 1), (2, 2), (3, 3)]
    assert grid.values["gradient_norm"] == ((5.0, 5.0, 4.0), (1.0, None, None))
    assert grid.bad == ((0, 0, 1), (0, None, 1))


def test_without_checkpoints_or_norms_of_modules_there_is_no_such_section(healthy, poisoned):
    assert (checkpoint_grid(healthy), logged_grid(healthy.evidence)) == (None, None)
    assert 'class="heatmaps"' not in render(build([healthy], []))
    assert 'class="heatmaps"' in render(build([poisoned], []))
    assert checkpoint_grid(judged("healthy-last-only")) is None  # weights alone tell nothing over time


def test_neighbours_are_put_together_and_the_last_good_keeps_apart_from_the_first_bad():
    values: list[list[float | None]] = [[float(i * 1000 + j) for j in range(200)] for i in range(500)]
    columns = [Column(f"{j}.pt", f"{j}.pt", j, j) for j in range(200)]
    counts: list[list[float | None]] = [[1.0] * 200 for _ in range(500)]
    grid = put_together([f"h.{i}" for i in range(500)], columns, {"travel": values, "nonfinite": counts}, 101, 102)
    assert len(grid.layers) == ROWS
    assert COLUMNS <= len(grid.columns) <= COLUMNS + 2
    assert (grid.layers[0], grid.layers_of, grid.columns_of) == ("h.0 – h.4", 500, 200)
    assert grid.last_good is not None
    assert grid.first_bad is not None
    good, bad = grid.columns[grid.last_good], grid.columns[grid.first_bad]
    assert (good.last, bad.first) == (101, 102)
    assert grid.values["travel"][0][0] == 4003  # the largest of 5 layers and 4 checkpoints
    assert sum(n or 0 for row in grid.bad for n in row) == 500 * 200


# -- its drawing ------------------------------------------------------------------------------------------------------


def test_a_small_map_tells_every_value_in_its_cell_and_its_hint():
    text, svg = drawn(grid_of(3, 2))
    hints = [title.text for title in svg.iter(f"{SVG}title")]
    assert sorted(hints) == sorted(f"h.{i} @ {j}: {1 + i + j}" for i in range(3) for j in range(2))
    assert {"1", "2", "3", "4"} <= {t.text for t in svg.iter(f"{SVG}text")}
    assert "NaN" not in text


@pytest.mark.parametrize("size", [(1, 1), (3, 1), (5, 200), (100, 50), (100, 3)])
def test_maps_of_every_size_are_well_formed_and_small(size):
    chance = random.Random(7)  # noise: the worst case for runs of one colour
    grid = grid_of(size[0], size[1], lambda _i, _j: 10 ** chance.uniform(-9, 3), lambda i, j: (i + j) % 2)
    text, _ = drawn(grid)
    assert len(text) < 100_000


def test_cells_without_a_value_are_hatched_zeros_are_grey_and_the_key_says_so_in_both_languages():
    grid = grid_of(2, 2, value=lambda i, j: (None, 0.0, 3.0, 5.0)[2 * i + j])
    text, svg = drawn(grid, first="zh")
    kinds = {g.get("class") for g in svg.iter(f"{SVG}g")}
    assert {"hx", "hz"} <= kinds
    (hatched,) = [g for g in svg.iter(f"{SVG}g") if g.get("class") == "hx"]
    assert hatched.get("stroke") == "url(#map-x)"
    assert svg.find(f".//{SVG}pattern[@id='map-x']") is not None
    spans = {(s.get("lang"), s.text, s.get("display")) for s in svg.iter(f"{SVG}tspan")}
    assert {("en", "not measured", "none"), ("zh", "未测量", None), ("en", "zero", "none"), ("zh", "零", None)} <= spans
    assert "NaN" not in text


def test_cells_that_are_not_finite_have_a_cross_and_their_count():
    _, svg = drawn(grid_of(2, 2, bad=lambda i, j: 40 if i == j == 1 else 0))
    (crossed,) = [p for p in svg.iter(f"{SVG}path") if p.get("stroke") == "url(#map-n)"]
    assert crossed.get("d", "").count("M") == 1
    assert svg.find(f".//{SVG}pattern[@id='map-n']/{SVG}path[@class='cross']") is not None
    assert "h.1 @ 1: 3, 40 NaN/Inf" in {title.text for title in svg.iter(f"{SVG}title")}


def test_a_range_below_a_decade_is_not_stretched_over_all_colours():
    scale = heatmap_svg.scale_of([1.0, 1.1])
    assert scale is not None
    assert scale.high / scale.low == pytest.approx(10)
    assert scale.place(1.0) == scale.place(1.1) == 4
    wide = heatmap_svg.scale_of([1e-3, 1e6, 0.0, None, math.inf])
    assert wide is not None
    assert [wide.place(v) for v in (1e-3, 1e6)] == [0, 8]
    assert heatmap_svg.scale_of([0.0, None]) is None


def test_numbers_on_the_colours_can_be_read_in_light_and_dark():
    def light(colour):
        full = colour if len(colour) == 7 else "#" + "".join(2 * c for c in colour[1:])
        parts = [int(full[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colours, ramps in ((palette.LIGHT, palette.RAMPS), (palette.DARK, palette.DARK_RAMPS)):
        for ramp in ramps.values():
            assert len(ramp) == heatmap_svg.CLASSES
            luminances = [light(colour) for colour in ramp]
            assert luminances == sorted(luminances, reverse=colours is palette.LIGHT)
            for place, own in enumerate(luminances):
                text = light(colours["paper" if place >= heatmap_svg.INK else "ink"])
                assert (max(own, text) + 0.05) / (min(own, text) + 0.05) >= 4.5


def test_names_of_layers_are_hostile_text():
    grid = grid_of(2, 2)
    evil = Grid(('a"><script>alert(1)</script>', "b\u202e"), grid.columns, grid.values, 2, 2)
    text, _ = drawn(evil)
    assert "<script" not in text
    assert "\u202e" not in text


# -- in the reports ---------------------------------------------------------------------------------------------------


def test_html_and_json_hold_it_in_both_languages(poisoned):
    report = build([poisoned], [])
    text = render(report)
    english, chinese = Page(text), Page(text, "zh")
    assert "Layers × checkpoints" in english.text
    assert "层 × 检查点" in chinese.text
    assert "last good" in english.text
    assert "The numbers as tables" in english.text
    ids = re.findall(r'aria-labelledby="(r1-checkpoints-[a-z_]+)"', text)
    assert len(ids) == 4
    assert all(f'<h3 id="{name}">' in text for name in ids)
    assert "0.0276" in unescape(english.text)
    data = as_json.data(report)
    schema = json.loads((files("gradforensics.report") / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(data, schema)
    told = data["runs"][0]["heatmaps"]
    assert told["layers"] == ["mask", "inner", "outer"]
    assert told["checkpoints"][2]["name"] == "checkpoint-000144.pt"
    assert told["values"]["nonfinite"][1] == [0, 0, 400]
    assert told["values"]["gradient_rms"][1][0] == pytest.approx(0.0276257, rel=1e-5)
    logged = as_json.data(build([judged("gf09-sigmoid")], []))
    jsonschema.validate(logged, schema)
    assert logged["runs"][0]["gradient_norms"]["layers"][:2] == ["layers.0", "layers.1"]
