"""Audit a file of samples by what is in it."""

import json

import pytest

from gradforensics.audit import DataFile, Known, audit


@pytest.fixture
def audited(tmp_path):
    """Audit a file (records as JSON lines, or text or bytes as they are): its measures by name, and the result."""

    def make(content, name="train.jsonl", limit=None, coder=None, **known):
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(one) + "\n" for one in content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        (found,) = audit([DataFile(path, name, path.stat().st_size, limit)], Known(**known), coder)
        return {one.quantity: one for one in found.measures}, found

    return make


def told(found):
    return [(one.line, one.text) for one in found.notices]
