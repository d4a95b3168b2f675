"""Worker processes that grade answers under limits of time and memory, for any thread of any process.

Workers are separate programs on pipes, not ``multiprocessing`` children: those import the parent's main module again,
which a script without a main guard does not survive, and a daemonic process such as a pool's may not have them.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

TIMEOUT = "timeout"
CRASHED = "worker_died"

_PREFIX = "GTPO_VERL_MATH_"
_START_LIMIT_S = 120.0
_START_ATTEMPTS = 3
_START_PAUSE_S = 1.0
_REMEMBERED = 8192
# The parent's sys.path instead of PYTHONPATH, so that a plugin found in whatever way is found again.
_PROGRAM = (
    "import sys; a = sys.argv; sys.path[:] = a[4:]; from gtpo_verl.rewards.worker import main; "
    "main(int(a[1]), float(a[2]), int(a[3]))"
)


@dataclass(frozen=True)
class Limits:
    """Limits of the worker processes, each overridden by an environment variable."""

    seconds: float = 10.0
    """Wall-clock time one answer may take, ``GTPO_VERL_MATH_TIMEOUT_S``; above 0, at most 600."""
    memory_mib: int = 2048
    """Address space a worker may add to what its imports need, ``GTPO_VERL_MATH_MEMORY_MIB``; at least 64."""
    workers: int = 0
    """Processes at most, ``GTPO_VERL_MATH_WORKERS``; 0 means as many as the process may use cores, at most 4."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 600:
            raise ValueError(f"{_PREFIX}TIMEOUT_S must be above 0 and at most 600 seconds, not {self.seconds}")
        if self.memory_mib < 64:
            raise ValueError(f"{_PREFIX}MEMORY_MIB must be at least 64, not {self.memory_mib}")
        if self.workers < 0:
            raise ValueError(f"{_PREFIX}WORKERS must be 0 or more, not {self.workers}")

    @classmethod
    def from_environment(cls) -> Limits:
        """The limits of this process.

        Raises:
            ValueError: a variable is no number or out of range; the message names it.
        """
        return cls(
            seconds=_number("TIMEOUT_S", float, cls.seconds),
            memory_mib=_number("MEMORY_MIB", int, cls.memory_mib),
            workers=_number("WORKERS", int, cls.workers),
        )

    @property
    def processes(self) -> int:
        return self.workers or max(1, min(4, len(os.sched_getaffinity(0))))


def _number(name: str, kind: Any, default: Any) -> Any:
    text = os.environ.get(_PREFIX + name, "")
    if not text.strip():
        return default
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{_PREFIX}{name} is not a number: {text!r}") from None


class WorkerPool:
    """Grades answers in at most ``limits.processes`` processes, started when first needed.

    Every method may be called from any thread. After a fork, the child has no workers and starts its own.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._reset()
        _pools.add(self)

    def grade(self, answer: str, truth: str) -> str:
        """Waits for a free worker and has it compare the two.

        The time limit starts when the worker has the answer, not while waiting for one.

        Returns:
            What `gtpo_verl.rewards.grading.grade` returns, or ``out_of_memory``, `TIMEOUT`, or `CRASHED`.

        Raises:
            ImportError: math-verify is not installed.
            RuntimeError: a worker cannot be started; the message says why.
        """
        known = self._verdicts.get((answer, truth))
        if known is not None:
            return known
        worker = self._slots.get()
        try:
            if worker is None or not worker.alive():
                if worker is not None:
                    worker.kill()
                worker = _start(self.limits)
            verdict = worker.ask(answer, truth)
        except BaseException:
            if worker is not None:
                worker.kill()
            self._slots.put(None)
            raise
        if verdict in (TIMEOUT, CRASHED):
            worker.kill()
            worker = None
        self._slots.put(worker)
        self._remember(answer, truth, verdict)
        return verdict

    def _remember(self, answer: str, truth: str, verdict: str) -> None:
        # The responses to a problem repeat each other. What depends on the load of the machine is not remembered.
        if verdict in (TIMEOUT, CRASHED, "out_of_memory"):
            return
        with self._verdicts_lock:
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            self._verdicts[answer, truth] = verdict

    def close(self) -> None:
        """Ends the workers that are idle; those at work end with their answer, or with this process."""
        kept = 0
        while True:
            try:
                worker = self._slots.get_nowait()
            except queue.Empty:
                break
            kept += 1
            if worker is not None:
                worker.kill()
        for _ in range(kept):
            self._slots.put(None)

    def _reset(self) -> None:
        self._verdicts: dict[tuple[str, str], str] = {}
        self._verdicts_lock = threading.Lock()
        # The worker used last is used next, so that no more are started than are at work at one time.
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.limits.processes):
            self._slots.put(None)

    def _forget_after_fork(self) -> None:
        for worker in list(self._slots.queue):
            if worker is not None:
                worker.abandon()
        self._reset()


class _Worker:
    def __init__(self, limits: Limits) -> None:
        self._seconds = limits.seconds
        self._buffered = b""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _PROGRAM,
                str(os.getpid()),
                str(limits.seconds),
                str(limits.memory_mib << 20),
                *sys.path,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # Its own session: Ctrl-C at the terminal is the parent's to handle.
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )

    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, answer: str, truth: str) -> str:
        line = json.dumps({"answer": answer, "truth": truth}).encode("ascii") + b"\n"
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(line)
        except (BrokenPipeError, ConnectionError):
            return CRASHED
        reply = self.read(self._seconds)
        return TIMEOUT if reply is None else str(reply.get("verdict", CRASHED))

    def read(self, seconds: float) -> dict[str, Any] | None:
        """One message; an empty one if the process ended or wrote something else, None if the time is over."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._buffered:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            chunk = self.process.stdout.read(1 << 16)
            if not chunk:
                return {}
            self._buffered += chunk
        line, _, self._buffered = self._buffered.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            return {}
        return message if isinstance(message, dict) else {}

    def kill(self) -> None:
        self.process.kill()
        self.abandon()
        self.process.wait()

    def abandon(self) -> None:
        """Closes this process's ends of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _start(limits: Limits) -> _Worker:
    if find_spec("math_verify") is None:
        raise ImportError("the reward gtpo_verl.rewards.math needs math-verify: pip install 'math-verify[antlr4_9_3]'")
    reason = ""
    for attempt in range(_START_ATTEMPTS):
        if attempt:
            time.sleep(_START_PAUSE_S)
        try:
            worker = _Worker(limits)
        except OSError as error:  # too many processes, open files, or too little memory: another may end meanwhile
            reason = f"{type(error).__name__}: {error}"
            continue
        try:
            message = worker.read(_START_LIMIT_S)
        except BaseException:
            worker.kill()
            raise
        if message and message.get("ready"):
            return worker
        worker.kill()
        if message and "error" in message:  # the same at every attempt
            raise RuntimeError(f"a process that grades answers cannot start: {message['error']}")
        status = worker.process.returncode
        reason = f"nothing within {_START_LIMIT_S:.0f} s" if message is None else f"it ended with status {status}"
    raise RuntimeError(
        f"a process that grades answers cannot start ({_START_ATTEMPTS} attempts): {reason}. Limits of this user or "
        "container (ulimit -u, -n, -v, the memory of the cgroup) may be too small"
    )


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_shared: WorkerPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> WorkerPool:
    """The pool of this process, with the limits of the environment at its first use."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = WorkerPool(Limits.from_environment())
        return _shared


def _after_fork_in_child() -> None:
    # Locks of threads that do not exist in the child would stay locked.
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool._forget_after_fork()


def _at_exit() -> None:
    for pool in list(_pools):
        pool.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
