"""Configuration files of a training (JSON, YAML, TOML): settings with their lines."""

from __future__ import annotations

from gradforensics.evidence import settings
from gradforensics.evidence.files import File
from gradforensics.evidence.readings import Reading

name = "config"


def sniff(file: File) -> bool:
    """By name and size; read() then asks for the content of a training's configuration."""
    return settings.could_be(file)


def read(file: File) -> Reading:
    """All settings of the file, or "not mine" where too few of them are known."""
    return settings.read(file)
