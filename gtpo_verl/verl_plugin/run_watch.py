"""Ends a run that waits in vain.

verl's trainer waits without a limit: for responses, by looking at TransferQueue; for TransferQueue's own answers; for
what an actor computes. Whoever is dead or stopped never answers, and nothing says so. A thread beside the trainer
looks whether this job's actors live and whether anything has moved, and interrupts the wait.
"""

import logging
import os
import signal
import threading
import time
from types import FrameType, TracebackType

import psutil

from gtpo_verl.runtime import stage
from gtpo_verl.verl_plugin.actor_watch import ActorWatch

logger = logging.getLogger(__name__)

_SIGNAL = signal.SIGUSR2  # of the trainer's process, in which neither Ray nor verl uses it
_GOES_ON = "The same command goes on from the last checkpoint"
_GRACE_SECONDS = 30.0  # from the interruption to the end by force


class RunWatch:
    """A context manager around a training, to be entered in the thread that trains.

    Args:
        stall_timeout: seconds without any progress after which the run is ended; 0: no limit.
        interval: seconds between two looks.

    Raises:
        RuntimeError: on leaving, in place of the interruption: what died, or for how long nothing moved, in which
            phase, and which of this run's processes on this node are stopped.
    """

    def __init__(self, stall_timeout: float, interval: float = 5.0):
        self.stall_timeout = stall_timeout
        self.interval = interval
        self.phase = "start"
        self.cause: str | None = None
        self._moved_at = time.monotonic()
        self._ended = threading.Event()

    def enter_phase(self, phase: str) -> None:
        """A new phase of a step has begun: something has moved."""
        self.phase = phase
        self.progress()

    def progress(self) -> None:
        """Something has moved within the phase: a response has come."""
        self._moved_at = time.monotonic()

    def __enter__(self) -> "RunWatch":
        self.progress()
        self._ended.clear()
        self._actors = ActorWatch()
        self._actors.start()
        self._trainer = threading.current_thread()
        if self._trainer is threading.main_thread():  # the only one that a signal can interrupt
            self._previous = signal.signal(_SIGNAL, self._interrupt)
        threading.Thread(target=self._watch, name="gtpo_verl run watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._trainer is threading.main_thread():
            signal.signal(_SIGNAL, self._previous)
        if self.cause is not None and isinstance(error, KeyboardInterrupt):
            raise RuntimeError(f"{self.cause}. {_GOES_ON}") from None
        if isinstance(error, Exception) and (died := self._died_of(error)):
            raise RuntimeError(f"{died}; {str(error).splitlines()[0]} {_GOES_ON}") from error

    def _died_of(self, error: Exception) -> str | None:
        """Which actors are gone, where an error speaks of actors; Ray's table may be a moment late."""
        if "actor" not in f"{type(error)} {error}".lower():
            return None
        for _ in range(10):
            if died := self._actors.died():
                return died
            time.sleep(0.3)
        return None

    def _watch(self) -> None:
        while not self._ended.wait(self.interval):
            self.cause = self._actors.died() or self._stalled()
            if self.cause is None:
                continue
            # An actor's death often reaches the trainer by itself, with more to say.
            if self._ended.wait(min(self.interval, 5.0)):
                return
            logger.error("%s", self.cause)
            if self._trainer is threading.main_thread():
                signal.pthread_kill(threading.main_thread().ident, _SIGNAL)  # type: ignore[arg-type]
            if not self._ended.wait(_GRACE_SECONDS):
                stage.say_cause(f"{self.cause}. {_GOES_ON}")
                logging.shutdown()
                os._exit(1)
            return

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        # Not the cause itself: Ray lets no exception but this one out of its waits.
        raise KeyboardInterrupt

    def _stalled(self) -> str | None:
        still = time.monotonic() - self._moved_at
        if self.stall_timeout <= 0 or still < self.stall_timeout:
            return None
        stopped = ", ".join(f"{process.name()} ({process.pid})" for process in _stopped_processes())
        return (
            f"nothing has moved for {still:.0f} s, more than gtpo_verl.stall_timeout={self.stall_timeout:g}; the phase "
            f"is: {self.phase}. "
            + (f"Stopped processes on this node: {stopped}" if stopped else "No process on this node is stopped")
        )


def _stopped_processes() -> list[psutil.Process]:
    """This user's processes that were stopped (SIGSTOP, a debugger), Ray's and vLLM's by their names."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_STOPPED and process.uids().real == os.getuid():
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.name().startswith(("ray", "VLLM", "python", "gtpo"))]
