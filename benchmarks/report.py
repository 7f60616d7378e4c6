"""The HTML report of runs of every length: its size, and the time until a browser shows it.

    python benchmarks/report.py [--points 5,1000,1000000,5000000] [--loads 9] [--folder FOLDER]

Makes one run after the other in a temporary folder: a CSV log of five series whose loss jumps after three fifths and is
NaN at the end, so that it has findings with charts. Each is analysed by the command line in a process of its own; then
headless Chromium (Playwright) opens the report in fresh pages, in turns with a page of one word. Prints the size of the
report and what its bytes are spent on, the first contentful paint of both pages (median and best of the loads; the
processor time of the page's main thread beside it, which other work on the machine does not lengthen), and the seconds
and the highest resident memory of the analysis. Limits: LIMIT_BYTES, and LIMIT_PAINT for the median; exit code 1 where
one is missed.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

LIMIT_BYTES = 1_000_000
LIMIT_PAINT = 0.3
LENGTHS = "5,1000,1000000,5000000"


def make(folder: Path, points: int) -> None:
    """A log of five series with `points` rows."""
    draw = np.random.default_rng(points)
    step = np.arange(1, points + 1)
    jump, end = int(0.6 * points), int(0.99 * points)
    loss = 2.0 + 2.0 / (1 + step / max(1, points / 20)) + 0.05 * draw.standard_normal(points)
    loss[jump:] += 6.0 + draw.exponential(1.0, points - jump)
    loss[end:] = np.nan
    norm = np.exp(0.3 * draw.standard_normal(points))
    norm[jump:] *= 300.0
    columns = {
        "step": step,
        "loss": loss.round(4),
        "grad_norm": norm.astype(np.float32),
        "learning_rate": 3e-4 * (1 + np.cos(np.pi * step / points)) / 2,
        "loss_scale": 2.0 ** (16 - (step * 5) // (points + 1)),
        "memory_allocated": 20e9 + 1e9 * (step / points) + 1e8 * draw.random(points).round(3),
    }
    pl.DataFrame(columns).write_csv(folder / "log.csv", null_value="")


def analyse(run: Path, page: Path) -> tuple[float, float]:
    """Analyse a run with the command line; seconds, and the highest resident memory so far of any child in bytes."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "gradforensics", "analyze", str(run), "-o", str(page), "--force"],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if not page.exists():
        raise SystemExit(f"the analysis ended with exit code {done.returncode} and without a report")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def paint(browser: Any, page: Path) -> tuple[float, float]:
    """Seconds until the first contentful paint of a page that is opened anew, and those of work of its main thread."""
    told = "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime"
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    session = opened.context.new_cdp_session(opened)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    opened.goto(page.as_uri())
    while (found := opened.evaluate(told)) is None:
        opened.wait_for_timeout(5)
    work = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}["TaskDuration"]
    opened.close()
    return float(found) / 1000, float(work)


def paints(browser: Any, pages: Sequence[Path], loads: int) -> list[list[tuple[float, float]]]:
    """The paints of some pages, which take turns; the first round only warms up."""
    rounds = [[paint(browser, page) for page in pages] for _ in range(loads + 1)]
    return [list(times) for times in zip(*rounds[1:], strict=True)]


def told_times(times: Sequence[tuple[float, float]]) -> str:
    """As they are printed."""
    shown, work = ([1e3 * t for t in each] for each in zip(*times, strict=True))
    return f"{statistics.median(shown):.0f} ms (best {min(shown):.0f}, work {statistics.median(work):.0f})"


def parts(html: str) -> str:
    """What the bytes of a page are spent on."""
    figures = re.findall(r"<figure.*?</figure>", html, re.DOTALL)
    drawings = re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL)
    points = re.findall(r' (?:d|data-[sv])="[^"]*"', "".join(drawings))
    told = {
        "points": sum(map(len, points)),
        "rest of charts": sum(map(len, figures)) - sum(map(len, points)),
        "style, script": sum(map(len, re.findall(r"<(?:style|script)>.*?</(?:style|script)>", html, re.DOTALL))),
    }
    told["other"] = len(html) - sum(told.values())
    return ", ".join(f"{name} {size / 1e3:.0f}" for name, size in told.items())


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default=LENGTHS, help=f"lengths of runs, with commas (default {LENGTHS})")
    parser.add_argument("--loads", type=int, default=9)
    parser.add_argument("--folder", help="where the runs are made (default: the system's temporary folder)")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  the only benchmark that needs it

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    met = True
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        plain = Path(folder, "word.html")
        plain.write_text("<!doctype html><title>word</title><p>word", encoding="utf-8")
        for points in map(int, arguments.points.split(",")):
            run, page = Path(folder, "run"), Path(folder, "report.html")
            run.mkdir(exist_ok=True)
            make(run, points)
            page.unlink(missing_ok=True)
            seconds, memory = analyse(run, page)
            html = page.read_text(encoding="utf-8")
            ours, word = paints(browser, (page, plain), arguments.loads)
            size = page.stat().st_size
            print(
                f"{points:>9,} points  {size / 1e3:4.0f} kB ({parts(html)})  paint {told_times(ours)}, "
                f"one word {told_times(word)}  analysis {seconds:.1f} s, {memory / 1e6:.0f} MB",
                flush=True,
            )
            met &= size <= LIMIT_BYTES and statistics.median(shown for shown, _ in ours) <= LIMIT_PAINT
        browser.close()
    print(f"limits: {LIMIT_BYTES / 1e3:.0f} kB, {LIMIT_PAINT * 1e3:.0f} ms: {'met' if met else 'MISSED'}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
