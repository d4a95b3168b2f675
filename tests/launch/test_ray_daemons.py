"""Ray's daemons under a driver, here `sleep` by their names."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gtpo_verl.launch.ray_daemons import RayDaemons


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    started = []

    def start(name: str) -> subprocess.Popen:
        program = shutil.copy("/bin/sleep", tmp_path / name)
        started.append(subprocess.Popen([program, "600"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("ends", "said"), [("raylet", "raylet"), ("gcs_server", "GCS server")])
def test_says_which_one_ended(start, ends: str, said: str) -> None:
    daemons = RayDaemons(os.getpid())
    assert daemons.lost() is None
    started = {}
    for name in ("gcs_server", "raylet"):
        started[name] = start(name)
        assert daemons.lost() is None
    start(f"another {ends}")
    started[ends].kill()
    started[ends].wait()
    assert daemons.lost() == f"Ray's {said} (process {started[ends].pid}) ended under the run"


def test_lists_no_children_once_it_knows_both(start, monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil reads every process of the machine for it, four times a second."""
    daemons = RayDaemons(os.getpid())
    start("gcs_server")
    assert daemons.lost() is None
    start("raylet")
    assert daemons.lost() is None
    monkeypatch.delattr(psutil.Process, "children")
    assert daemons.lost() is None


def test_says_nothing_of_a_driver_that_is_gone(start, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start("driver")
    daemons = RayDaemons(driver.pid)
    child = start("raylet")
    monkeypatch.setattr(psutil.Process, "children", lambda _: [psutil.Process(child.pid)])
    assert daemons.lost() is None
    child.kill()
    child.wait()
    assert daemons.lost() == f"Ray's raylet (process {child.pid}) ended under the run"
    driver.kill()
    driver.wait()
    assert daemons.lost() is None
