"""Made-up steps for the tests of this folder, and the browser of the report's tests."""

import sys
from pathlib import Path

import pytest

# `made` lies where pytest's importlib mode does not look, and so does `browser`.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "report")]
import made  # noqa: E402


@pytest.fixture(scope="session")
def make_step():
    return made.step
