"""The documentation tells the truth: pages are fresh, links lead somewhere, commands parse, examples work."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from gradforensics.cli import commands
from gradforensics.diagnosis.lint import check_folder
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.console import dialects
from tests.evidence.conftest import read_console

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MADE = ("commands.md", *(f"cases/{path.name}" for path in (DOCS / "cases").glob("*.md")))
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(DOCS.rglob("*.md"))
