"""Runs the driver (Hydra, Ray, verl) as a child and cleans up after it, however it ends.

Ray, vLLM and torch start dozens of processes, some of which outlive a driver that is killed, and leave sockets in
the temporary folder and segments in /dev/shm. The supervisor is their ancestor of last resort (a "child subreaper"):
whatever is orphaned becomes its child, so it can end them all; their shared memory carries the run's name
(`shared_memory`). It imports neither torch nor verl and starts at once.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from gtpo_verl.launch.ray_daemons import RayDaemons
from gtpo_verl.runtime import stage
from gtpo_verl.runtime.caches import cache_variables
from gtpo_verl.runtime.leftovers import owned_folder, remove_dead
from gtpo_verl.runtime.run_info import VARIABLE, RunInfo
from gtpo_verl.runtime.shared_memory import remove_segments
from gtpo_verl.runtime.text import child_variables

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_POLL_SECONDS = 0.25
_GRACE_SECONDS = 30.0  # Ray and verl need some seconds to stop their workers
_LOSS_SECONDS = 10.0  # a driver that ends Ray is gone by then

Watcher = Callable[[RunInfo | None, str | None], None]


def run_training(overrides: Sequence[str], watch: Watcher | None = None) -> tuple[int, RunInfo | None]:
    """Trains with Hydra `overrides` on top of `configs/train.yaml`; see `supervise`."""
    return supervise([sys.executable, "-m", "gtpo_verl.driver.main", *overrides], watch)


def supervise(command: Sequence[str], watch: Watcher | None = None) -> tuple[int, RunInfo | None]:
    """Runs `command` until it ends, or until SIGINT, SIGTERM or SIGHUP ends it.

    Args:
        command: the driver; it may publish a `RunInfo`.
        watch: called a few times a second, and a last time at the end, with where the run writes (None until the driver
            has said so) and what it is busy with (None until any of its processes has).

    Returns:
        The driver's exit code (128 + signal for one that a signal ended), and where the run wrote; None where it
        ended before that was known.
    """
    _become_subreaper()
    base = _short_base()
    remove_dead(base, _end_orphans)
    with owned_folder(base) as temporary:
        return _supervise(command, temporary, watch)


def _supervise(command: Sequence[str], temporary: Path, watch: Watcher | None) -> tuple[int, RunInfo | None]:
    info_file = temporary / "run.json"
    environment = {
        **os.environ,
        **cache_variables(),
        **child_variables(),
        VARIABLE: str(info_file),
        stage.BEGAN: str(time.time()),
        "GTPO_VERL_TMP": str(temporary),
        "TMPDIR": str(temporary),
        "VLLM_RPC_BASE_PATH": str(temporary),
    }
    signals = _Signals()
    info = None
    driver = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,  # the terminal's Ctrl-C reaches the supervisor alone
    )
    try:
        deadline = None
        daemons = RayDaemons(driver.pid)
        lost_at, cause = None, None
        while driver.poll() is None:
            info = info or RunInfo.read(info_file)
            if watch is not None:
                watch(info, stage.read(temporary))
            if signals.received is not None and deadline is None:
                driver.send_signal(signal.SIGTERM)
                deadline = time.monotonic() + _GRACE_SECONDS
            lost = daemons.lost() if stage.read(temporary) != stage.ENDING else None
            if lost is not None:
                if lost_at is None:
                    lost_at = time.monotonic()
                    cause = lost
                    stage.say_cause(f"{lost}. The same command goes on from the last checkpoint", temporary)
                elif deadline is None and time.monotonic() > lost_at + _LOSS_SECONDS:
                    driver.send_signal(signal.SIGTERM)
                    deadline = time.monotonic() + _GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                driver.kill()
            time.sleep(_POLL_SECONDS)
        lost_for = time.monotonic() - lost_at if lost_at is not None else 0.0
        info = info or RunInfo.read(info_file)
        if watch is not None:
            watch(info, stage.read(temporary))
    finally:
        _end(_descendants())
        remove_segments(temporary)
        shutil.rmtree(temporary, ignore_errors=True)
        signals.restore()
    if driver.returncode < 0 and signals.received is None:  # it cannot have said why
        # Ray's processes end with their driver, and are gone a moment before it is.
        ended = (
            cause
            if lost_for > _LOSS_SECONDS / 2
            else f"the driver of the run was ended by {signal.Signals(-driver.returncode).name}, not by this command"
        )
        print(f"error: {ended}. The same command goes on from the last checkpoint", file=sys.stderr, flush=True)
    if signals.received is not None:
        return 128 + signals.received, info
    return (driver.returncode if driver.returncode >= 0 else 128 - driver.returncode), info


class _Signals:
    """Notes SIGINT, SIGTERM and SIGHUP instead of dying of them, so that the clean-up runs."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }

    def _note(self, number: int, _frame) -> None:
        self.received = number

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _short_base() -> Path:
    """TMPDIR, or /tmp where TMPDIR is long: Ray appends up to 80 bytes to a folder in it for its sockets, and Unix
    sockets take paths of some 100. A folder in the checkout would be too deep for many."""
    base = tempfile.gettempdir()
    return Path(base if len(base) <= 20 else "/tmp")


def _become_subreaper() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _end(processes: Sequence[psutil.Process]) -> None:
    """SIGTERM, then SIGKILL for what is left; until no descendant remains, orphans that appear meanwhile included."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=5)
    for _ in range(20):
        remaining = _descendants()
        if not remaining:
            return
        for process in remaining:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(remaining, timeout=1)


def _end_orphans(processes: Sequence[psutil.Process]) -> None:
    """As `_end`, of processes of a dead run, whose descendants carry its mark themselves."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            _signal(process, number)
        _, processes = psutil.wait_procs(processes, timeout=5)


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
