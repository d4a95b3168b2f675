"""What the terminal says of a run that goes on, of a validation, and of a run that cannot write."""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from gtpo_verl.launch import supervise, terminal
from gtpo_verl.launch.terminal import _differing, _validation

LINE = '{"step": %d, "data": {"val-core/sums/acc/mean@8": %s, "val-aux/sums/reward/mean@8": 0.1}}\n'


def test_a_validation_says_the_scores_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "validation.jsonl"
    path.write_text(LINE % (3, 0.25) + LINE % (5, 0.12345))
    assert _validation(path) == f"step 5 validated: val-core/sums/acc/mean@8 0.1235 ({path})"


@pytest.mark.parametrize("content", [None, "", "{torn"])
def test_a_validation_without_a_line_points_to_the_log(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "validation.jsonl"
    if content is not None:
        path.write_text(content)
    assert _validation(path) == "validated; the log has the scores"


def test_changes_are_listed_up_to_a_number() -> None:
    assert _differing([]) == ""
    few, many = ([f"k{i}: 0 -> 1" for i in range(count)] for count in (2, 11))
    assert _differing(few) == ", with another configuration than before: k0: 0 -> 1, k1: 0 -> 1"
    assert _differing(many).endswith("k7: 0 -> 1, and 3 more")


# A driver whose log and checkpoints lie on a disk that it fills, so that it can write its error nowhere.
FILLS_THE_DISK = """
import os, sys, time
from pathlib import Path
from gtpo_verl.runtime.run_info import RunInfo
folder = Path(sys.argv[1])
RunInfo("run", str(folder), str(folder / "train.log"), str(folder / "metrics.jsonl"), str(folder), 3).publish()
try:
    with open(folder / "shard.pt", "wb") as file:
        for _ in range(100):
            file.write(bytes(100_000))
except OSError:
    time.sleep(1)
    sys.exit(1)
"""


def test_a_full_disk_is_named_where_the_log_lies_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("file systems can be mounted by root alone")
    try:
        command = [sys.executable, "-c", FILLS_THE_DISK, str(disk)]
        monkeypatch.setattr(terminal, "run_training", lambda _, watch: supervise(command, watch))
        console = Console(file=(said := io.StringIO()), width=200)
        code, _ = terminal.train_with_progress([], console)
        assert code == 1
        assert f"error: {disk}: No space left on device\n" in said.getvalue()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_no_room_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before anything has started."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/no-such-place")
    console = Console(file=(said := io.StringIO()), width=200)
    assert terminal.train_with_progress([], console) == (1, None)
    assert said.getvalue().startswith("error: [Errno 2] No such file or directory: '")
