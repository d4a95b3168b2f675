"""The command line, as a user starts it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gtpo_verl import tasks
from gtpo_verl.tasks.cache import build_once

ROOT = Path(__file__).parents[1]

RUN = '{"step": %d, "data": {"critic/score/mean": 0.5, "actor/entropy": 1.0, "response_length/mean": 9.0}}\n'


def gtpo_verl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    home = cwd / "home"
    home.mkdir(exist_ok=True)
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


@pytest.mark.parametrize("arguments", [("report", "runs/none"), ("convert", "runs/none", "model")])
def test_a_run_that_is_not_there_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = gtpo_verl(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "runs/none" in line


def test_every_command_explains_itself(tmp_path: Path) -> None:
    listed = re.search(r"\{(.+?)\}", gtpo_verl("--help", cwd=tmp_path).stdout)
    assert listed is not None
    for command in listed[1].split(","):
        result = gtpo_verl(command, "--help", cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        assert f"gtpo-verl {command}" in result.stdout


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("task", ["arithmetic", "smollm2_steps"])  # smollm2 has the same model, and other data
def test_prepare_leaves_nothing_outside_the_working_directory(task: str, tmp_path: Path) -> None:
    """From an empty cache, as on a newcomer's machine: all libraries that prepare a task are imported and used."""
    assert task in tasks.TASKS
    result = gtpo_verl("prepare", task, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "home").rglob("*")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache", "home"]
    if task == "arithmetic":  # the training runs of the same session need no second one
        (prepared,) = (path for path in (tmp_path / ".cache/gtpo-verl").iterdir() if path.is_dir())
        build_once(ROOT / ".cache/gtpo-verl", prepared.name, lambda folder: _copy(prepared, folder))


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
