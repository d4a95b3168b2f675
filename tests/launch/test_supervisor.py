"""The supervisor leaves nothing behind: no process, no shared memory, no temporary folder, however the driver ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

# A driver like Ray's: a daemon in a session of its own that ignores SIGTERM, and a shared memory segment and a
# semaphore that nobody unlinks. It writes their names to the file named by its first argument.
DRIVER = """
import multiprocessing, os, signal, subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory
from gtpo_verl.runtime.shared_memory import name_after_run
name_after_run()
segment = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")
semaphore = multiprocessing.get_context("spawn").Semaphore()
resource_tracker.unregister(semaphore._semlock.name, "semaphore")
daemon = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"],
    start_new_session=True,
)
with open(sys.argv[1] + ".part", "w") as f:
    names = segment._name.lstrip("/"), "sem." + semaphore._semlock.name.lstrip("/")
    print(os.getpid(), daemon.pid, *names, os.environ["TMPDIR"], file=f)
os.rename(sys.argv[1] + ".part", sys.argv[1])
ENDING
"""

ENDINGS = {
    "returns": ("time.sleep(1); os._exit(0)", 0),
    "fails": ("time.sleep(1); os._exit(3)", 3),
    "is killed": ("time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
}


def start(tmp_path: Path, ending: str) -> tuple[subprocess.Popen, Path]:
    """A supervisor process around a driver that ends in the given way; returns once the driver has started up."""
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.replace("ENDING", ending))
    facts = tmp_path / "facts"
    code = f"""
        import sys
        from gtpo_verl.launch import supervise
        code, info = supervise([sys.executable, {str(driver)!r}, {str(facts)!r}])
        sys.exit(code)
    """
    supervisor = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    deadline = time.monotonic() + 60
    while not facts.exists() and time.monotonic() < deadline and supervisor.poll() is None:
        time.sleep(0.05)
    return supervisor, facts


def assert_nothing_left(facts: Path) -> None:
    driver, daemon, segment, semaphore, temporary = facts.read_text().split()
    for pid in (int(driver), int(daemon)):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not Path("/dev/shm", segment).exists()
    assert not Path("/dev/shm", semaphore).exists()
    assert not Path(temporary).exists()


@pytest.mark.parametrize("how", ENDINGS)
def test_driver_that(how: str, tmp_path: Path) -> None:
    ending, expected = ENDINGS[how]
    supervisor, facts = start(tmp_path, ending)
    assert supervisor.wait(timeout=60) == expected
    assert_nothing_left(facts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_supervisor(number: int, tmp_path: Path) -> None:
    supervisor, facts = start(tmp_path, "time.sleep(600)")
    time.sleep(0.5)
    supervisor.send_signal(number)
    assert supervisor.wait(timeout=60) == 128 + number
    assert_nothing_left(facts)


def test_driver_that_never_publishes_where_it_writes(tmp_path: Path) -> None:
    from gtpo_verl.launch import supervise

    watched = set()
    code, info = supervise([sys.executable, "-c", "raise SystemExit(7)"], lambda *seen: watched.add(seen))
    assert (code, info, watched) == (7, None, {(None, None)})


def test_a_finished_run_has_nothing_left_but_a_validation() -> None:
    from gtpo_verl.launch import RunInfo

    begun = RunInfo(name="n", run_dir="r", log="l", metrics="m", checkpoints="c", total_steps=3, resumed_step=2)
    done = replace(begun, resumed_step=3)
    assert (begun.finished, done.finished) == (False, True)
    assert not replace(done, total_steps=None).finished
    assert not replace(done, validates_only=True).finished


def test_run_info_reaches_the_watcher(tmp_path: Path) -> None:
    from gtpo_verl.launch import RunInfo, supervise

    watched: list[tuple] = []
    publish = (
        "from gtpo_verl.launch import RunInfo; "
        "RunInfo(name='n', run_dir='r', log='l', metrics='m', checkpoints='c', total_steps=3).publish()"
    )
    code, info = supervise([sys.executable, "-c", publish], lambda *seen: watched.append(seen))
    assert code == 0
    assert info == RunInfo(name="n", run_dir="r", log="l", metrics="m", checkpoints="c", total_steps=3)
    assert watched[-1] == (info, None)
    assert "GTPO_VERL_RUN_INFO" not in os.environ


def test_what_a_run_is_busy_with_reaches_the_watcher() -> None:
    from gtpo_verl.launch import supervise

    watched: list[tuple] = []
    say = (
        "import subprocess, sys; from gtpo_verl.runtime import stage; stage.say('first'); stage.say('second'); "
        # Any process of the run may say so.
        "sys.exit(subprocess.call([sys.executable, '-c', \"from gtpo_verl.runtime import stage; stage.say('third')\"]))"
    )
    code, _ = supervise([sys.executable, "-c", say], lambda *seen: watched.append(seen))
    assert code == 0
    assert watched[-1] == (None, "third")


def test_a_stage_is_not_said_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gtpo_verl.runtime import stage

    monkeypatch.delenv("GTPO_VERL_TMP", raising=False)
    stage.say("without a supervisor")
    monkeypatch.setenv("GTPO_VERL_TMP", str(tmp_path / "on another node"))
    stage.say("from another node")
    assert list(tmp_path.iterdir()) == []
