"""The table of docs/performance.md and the rows of benchmarks/results, from what the stages left in their folder."""

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.big_model.machine import START, by_phase, peaks, read_samples, seconds
from benchmarks.big_model.settings import JOBS, Job
from benchmarks.training_step import read_steps
from gtpo_verl.runtime.stage import phases

Row = dict[str, Any]
# Phases of a step as the trainer says them, by the preflight's name for those that it estimates.
PHASES: dict[str, str | None] = {
    START: None,
    "rollout": "rollout",
    "log-probabilities": "log-prob",
    "advantages": None,
    "update": "update",
    "weights": None,
    "save": None,
}
CHANGED = "share of weights changed"
_TITLES = {"gtpo_v2": "GTPO v2", "dapo": "DAPO", "gtpo_verl": "our engine", "verl": "verl's engine"}


@dataclass(frozen=True)
class Run:
    """All jobs of one algorithm.

    Attributes:
        folder: with metrics.jsonl and train.log.
        samples: by job, the file of its sampler; of those that were started.
    """

    algorithm: str
    engine: str
    folder: Path
    samples: Mapping[str, Path]


def runs_of(out: Path) -> list[Run]:
    """Runs that have at least one step."""
    found: dict[str, tuple[Job, dict[str, Path]]] = {}
    for name, job in JOBS.items():
        samples = found.setdefault(job.algorithm, (job, {}))[1]
        if (path := samples_file(out, name)).exists():
            samples[name] = path
    runs = [Run(job.algorithm, job.engine, run_folder(out, job), samples) for job, samples in found.values()]
    return [run for run in runs if (run.folder / "metrics.jsonl").exists()]


def run_folder(out: Path, job: Job) -> Path:
    """Of a job's metrics, log, checkpoints and tokens."""
    return out / "runs" / job.algorithm


def samples_file(out: Path, job: str) -> Path:
    return out / "memory" / f"{job}.csv"


