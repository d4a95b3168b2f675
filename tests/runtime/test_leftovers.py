"""What a supervisor killed by force has left is removed by the next one; what another lives in is not."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from gtpo_verl.launch.supervisor import _end_orphans
from gtpo_verl.runtime.leftovers import owned_folder, remove_dead

# A supervisor whose driver leaves a process and 4 MiB of shared memory; it prints its folder, then waits to be killed.
SUPERVISOR = """
import os, subprocess, sys, time
from pathlib import Path
from multiprocessing import resource_tracker, shared_memory
from gtpo_verl.runtime.leftovers import owned_folder
from gtpo_verl.runtime.shared_memory import name_after_run
with owned_folder(Path(sys.argv[1])) as folder:
    os.environ["GTPO_VERL_TMP"] = str(folder)
    name_after_run()
    segment = shared_memory.SharedMemory(create=True, size=4 << 20)
    resource_tracker.unregister(segment._name, "shared_memory")
    named = shared_memory.SharedMemory(f"verl_weights_{os.getpid()}", True, 1 << 20)  # as verl's, by its creator
    resource_tracker.unregister(named._name, "shared_memory")
    again = shared_memory.SharedMemory(name=named.name)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (folder / "session").mkdir()
    (folder / "session/socket").write_text("x")
    print(folder, segment.name, child.pid, flush=True)
    time.sleep(600)
"""


def start(base: Path) -> tuple[subprocess.Popen, Path, Path, int]:
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(base)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder, segment, child = process.stdout.readline().split()
    return process, Path(folder), Path("/dev/shm", segment), int(child)


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_of_a_killed_supervisor_nothing_stays(tmp_path: Path) -> None:
    process, folder, segment, child = start(tmp_path)
    living, other, other_segment, other_child = start(tmp_path)
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert folder.exists()
        assert segment.exists()
        assert remove_dead(tmp_path, _end_orphans) == [folder]
        assert not folder.exists()
        assert not segment.exists()
        assert not Path(f"/dev/shm/verl_weights_{process.pid}").exists()
        assert Path(f"/dev/shm/verl_weights_{living.pid}").exists()
        assert gone(child)
        assert other.exists()
        assert other_segment.exists()
        assert psutil.Process(other_child).status() != psutil.STATUS_ZOMBIE
    finally:
        living.kill()
        living.wait()
        assert remove_dead(tmp_path, _end_orphans) == [other]
    assert list(tmp_path.iterdir()) == []


def test_the_next_supervisor_does_it() -> None:
    """Through the command's own entry, with TMPDIR as a user sets it."""
    base = Path(f"/tmp/gl{os.getpid()}")
    base.mkdir()
    try:
        process, _, segment, child = start(base)
        process.kill()
        process.wait()
        code = (
            "import sys; from gtpo_verl.launch import supervise; sys.exit(supervise([sys.executable, '-c', 'pass'])[0])"
        )
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(base)}, check=True, timeout=120)
        assert list(base.iterdir()) == []
        assert not segment.exists()
        assert gone(child)
    finally:
        base.rmdir()


def test_folders_of_nobody_and_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gtpo-noowner").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/supervisor").touch()
    (tmp_path / "gtpo-link").symlink_to(tmp_path / "elsewhere")
    other = tmp_path / "gtpo-otheruser"
    other.mkdir()
    (other / "supervisor").touch()
    with owned_folder(tmp_path) as mine:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: other.stat().st_uid + 1)
            assert remove_dead(tmp_path, _end_orphans) == []
        assert remove_dead(tmp_path, _end_orphans) == [other]
        assert mine.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"gtpo-noowner", "elsewhere", "gtpo-link", mine.name}


def test_shared_memory_of_other_runs_stays(tmp_path: Path) -> None:
    segment = shared_memory.SharedMemory(create=True, size=16)
    try:
        process, folder, _, _ = start(tmp_path)
        process.kill()
        process.wait()
        assert remove_dead(tmp_path, _end_orphans) == [folder]
        assert Path("/dev/shm", segment.name).exists()
    finally:
        segment.close()
        segment.unlink()
