"""The command line, as a user starts it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gtpo_verl import tasks

RUN = '{"step": %d, "data": {"critic/score/mean": 0.5, "actor/entropy": 1.0, "response_length/mean": 9.0}}\n'


def gtpo_verl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    home = cwd / "home"
    home.mkdir()
    # A user's shell has none of the variables that a test session may have set.
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ}
    return subprocess.run(
        [str(Path(sys.executable).with_name("gtpo-verl")), *arguments],
        cwd=cwd,
        env={**environment, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
    )


def test_report_leaves_nothing_outside_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "dapo-seed1").mkdir()
    (tmp_path / "dapo-seed1/metrics.jsonl").write_text("".join(RUN % step for step in range(1, 4)))
    result = gtpo_verl("report", "dapo-seed1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "home").rglob("*")) == []
    assert (tmp_path / "report/curves.svg").exists()


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_prepare_leaves_nothing_outside_the_working_directory(task: str, tmp_path: Path) -> None:
    """From an empty cache, as on a newcomer's machine: all libraries that prepare a task are imported and used."""
    result = gtpo_verl("prepare", task, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "home").rglob("*")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache", "home"]
