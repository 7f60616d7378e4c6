"""Properties are checked without a clock: a busy machine must not fail a test."""

import importlib.util
import sys

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def load_module():
    """load_module(name, path) imports a module of the tests, which are no packages, and keeps it importable by name."""

    def load(name, path):
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    return load
