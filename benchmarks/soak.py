"""Does a long run grow? Some hundred small steps, and what each process of them holds.

usage: python -m benchmarks.soak OUTPUT.csv [--steps 500] [Hydra overrides]

Trains the tiny model with `gtpo-verl train`, with checkpoints and validations, and writes a row a sample: seconds since
the start, steps done, and for each kind of process how many there are, their memory (proportional set size, MiB) and
open files; entries and MiB under /dev/shm with the run's name; what TransferQueue's own metrics say of its keys. Then
says how much each grew from the second fifth of the steps to the last, and draws OUTPUT.svg.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

INTERVAL = 5.0  # seconds
OVERRIDES = [
    "algorithm=gtpo_v1",
    "data.train_batch_size=4",
    "data.max_response_length=32",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "algorithm.filter_groups.enable=false",
    "data.val_max_samples=8",
    "trainer.save_freq=25",
    "trainer.test_freq=25",
    "trainer.total_epochs=1000",
    "transfer_queue.metrics.enabled=true",
]
QUEUE = {"tq_storage_active_keys_total": "queue keys stored", "tq_partition_samples_total": "queue keys listed"}


def kind(process: psutil.Process) -> str:
    """What a process is, without its number or its method: `ray::WorkerDict`, `raylet`, `driver`."""
    title = " ".join(process.cmdline())
    if match := re.match(r"ray::(\w+)", title):
        return f"ray::{match[1]}"
    for word in (
        "fork_server.server",
        "gtpo_verl.driver.main",
        "raylet/raylet",
        "gcs_server",
        "dashboard",
        "monitor.py",
    ):
        if word in title:
            return word.rsplit("/")[-1]
    return process.name()


def sample(mark: str) -> dict[str, float]:
    """Processes that carry `mark` in their environment, by kind, and shared memory of their run."""
    found: dict[str, float] = defaultdict(float)
    names: set[str] = set()
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get("GTPO_VERL_SOAK") != mark:
                continue
            name = kind(process)
            found[f"{name} count"] += 1
            found[f"{name} MiB"] += process.memory_full_info().pss / 2**20
            found[f"{name} files"] += process.num_fds()
            if "GTPO_VERL_TMP" in environment:
                names.add(environment["GTPO_VERL_TMP"][-8:])
        except psutil.Error:
            continue
    segments = [path for name in names for path in Path("/dev/shm").glob(f"*{name}*")]
    found["shm count"] = len(segments)
    found["shm MiB"] = sum(path.stat().st_size for path in segments if path.exists()) / 2**20
    return found


def queue(port: int) -> dict[str, float]:
    """Keys that TransferQueue holds, summed over storage units and partitions; empty while it has not started."""
    found: dict[str, float] = defaultdict(float)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            text = response.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    for family in text_string_to_metric_families(text):
        for measured in family.samples:
            if measured.name in QUEUE:
                found[QUEUE[measured.name]] += measured.value
    return found


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def steps_done(metrics: Path) -> int:
    lines = metrics.read_bytes().splitlines() if metrics.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--run-dir", type=Path, help="kept afterwards; default: a temporary folder")
    arguments, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        run_dir = arguments.run_dir or Path(temporary, "run")
        mark = f"{os.getpid()}-{time.time()}"
        command = [str(Path(sys.executable).with_name("gtpo-verl")), "train", *OVERRIDES, *overrides]
        port = free_port()
        command += [f"transfer_queue.metrics.port={port}"]
        command += [f"trainer.total_training_steps={arguments.steps}", f"gtpo_verl.run_dir={run_dir}"]
        environment = {**os.environ, "GTPO_VERL_SOAK": mark}
        began = time.monotonic()
        rows: list[dict[str, float]] = []
        with subprocess.Popen(command, env=environment) as process:
            while process.poll() is None:
                time.sleep(INTERVAL)
                rows.append({"seconds": time.monotonic() - began, "step": steps_done(run_dir / "metrics.jsonl")})
                rows[-1].update(sample(mark) | queue(port))
        if process.returncode or not rows:
            sys.exit(process.returncode)  # it has said why
        times = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]
    write(arguments.output, rows)
    draw(arguments.output.with_suffix(".svg"), rows)
    say(rows, [(record["step"], record["data"].get("timing_s/step")) for record in times], arguments.steps)


def write(output: Path, rows: list[dict[str, float]]) -> None:
    columns = ["seconds", "step", *sorted({name for row in rows for name in row} - {"seconds", "step"})]
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([[round(row.get(name, 0), 2) for name in columns] for row in rows])


def say(rows: list[dict[str, float]], times: list[tuple[int, float | None]], steps: int) -> None:
    """Means of the second fifth of the steps (the first warms up) and of the last."""
    early = [row for row in rows if steps // 5 <= row["step"] < 2 * steps // 5]
    late = [row for row in rows if 4 * steps // 5 <= row["step"] < steps]
    for name in sorted({name for row in rows for name in row} - {"seconds", "step"}):
        before, after = (sum(row.get(name, 0) for row in part) / max(len(part), 1) for part in (early, late))
        print(f"{name:40s} {before:10.1f} {after:10.1f} {after - before:+9.1f}")
    for part, low, high in (("early", steps // 5, 2 * steps // 5), ("late", 4 * steps // 5, steps)):
        seconds = sorted(value for step, value in times if value is not None and low <= step < high)
        if seconds:
            print(f"step time, {part}: median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s")


def draw(output: Path, rows: list[dict[str, float]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    for axis, unit, label in zip(
        axes, ("MiB", "files", "count"), ("memory, MiB", "open files", "processes"), strict=True
    ):
        for name in sorted({name for row in rows for name in row if name.endswith(f" {unit}")}):
            values = [row.get(name, 0) for row in rows]
            if max(values) > (20 if unit == "MiB" else 0):
                axis.plot([row["step"] for row in rows], values, label=name.removesuffix(f" {unit}"), linewidth=1)
        axis.set(xlabel="step", ylabel=label)
    axes[0].legend(fontsize=6, ncols=2)
    figure.savefig(output)


if __name__ == "__main__":
    main()
