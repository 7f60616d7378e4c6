"""Helpers that the tests of replay share."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def training(load_module):
    """The module training.py beside this file: small models, and a loop that is recorded by hand."""
    return load_module("replay_training", HERE / "training.py")


@pytest.fixture(scope="session")
def capsules(load_module):
    """The module programs/capsules.py: capsules on disk, of a program that can misbehave."""
    return load_module("replay_capsules", HERE / "programs" / "capsules.py")
