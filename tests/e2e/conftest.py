import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# `training_run`, `actors` and the brute-force reference lie where pytest's importlib mode does not look.
sys.path[:0] = [
    str(Path(__file__).parent),
    *(str(Path(__file__).parents[1] / name) for name in ("algorithms", "run_folder")),
]
import presets_in_turn as in_turn  # noqa: E402
from training_run import Run  # noqa: E402


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A training run in a folder of its own; ended, if the test left it running."""
    started = Run(tmp_path)
    yield started
    started.end()


@pytest.fixture(scope="session")
def presets_in_turn(tmp_path_factory) -> Run:
    """The run of presets_in_turn.py, ended; `keys` in its folder holds the configuration keys that were read."""
    started = Run(tmp_path_factory.mktemp("presets_in_turn"))
    keys = started.folder / "keys"
    keys.mkdir()
    in_turn.start(started, keys)
    try:
        assert started.wait() == 0, started.terminal
    finally:
        started.end()
    return started
