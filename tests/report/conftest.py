"""Metrics files for the tests of this folder."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def files():
    # With pytest's importlib mode the folder of a test is not importable by name.
    spec = importlib.util.spec_from_file_location("metrics_files", Path(__file__).with_name("metrics_files.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
