"""Metrics files and the browser for the tests of this folder."""

import sys
from pathlib import Path

import pytest

# `metrics_files` and `browser` lie where pytest's importlib mode does not look.
sys.path.insert(0, str(Path(__file__).parent))
import metrics_files


@pytest.fixture(scope="session")
def files():
    return metrics_files
