"""Real runs: the command a user types, in a process of its own, with a home folder that must stay empty."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet
import torch

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("gtpo-verl")

# A few seconds a step: small batches, short responses, no validation unless a test asks for it.
SMALL = [
    "data.train_batch_size=4",
    "data.max_response_length=64",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
]


def read_tokens(path: Path) -> dict:
    """A token dump as tensors: {column: a list of one entry a response}."""
    columns = pyarrow.parquet.read_table(path).to_pydict()
    tensors = ("prompts", "responses", "response_mask", "entropy", "advantages", "old_log_probs", "rollout_log_probs")
    return {
        **columns,
        **{name: [torch.tensor(row) for row in columns[name]] for name in tensors if name in columns},
        "reward": [json.loads(text) for text in columns["reward"]],
    }


@dataclass
class Run:
    """A training run started in `folder`; every process of it carries a mark in its environment."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    home: Path = field(init=False)
    process: subprocess.Popen = field(init=False)
    temporary: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)

    def start(self, *overrides: str, command: str = "train", **environment: str) -> "Run":
        arguments = [str(COMMAND), command, f"gtpo_verl.cache_dir={ROOT / '.cache/gtpo-verl'}", *overrides]
        self.output = (self.folder / "terminal.txt").open("ab")
        self.process = subprocess.Popen(
            arguments,
            cwd=self.folder,
            env={**os.environ, "HOME": str(self.home), "GTPO_VERL_TEST": self.mark, **environment},
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )
        return self

    def wait(self, timeout: float = 900) -> int:
        return self.process.wait(timeout=timeout)

    def end(self) -> None:
        """Ends it if it still goes on."""
        process = getattr(self, "process", None)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=90)

    @property
    def terminal(self) -> str:
        return (self.folder / "terminal.txt").read_text(errors="replace")

    def run_dir(self) -> Path:
        (metrics,) = self.folder.glob("runs/*/*/metrics.jsonl")
        return metrics.parent

    def steps(self) -> list[int]:
        """Steps of the metrics file, in the order of its lines; a torn last line is not counted."""
        return [record["step"] for record in self.metrics()]

    def metrics(self) -> list[dict]:
        lines = [
            line for path in self.folder.glob("runs/*/*/metrics.jsonl") for line in path.read_bytes().splitlines(True)
        ]
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def processes(self) -> list[psutil.Process]:
        """Living processes with this run's mark; notes their temporary folder on the way."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if environment.get("GTPO_VERL_TEST") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
                    if "GTPO_VERL_TMP" in environment:
                        self.temporary.add(Path(environment["GTPO_VERL_TMP"]))
            except psutil.Error:
                continue
        return found

    def listening(self) -> set[str]:
        """Addresses on which a process of the run listens."""
        return {
            connection.laddr.ip
            for process in self.processes()
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }

    def wait_until(self, condition: Callable[[], bool], timeout: float = 600) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, self.terminal
            assert time.monotonic() < deadline, self.terminal
            time.sleep(0.2)

    def assert_nothing_left(self) -> None:
        """No process, no shared memory, no temporary folder, and an empty home."""
        assert self.processes() == []
        for temporary in self.temporary:
            assert not temporary.exists()
            assert list(Path("/dev/shm").glob(f"*{temporary.name[-8:]}*")) == []
        assert sorted(self.home.rglob("*")) == []
