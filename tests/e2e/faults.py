"""One fault in a real run, and what becomes of it: a cell of the matrix in docs/reliability.md.

usage: python tests/e2e/faults.py [--list] CELL...      e.g. "kill engine @ rollout" "stop actor @ update"

Cells are tried one after another on one run: each start goes on from the last checkpoint, takes a whole step, and meets
its fault in the next. A last start ends the run, whose steps are then looked at.
"""

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from training_run import ROOT, SMALL, Run

PHASES = ("rollout", "log-probabilities", "advantages", "update", "weights", "save", "validation")
STALL_TIMEOUT = 30
BOUND = 90  # seconds from a kill to the end; a stop may take STALL_TIMEOUT more

# What the terminal must say, beside "error:", of a process that was killed.
NAMES = {
    "driver": r"driver.*(SIGKILL|signal 9)",
    "supervisor": None,  # nobody is left to say it
    "task runner": r"TaskRunner",
    "actor": r"WorkerDict",
    "vllm server": r"BatchingServer",
    "engine": r"EngineDead|vLLM's engine",
    "vllm worker": r"EngineDead|vLLM's engine",
    "agent loop": r"AgentLoopWorker",
    "reward worker": r"RewardLoopWorker",
    "queue controller": r"TransferQueueController",
    "queue storage": r"SimpleStorageUnit",
    "raylet": r"raylet",
    "gcs": r"GCS|gcs_server",
}
STOPPED = r"nothing has moved for \d+ s, more than gtpo_verl.stall_timeout=30"

OVERRIDES = [
    *SMALL,
    "algorithm=gtpo_v1",
    "algorithm.filter_groups.enable=false",
    "data.max_response_length=32",
    "actor_rollout_ref.rollout.n=4",
    "reward.num_workers=2",
    "trainer.save_freq=1",
    "trainer.test_freq=1",
    "data.val_max_samples=8",
    "actor_rollout_ref.rollout.val_kwargs.n=1",
    "trainer.rollout_data_dir=rollouts",
    f"gtpo_verl.stall_timeout={STALL_TIMEOUT}",
]


@dataclass(frozen=True)
class Cell:
    """`kill` or `stop`, whom (see inside_run/fault.py), and in which phase of a step."""

    deed: str
    victim: str
    phase: str
    delay: float = 0.1

    @classmethod
    def parse(cls, text: str) -> "Cell":
        match = re.fullmatch(r"(kill|stop) (.+?) @ (.+?)", text)
        if match is None or match[2] not in NAMES or match[3] not in PHASES:
            raise SystemExit(f"no cell: {text!r}; kill or stop, one of {', '.join(NAMES)}, @, one of {PHASES}")
        return cls(*match.groups())

    def __str__(self) -> str:
        return f"{self.deed} {self.victim} @ {self.phase}"

    @property
    def expected(self) -> str | None:
        return STOPPED if self.deed == "stop" else NAMES[self.victim]


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    code: int
    seconds: float  # from the fault to the end
    said: str  # the last line of the terminal that begins with "error:"


class Chain:
    """A run that meets one fault after another."""

    def __init__(self, folder: Path, cells: int):
        self.run = Run(folder)
        self.steps = 3 * cells + 6  # a fault that is noticed late lets some more be taken

    def overrides(self) -> list[str]:
        return [*OVERRIDES, f"trainer.total_training_steps={self.steps}", f"data.train_max_samples={4 * self.steps}"]

    def meet(self, cell: Cell) -> Outcome:
        """Starts, waits for the fault and the end.

        Raises:
            AssertionError: what of the promise was not kept.
        """
        run = self.run
        record = run.folder / "fault.json"
        record.unlink(missing_ok=True)
        before = len(run.terminal) if (run.folder / "terminal.txt").exists() else 0
        fault = {
            "signal": signal.SIGKILL if cell.deed == "kill" else signal.SIGSTOP,
            "victim": cell.victim,
            "phase": cell.phase,
            "occurrence": 2,
            "delay": cell.delay,
            "record": str(record),
        }
        run.start(
            *self.overrides(),
            PYTHONPATH=f"{ROOT / 'tests/e2e/inside_run'}:{os.environ.get('PYTHONPATH', '')}",
            GTPO_VERL_FAULT=json.dumps(fault),
        )
        deadline = time.monotonic() + 300
        while not record.exists():
            assert run.process.poll() is None, f"{cell}: ended before its fault\n{run.terminal[before:]}"
            assert time.monotonic() < deadline, f"{cell}: the phase never came\n{run.terminal[before:]}"
            run.processes()  # notes the temporary folder
            time.sleep(0.2)
        done = json.loads(record.read_text())
        assert "error" not in done, done["error"]
        code = run.wait(timeout=BOUND + (STALL_TIMEOUT if cell.deed == "stop" else 0))
        seconds = time.time() - done["time"]
        said = [line for line in run.terminal[before:].splitlines() if line.startswith("error:")]
        outcome = Outcome(cell, code, seconds, said[-1] if said else "")
        assert code != 0, outcome
        if cell.expected is not None:
            assert len(said) == 1, (outcome, said)
            assert re.search(cell.expected, said[0]), outcome
            run.assert_nothing_left()
        else:
            self._wait_until_gone()
        return outcome

    def _wait_until_gone(self) -> None:
        deadline = time.monotonic() + BOUND
        while self.run.processes():
            assert time.monotonic() < deadline, self.run.processes()
            time.sleep(0.5)

    def stop(self) -> None:
        """Ends what a promise that was not kept has left, continued first where it was stopped."""
        for process in self.run.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        if self.run.process.poll() is None:
            self.run.process.terminate()
            self.run.process.wait(timeout=120)
        for process in self.run.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def end(self) -> None:
        """Goes on to the last step without a fault; then no step is missing, none twice, and none saw other prompts
        than it should: an epoch has each prompt once."""
        run = self.run
        run.start(*self.overrides())
        assert run.wait(timeout=600) == 0, run.terminal
        run.assert_nothing_left()
        assert run.steps() == list(range(1, self.steps + 1))
        keys = {frozenset(record["data"]) for record in run.metrics()}
        assert len(keys) == 1, keys
        prompts = [
            {json.loads(line)["input"] for line in (run.folder / f"rollouts/{step}.jsonl").read_text().splitlines()}
            for step in run.steps()
        ]
        assert all(len(of_step) == 4 for of_step in prompts)
        assert len(set().union(*prompts)) == 4 * self.steps


def main(arguments: list[str]) -> None:
    if arguments == ["--list"]:
        print(
            "\n".join(f"{deed} {victim} @ {phase}" for deed in ("kill", "stop") for victim in NAMES for phase in PHASES)
        )
        return
    cells = [Cell.parse(argument) for argument in arguments]
    with tempfile.TemporaryDirectory(prefix="faults-", dir="/var/tmp") as folder:
        chain = Chain(Path(folder), len(cells))
        try:
            for cell in cells:
                began = time.monotonic()
                try:
                    outcome = chain.meet(cell)
                    print(f"{cell} | {outcome.code} | {outcome.seconds:.0f} s | {outcome.said}", flush=True)
                except (AssertionError, OSError) as error:
                    print(f"{cell} | NOT KEPT after {time.monotonic() - began:.0f} s: {error}", flush=True)
                except BaseException as error:
                    print(
                        f"{cell} | NOT KEPT: {type(error).__name__} {error}\n{chain.run.terminal[-2000:]}", flush=True
                    )
                finally:
                    chain.stop()
            chain.end()
            print("ended; every step once")
        finally:
            chain.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
