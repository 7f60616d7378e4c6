"""A run directory written from a dict of names and texts."""

from pathlib import Path

import pytest

from gradforensics.evidence.gather import gather


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path / "myrun"
        self.path.mkdir()

    def write(self, files):
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(content, encoding="utf-8", newline="")
        return self

    def all(self, **options):
        return gather([self.path], **options)

    def one(self, **options):
        found = self.all(**options)
        assert len(found) == 1, [e.name for e in found]
        return found[0]


@pytest.fixture
def run(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def read(tmp_path):
    """Write one file and gather the evidence of its folder."""

    def reader(name, content, **options):
        return Folder(tmp_path).write({name: content}).one(**options)

    return reader
