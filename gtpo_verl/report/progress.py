"""What a person sees while a run trains: a bar with step, reward, entropy and time left, or plain lines in a log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.status import Status

from gtpo_verl.report.metrics_log import MetricsError, parse_line

_SPEED_OVER_STEPS = 10


class MetricsTail:
    """Reads the lines that were appended to a metrics file since the last look, whole lines only.

    What an earlier run left in the file is not read: verl writes the file anew at every start, and only then begins
    the tail.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._inode = -1
        self._left_by_earlier_run = _state(path)

    def read(self) -> list[tuple[int, dict[str, float]]]:
        """Return (step, values) of each new line; after the file was written anew, of all its lines.

        A file that is not there yet has no lines; lines in another form are skipped, for a display must not
        end a run.
        """
        if self._left_by_earlier_run is not None:
            if _state(self.path) == self._left_by_earlier_run:
                return []
            self._left_by_earlier_run = None
        try:
            with self.path.open("rb") as handle:
                status = os.fstat(handle.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                handle.seek(self._offset)
                content = handle.read()
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        records = []
        for line in whole.splitlines():
            try:
                records.append(parse_line(line, str(self.path)))
            except MetricsError:
                continue
        return records


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written to or replaced; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class ProgressDisplay:
    """Shows how far a run is; call ``update`` a few times a second, or a minute.

    On a terminal it is a bar that renews itself; elsewhere one line per step. As a context manager it clears up the
    terminal however the run ends.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console()
        self._clock = clock
        self._tail: MetricsTail | None = None
        self._bar: Progress | None = None
        self._waiting: Status | None = None
        self._stage = "starting"
        self._arrivals: list[tuple[float, int]] = []
        self._step = 0
        self._values: dict[str, float] = {}

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands and give the terminal back."""
        self._stop_waiting()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def wait(self, stage: str) -> None:
        """Say what the run is busy with: beside a spinner, and beside the bar until the first step is there.

        Says nothing where there is no terminal.
        """
        self._stage = stage
        if not self._console.is_interactive or self._bar is not None:
            return
        if self._waiting is None:
            self._waiting = self._console.status(stage)
            self._waiting.start()
        self._waiting.update(stage)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    def update(self, name: str, metrics: Path, total_steps: int | None, resumed_step: int = 0) -> None:
        """Look at the metrics file and show what is new.

        Args:
            name: of the run.
            metrics: its metrics file, which need not exist yet.
            total_steps: steps it will train; None if unknown.
            resumed_step: step of the checkpoint it goes on from; the metrics up to it are not news.
        """
        if self._tail is None or self._tail.path != metrics:
            self._tail = MetricsTail(metrics)
            self._arrivals, self._step, self._values = [], 0, {}
        # Validation before training is logged too, but no step was made.
        trained = [
            (step, values) for step, values in self._tail.read() if "actor/entropy" in values and step > resumed_step
        ]
        if trained:
            self._note_arrival(trained[-1][0])
        for self._step, self._values in trained:
            if not self._console.is_interactive:
                self._console.print(self._line(name, total_steps), highlight=False, soft_wrap=True)
        if self._console.is_interactive:
            self._show(name, total_steps)

    def _note_arrival(self, step: int) -> None:
        if not self._arrivals or step > self._arrivals[-1][1]:
            self._arrivals = [*self._arrivals[-_SPEED_OVER_STEPS:], (self._clock(), step)]

    def seconds_left(self, total_steps: int | None) -> float | None:
        """Return an estimate of the time left, in seconds, from the last few steps; None with nothing to go by."""
        if total_steps is None or len(self._arrivals) < 2:
            return None
        (began, first), (ended, last) = self._arrivals[0], self._arrivals[-1]
        return (total_steps - last) * (ended - began) / (last - first)

    def _facts(self, total_steps: int | None) -> str:
        reward = self._values.get("critic/score/mean", self._values.get("critic/rewards/mean"))
        entropy = self._values.get("actor/entropy")
        left = self.seconds_left(total_steps)
        parts = [
            f"reward {reward:.3f}" if reward is not None else None,
            f"entropy {entropy:.3f}" if entropy is not None else None,
            f"ETA {_clock_time(left)}" if left is not None else None,
        ]
        return "  ".join(part for part in parts if part)

    def _line(self, name: str, total_steps: int | None) -> str:
        total = f"/{total_steps}" if total_steps is not None else ""
        return f"{name}: step {self._step}{total}  {self._facts(total_steps)}"

    def _show(self, name: str, total_steps: int | None) -> None:
        if self._bar is None:
            self._stop_waiting()
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._bar.add_task(name, total=total_steps, facts=self._stage)
            self._bar.start()
        facts = self._facts(total_steps) if self._values else self._stage
        self._bar.update(self._bar.task_ids[0], description=name, total=total_steps, completed=self._step, facts=facts)


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
