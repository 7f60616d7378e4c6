#!/usr/bin/env python3
"""Take docs/images/report.png: the first screen of the report that the README's first command makes.

Needs pip install -e '.[browser]' and a system Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = "sample_runs/gf05-diverged/run"
WIDTH, HEIGHT = 1280, 800  # pixels
PICTURE = ROOT / "docs" / "images" / "report.png"


def main() -> int:
    """Analyze the sample, open its report and save what a visitor sees first."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("Chromium is not installed")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        command = [sys.executable, "-m", "gradforensics", "analyze", SAMPLE, "-o", str(report)]
        subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)  # noqa: S603  our own command line
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(report.as_uri())
            PICTURE.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=PICTURE)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
