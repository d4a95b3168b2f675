"""Runs on cards: at most so many on each, and starts on a card so many seconds apart."""

import ctypes
import math
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduction.manifest import Planned, Scale
from gtpo_verl.report import prompts


class Schedule:
    """Runs on cards: at most so many on each, and starts on a card so many seconds apart.

    Args:
        command: what starts a run; the run's overrides follow.
        runs_dir: folder of the runs' folders.
        begin: called before a run is started, when its folder is there.
    """

    def __init__(
        self, command: Sequence[str], scale: Scale, runs_dir: Path, begin: Callable[[Planned], None] = lambda _: None
    ):
        self._command = list(command)
        self._scale = scale
        self._runs_dir = runs_dir
        self._begin = begin
        self._last_start: dict[int, float] = {}
        self._running: dict[Planned, tuple[int, float, subprocess.Popen]] = {}
        self.stopped_by: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: Any) -> None:
        self.stopped_by = self.stopped_by or number

    def finished(self, runs: Sequence[Planned]) -> Iterator[tuple[Planned, int, float]]:
        """Starts the runs in their order, until a signal ends them all; yields each at its end, with exit code and
        seconds."""
        waiting = list(runs)
        told = False
        while self._running or (waiting and self.stopped_by is None):
            for run in [run for run, (_, _, process) in self._running.items() if process.poll() is not None]:
                _, began, process = self._running.pop(run)
                yield run, process.returncode, time.monotonic() - began
            if self.stopped_by is not None and not told:
                for _, _, process in self._running.values():
                    process.terminate()
                told = True
            card = self._free_card()
            if waiting and self.stopped_by is None and card is not None:
                self._start(waiting.pop(0), card)
            time.sleep(0.2)

    def _free_card(self) -> int | None:
        """The card with the fewest runs of those on which one may start now."""
        since = time.monotonic() - self._scale.seconds_apart
        used = Counter(card for card, _, _ in self._running.values())
        free = [
            card
            for card in range(max(1, self._scale.cards))
            if used[card] < self._scale.side_by_side and self._last_start.get(card, -math.inf) <= since
        ]
        return min(free, key=lambda card: used[card], default=None)

    def _start(self, run: Planned, card: int) -> None:
        folder = self._runs_dir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        self._begin(run)
        environment = dict(os.environ)
        if self._scale.cards:
            environment["CUDA_VISIBLE_DEVICES"] = str(card)
        places = {"gtpo_verl.run_dir": folder, "trainer.validation_data_dir": folder / prompts.FOLDER}
        with (folder / "terminal.txt").open("ab") as terminal:
            process = subprocess.Popen(
                [*self._command, *run.overrides, *(f"{key}={_quoted(path)}" for key, path in places.items())],
                env=environment,
                stdout=terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
                preexec_fn=_end_with_parent,
            )
        self._last_start[card] = time.monotonic()
        self._running[run] = card, time.monotonic(), process
        print(f"{run.name}: started{f' on card {card}' if self._scale.cards else ''}", flush=True)


def _end_with_parent() -> None:
    """Asks the kernel for SIGTERM when this program is killed in a way it cannot pass on (linux/prctl.h)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)


def _quoted(path: Path) -> str:
    """A path as Hydra reads it, so that spaces, commas and equals signs are nothing special."""
    return "'" + str(path.absolute()).replace("\\", "\\\\").replace("'", "\\'") + "'"
