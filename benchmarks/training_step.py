"""The same real training step with and without the fused engine: log-prob pass, update and whole step.

Trains a model with DAPO and GTPO v2, each with verl's own engine and with ours, one run a GPU (they take turns where
there are fewer GPUs than runs), and writes the median of the timings that verl logs, the first step left out.

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

VARIANTS = [(algorithm, fused) for algorithm in ("dapo", "gtpo_v2") for fused in (False, True)]
TIMINGS = {
    "old_log_prob": "timing_s/old_log_prob",
    "advantage": "timing_s/adv",
    "update_actor": "timing_s/update_actor",
    "rollout": "timing_s/gen",
    "step": "timing_s/step",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--data", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5)
    options, overrides = parser.parse_known_args()

    gpus: SimpleQueue[int] = SimpleQueue()
    for gpu in range(torch.cuda.device_count()):
        gpus.put(gpu)

    def run(variant: tuple[str, bool]) -> dict[str, float | str]:
        gpu = gpus.get()
        try:
            return train(*variant, gpu, options, overrides)
        finally:
            gpus.put(gpu)

    with ThreadPoolExecutor(max_workers=torch.cuda.device_count()) as pool:
        rows = list(pool.map(run, VARIANTS))
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "training_step.csv").open("w") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print((options.out / "training_step.csv").read_text())


def train(algorithm: str, fused: bool, gpu: int, options: argparse.Namespace, overrides: list[str]) -> dict:
    """One run on one GPU; its row of the table (seconds, medians over the steps after the first)."""
    folder = options.out / f"{algorithm}-{'fused' if fused else 'stock'}"
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
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    subprocess.run(command, env=environment, check=True)
    records = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = records[1:]
    return {
        "algorithm": algorithm,
        "engine": "gtpo_verl" if fused else "verl",
        "steps": len(measured),
        "tokens": round(statistics.median(record["global_seqlen/mean"] for record in measured)),
        **{name: round(statistics.median(r[key] for r in measured), 3) for name, key in TIMINGS.items()},
        "probs_diff_mean": statistics.median(r["training/rollout_probs_diff_mean"] for r in measured),
    }


if __name__ == "__main__":
    main()
