"""The same real training step with and without the fused engine: log-prob pass, update and whole step.

Trains a model with DAPO and GTPO v2, each with verl's own engine and with ours, one run a GPU (they take turns where
there are fewer GPUs than runs). Writes the timings that verl logs, every step of every run, and prints their medians,
the first step left out.

    python benchmarks/training_step.py --model MODEL_FOLDER --data FOLDER --out FOLDER [hydra overrides]

`--data` holds train.parquet, test.parquet and reward.py.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import torch

# {name: (algorithm, whether the fused engine is on)}
RUNS = {
    "dapo-stock": ("dapo", False),
    "dapo-fused": ("dapo", True),
    "gtpo_v2-stock": ("gtpo_v2", False),
    "gtpo_v2-fused": ("gtpo_v2", True),
}
TIMINGS = {
    "old_log_prob": "timing_s/old_log_prob",
    "advantage": "timing_s/adv",
    "update_actor": "timing_s/update_actor",
    "rollout": "timing_s/gen",
    "whole_step": "timing_s/step",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--data", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--runs", default=",".join(RUNS), help="which, separated by commas (default: %(default)s)")
    options, overrides = parser.parse_known_args()
    names = options.runs.split(",")
    if unknown := set(names) - set(RUNS):
        parser.error(f"--runs: {', '.join(sorted(unknown))}: not one of {', '.join(RUNS)}")

    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus: SimpleQueue[str] = SimpleQueue()
    for gpu in visible.split(","):
        gpus.put(gpu)

    def run(name: str) -> list[dict]:
        gpu = gpus.get()
        try:
            return train(name, gpu, options, overrides)
        finally:
            gpus.put(gpu)

    with ThreadPoolExecutor(max_workers=gpus.qsize()) as pool:
        steps = [row for rows in pool.map(run, names) for row in rows]
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "training_step.csv").open("w") as file:
        writer = csv.DictWriter(file, fieldnames=list(steps[0]))
        writer.writeheader()
        writer.writerows(steps)

    for name in names:
        rows = [row for row in steps if row["run"] == name][1:]
        print(name, f"{len(rows)} steps", end="")
        for column in ("tokens", *TIMINGS, "max_memory_gib"):
            values = [row[column] for row in rows]
            print(f", {column} {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})", end="")
        print()


def train(name: str, gpu: str, options: argparse.Namespace, overrides: list[str]) -> list[dict]:
    """One run on one GPU; a row of the table for each of its steps (seconds)."""
    algorithm, fused = RUNS[name]
    folder = options.out / name
    command = [sys.executable, "-m", "gtpo_verl.cli", "train", f"algorithm={algorithm}", "model=smollm2", "scale=gpu"]
    command += [
        f"gtpo_verl.run_dir={folder}",
        f"gtpo_verl.fused_entropy={fused}",
        "gtpo_verl.task=null",
        f"actor_rollout_ref.model.path={options.model}",
        f"data.train_files={options.data / 'train.parquet'}",
        f"data.val_files={options.data / 'test.parquet'}",
        f"reward.custom_reward_function.path={options.data / 'reward.py'}",
        "reward.num_workers=4",
        # Each run has a Ray cluster of its own.
        "+ray_kwargs.ray_init.address=local",
        "+ray_kwargs.ray_init._temp_dir=${oc.env:GTPO_VERL_TMP}",
        "data.train_batch_size=64",
        "data.max_response_length=160",
        "actor_rollout_ref.rollout.n=16",
        "actor_rollout_ref.rollout.max_num_seqs=1024",
        "actor_rollout_ref.rollout.max_num_batched_tokens=16384",
        "actor_rollout_ref.rollout.agent.num_workers=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        f"trainer.total_training_steps={options.steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        *overrides,
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    subprocess.run(command, env=environment, check=True)
    return read_steps(name, folder)


def read_steps(name: str, folder: Path) -> list[dict]:
    """The same of a run's folder, finished or not."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            "run": name,
            "step": record["step"],
            "tokens": round(record["data"]["perf/total_num_tokens"]),
            **{column: round(record["data"][key], 4) for column, key in TIMINGS.items()},
            "max_memory_gib": round(record["data"]["actor/perf/max_memory_allocated_gb"], 2),
            "probs_diff_mean": record["data"]["training/rollout_probs_diff_mean"],
            "mfu_update": round(record["data"].get("perf/mfu/actor", float("nan")), 4),
        }
        for record in records
    ]


if __name__ == "__main__":
    main()
