import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# `training_run` and the brute-force reference lie where pytest's importlib mode does not look.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "algorithms")]
from training_run import Run  # noqa: E402


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A training run in a folder of its own; ended, if the test left it running."""
    started = Run(tmp_path)
    yield started
    process = getattr(started, "process", None)
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=90)