def phases_of(run: Run) -> list[tuple[float, int, str]]:
    log = run.folder / "train.log"
    return phases(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else []


def step_rows(run: Run, gpus: int, card: str | None, date: str) -> list[Row]:
    """Every step, as benchmarks/results has them: seconds, and GiB of the fullest card by `nvidia-smi`."""
    marks = phases_of(run)
    saves = seconds(marks, "save")
    found = {}
    for path in run.samples.values():
        found.update(by_phase(read_samples(path), marks))
    starts = _first_steps(run, marks)
    rows = []
    for row in read_steps(f"{run.algorithm}, {gpus} GPUs", run.folder):
        step = row["step"]
        taken = {f"{_column(phase)}_gib": "" for phase in PHASES if phase != START}
        for phase in PHASES:
            used = [max(sample.gpus) for sample in found.get((step, phase), []) if sample.gpus]
            if used:
                taken[f"{_column(phase)}_gib"] = f"{max(used):.1f}"
        rows.append(
            {
                "algorithm": run.algorithm,
                "engine": run.engine,
                "gpus": gpus,
                **row,
                "first_of_job": step in starts,
                "save": round(saves[step], 2) if step in saves else "",
                "tokens_per_second_per_gpu": round(row["tokens"] / row["whole_step"] / gpus, 1),
                **taken,
                "card": card or "",
                "date": date,
            }
        )
    return rows


def _first_steps(run: Run, marks: Sequence[tuple[float, int, str]]) -> set[int]:
    """Steps that were the first of a job, which compiles and warms up."""
    first = set()
    for path in run.samples.values():
        steps = [step for step, phase in by_phase(read_samples(path), marks) if phase != START]
        first.update(steps[:1])
    return first


def memory_rows(run: Run, estimates: Mapping[str, float]) -> list[Row]:
    """Peaks by phase over all steps beside the preflight's estimate of it (GiB); of the disk, what a job added.

    Args:
        estimates: by the preflight's name of a phase, and `host`, `disk`.
    """
    marks, most = phases_of(run), dict[str, dict[str, float]]()
    for path in run.samples.values():
        samples = read_samples(path)
        for phase, used in peaks(by_phase(samples, marks)).items():
            used["disk"] -= samples[0].disk
            values = most.setdefault(phase, {})
            for what, value in used.items():
                values[what] = max(values.get(what, 0.0), value)
    rows = []
    for phase, name in PHASES.items():
        if phase in most:
            cells = {f"{what}_gib": round(most[phase][what], 1) if what in most[phase] else "" for what in _MEASURED}
            estimate = round(estimates[name], 1) if name is not None and name in estimates else ""
            rows.append({"algorithm": run.algorithm, "phase": phase, **cells, "gpu_estimate_gib": estimate})
    return rows


_MEASURED = ("gpu", "host", "disk")


def markdown(
    steps: Sequence[Row], memory: Sequence[Row], estimates: Mapping[str, Mapping[str, float]], check: Sequence[Row]
) -> str:
    """Everything as tables: medians of the steps that were not the first of a job, then those; memory; correctness."""
    columns = ("rollout", "old_log_prob", "advantage", "update_actor", "update_weights", "save", "whole_step")
    lines = [
        "| run | steps | tokens | rollout | log-prob pass | advantages | update | weights to vLLM | save | step "
        "| tokens/s a GPU | share of peak, update | allocated, GiB | vLLM's probabilities differ by |",
        "|---|" + "---|" * 13,
    ]
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in steps:
        groups.setdefault((row["algorithm"], row["engine"], row["first_of_job"]), []).append(row)
    for (algorithm, engine, first), rows in sorted(groups.items(), key=lambda group: (group[0][2], group[0])):
        title = f"{_TITLES[algorithm]}, {_TITLES[engine]}" + (", first of a job" if first else "")
        numbers = ", ".join(str(row["step"]) for row in rows)
        cells = [_seconds([row[column] for row in rows if row[column] != ""]) for column in columns]
        others = ("tokens_per_second_per_gpu", "mfu_update", "max_memory_gib", "probs_diff_mean")
        tokens = f"{statistics.median(row['tokens'] for row in rows):,.0f}"
        cells += [f"{statistics.median(row[column] for row in rows):.4g}" for column in others]
        lines.append("| " + " | ".join([title, numbers, tokens, *cells]) + " |")
    if (cost := entropy_cost(steps)) is not None:
        lines += ["", f"Log-probabilities, entropies and advantages: {cost:+.1%} of a step of DAPO on verl's engine."]
    lines += [
        "",
        "| run | phase | fullest card, GiB | estimate | memory, GiB | added on disk, GiB |",
        "|---|" + "---|" * 5,
    ]
    for row in memory:
        values = [row[f"{what}_gib"] for what in _MEASURED]
        cells = [_TITLES[row["algorithm"]], row["phase"], values[0], row["gpu_estimate_gib"], *values[1:]]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    for algorithm, sizes in estimates.items():
        lines += ["", f"Preflight, {_TITLES[algorithm]}: memory {sizes['host']:.1f} GiB, disk {sizes['disk']:.1f} GiB."]
    if check:
        lines += ["", "| run | step | weights | value | mean | largest |", "|---|" + "---|" * 5]
        for row in check:
            cells = [_TITLES[row["algorithm"]], row["step"], row["weights"], row["value"]]
            cells += [f"{row['mean']:.2e}", f"{row['largest']:.2e}"] if "largest" in row else [f"{row['mean']:.2%}", ""]
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def entropy_cost(steps: Sequence[Row]) -> float | None:
    """What log-probabilities, entropies and advantages of a token take longer in GTPO on our engine than in DAPO on
    verl's, as a share of DAPO's step; None where either has no step but first ones."""
    taken = {}
    for algorithm in ("gtpo_v2", "dapo"):
        rows = [row for row in steps if row["algorithm"] == algorithm and not row["first_of_job"]]
        if not rows:
            return None
        part = statistics.median((row["old_log_prob"] + row["advantage"]) / row["tokens"] for row in rows)
        taken[algorithm] = part, statistics.median(row["whole_step"] / row["tokens"] for row in rows)
    return (taken["gtpo_v2"][0] - taken["dapo"][0]) / taken["dapo"][1]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def check_rows(out: Path) -> list[Row]:
    """What the stage `check` found so far; a file a run, so that folders of several machines can be put together."""
    algorithms = dict.fromkeys(job.algorithm for job in JOBS.values())
    return [row for algorithm in algorithms for row in read_json(out / f"check_{algorithm}.json") or []]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _column(phase: str) -> str:
    return phase.replace("-", "_")


def _seconds(values: Sequence[float]) -> str:
    if not values:
        return ""
    spread = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
    return f"{statistics.median(values):.3g} s{spread}"
