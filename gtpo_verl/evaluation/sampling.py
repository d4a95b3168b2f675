"""Responses of one model from engines in processes of their own, one for each group of GPUs."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gtpo_verl.evaluation.devices import Devices

_TICK_S = 1.0
_WORKERS_END_S = 20.0
_LOG_BYTES = 1 << 16


class EngineError(RuntimeError):
    """An engine ended before its work was done; the message names its log."""


@dataclass(frozen=True)
class Prompt:
    """A prompt and the seeds of the samples that are wanted of it."""

    token_ids: Sequence[int]
    seeds: Sequence[int]


@dataclass(frozen=True)
class Response:
    """What an engine gave.

    Attributes:
        prompt, sample: indices of the prompt and of its seed.
        text: without special tokens.
        tokens: generated, the end token among them.
        finish_reason: ``stop``, or ``length`` where it was cut off.
    """

    prompt: int
    sample: int
    text: str
    tokens: int
    finish_reason: str


def sample(
    engine: Mapping[str, Any], params: Mapping[str, Any], prompts: Sequence[Prompt], devices: Devices, logs: Path
) -> Iterator[Response | None]:
    """Yields the responses as they end, and None once a second while none does. Closing it ends the engines.

    Args:
        engine: of vLLM's ``EngineArgs``.
        params: of vLLM's ``SamplingParams``, but for the seed.
        logs: folder of the engines' logs, ``engine-<number>.log``.

    Raises:
        EngineError: an engine ended early.
    """
    wanted = [(prompt, sample) for prompt, each in enumerate(prompts) for sample in range(len(each.seeds))]
    # In turns, so that no engine has all the long ones of a problem.
    engines = min(len(devices.engines), len(wanted))
    shares = [wanted[index::engines] for index in range(engines)]
    arrived: queue.Queue[tuple[int, bytes | None]] = queue.Queue()
    running: list[_Engine] = []
    logs.mkdir(parents=True, exist_ok=True)
    try:
        for index, share in enumerate(shares):
            there = sorted({prompt for prompt, _ in share})
            place = {prompt: position for position, prompt in enumerate(there)}
            job = {
                "engine": dict(engine),
                "sampling": dict(params),
                "prompts": [list(prompts[prompt].token_ids) for prompt in there],
                "requests": [[place[prompt], prompts[prompt].seeds[sample]] for prompt, sample in share],
            }
            running.append(_Engine(index, job, devices.environment(index), logs / f"engine-{index}.log", arrived))
        open_engines, missing = engines, [len(share) for share in shares]
        while open_engines:
            try:
                index, line = arrived.get(timeout=_TICK_S)
            except queue.Empty:
                yield None
                continue
            if line is None:
                open_engines -= 1
                if missing[index]:
                    raise running[index].failure(missing[index])
                continue
            missing[index] -= 1
            found = json.loads(line)
            prompt, sample_index = shares[index][found.pop("number")]
            yield Response(prompt, sample_index, **found)
    finally:
        for each in running:
            each.kill()
        for each in running:
            each.end()


class _Engine:
    def __init__(
        self,
        index: int,
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        log: Path,
        arrived: queue.Queue[tuple[int, bytes | None]],
    ) -> None:
        self._log = log
        read, write = os.pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gtpo_verl.evaluation.engine", str(os.getpid()), str(write)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=[write],
                # Ctrl-C at the terminal is the parent's to handle.
                start_new_session=True,
            )
        os.close(write)

        def follow() -> None:
            with os.fdopen(read, "rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):
                        arrived.put((index, line))
            arrived.put((index, None))

        def tell() -> None:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError), self._process.stdin as stdin:
                stdin.write(json.dumps(job).encode())

        for target in (follow, tell):
            threading.Thread(target=target, daemon=True).start()

    def failure(self, missing: int) -> EngineError:
        """What to say when it has ended early."""
        try:
            status: int | None = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            status = None
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        errors = [line.strip() for line in lines if "Error" in line]
        said = f": {errors[-1][:500]}" if errors else ""
        return EngineError(f"vLLM ended with status {status}, {missing} responses short{said}; its log is {self._log}")

    def kill(self) -> None:
        """Ends the engine alone, not the workers that it has on several GPUs.

        They end when it is gone, and Python's resource tracker, which was started with them, then removes their shared
        memory: some hundred MB, which would stay if all were killed at once.
        """
        self._process.kill()

    def end(self) -> None:
        """Returns when the engine and all that it started are gone."""
        self.kill()
        self._process.wait()
        deadline = time.monotonic() + _WORKERS_END_S
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found
