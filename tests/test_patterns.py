"""Patterns that are compiled at their first use."""

import ast
import re
from pathlib import Path

import pytest

from gradforensics.patterns import lazy

PACKAGE = Path(__file__).parent.parent / "gradforensics"


def test_a_lazy_pattern_does_what_a_compiled_one_does():
    pattern = lazy(r"(?P<word>[a-z]+) (\d+)", re.IGNORECASE)
    found = pattern.search("step: Loss 12")
    assert found is not None
    assert (found["word"], found[2]) == ("Loss", "12")
    assert pattern.search("-") is None
    assert pattern.groups == 2


def test_a_broken_pattern_is_told_at_its_first_use():
    pattern = lazy("(")
    with pytest.raises(re.error):
        pattern.search("")


def literals():
    """The literal patterns that modules give to `lazy`, with their places."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy" and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", first.value


def test_every_pattern_of_the_package_compiles():
    found = dict(literals())
    assert len(found) > 100
    for pattern in found.values():
        re.compile(pattern)
