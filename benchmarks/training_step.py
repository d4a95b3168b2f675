"""A training step of a recipe run beside one of stock verl: rollout, log-prob pass, advantages, update, whole step.

One run a GPU (they take turns where there are fewer GPUs than runs). Writes the timings that verl logs, every step of
every run, and prints their medians, the first step left out.

    python benchmarks/training_step.py --out FOLDER [--model FOLDER] [--data FOLDER] [hydra overrides of all runs]

Without a model, a Llama of SmolLM2-135M's shape with random weights; without data (train.parquet, test.parquet,
reward.py), prompts of some 40 characters whose responses are right by chance, so that no group is thrown away. Both are
made in `--out`. Stock means verl's entry point, trainer, engine and rollouts;
what it is given stands in `STOCK`. `dapo-stock-tuned` is the same with this recipe's settings on top (`TUNED`), so that
what the code gives and what the settings give are told apart. A run that fails keeps the steps that it made.
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

from benchmarks.big_model.inputs import save_data, save_model

RUNS = ("dapo-stock", "dapo-stock-tuned", "dapo", "gtpo_v2")
# Of a step, the same in all runs: 64 prompts x 16 responses, two updates. The learning rate is small so that the policy
# hardly moves and the last step does the work of the first.
STEP = [
    "data.train_batch_size=64",
    "data.max_prompt_length=160",
    "data.max_response_length=160",
    "actor_rollout_ref.rollout.n=16",
    "actor_rollout_ref.rollout.max_model_len=1024",
    "actor_rollout_ref.rollout.max_num_seqs=1024",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
]
# verl's own, with what DAPO needs and what verl's examples set on one GPU; every other key is verl's default.
STOCK = [
    "trainer.use_v1=true",
    "trainer.v1.trainer_mode=sync",
    "algorithm.adv_estimator=grpo",
    "algorithm.filter_groups.enable=true",
    "algorithm.filter_groups.metric=acc",
    "actor_rollout_ref.model.use_remove_padding=true",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.use_dynamic_bsz=true",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=32768",
    "actor_rollout_ref.actor.clip_ratio_low=0.2",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    "reward.custom_reward_function.name=compute_score",
    "trainer.logger=[console,file]",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=1",
]
# What of configs/scale/smollm2_1gpu.yaml stock verl can be given (a test compares); its poll interval of 2 s is no key
# of verl's.
TUNED = [
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.25",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=131072",
    "actor_rollout_ref.rollout.max_num_batched_tokens=16384",
    "actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,2,4,8,16,32,64,128,192,256,384,512,640,768,896,1024]",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config={mode:0,cudagraph_mode:FULL_DECODE_ONLY}",
    "+actor_rollout_ref.rollout.enable_sleep_mode=false",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
]
# SmolLM2-135M's; fields of transformers' `LlamaConfig`.
SMOLLM2 = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1_536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8_192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
TIMINGS = {
    "old_log_prob": "timing_s/old_log_prob",
    "advantage": "timing_s/adv",
    "update_actor": "timing_s/update_actor",
    "rollout": "timing_s/gen",
    "update_weights": "timing_s/update_weights",
    "whole_step": "timing_s/step",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--runs", default=",".join(RUNS), help="which, separated by commas (default: %(default)s)")
    options, overrides = parser.parse_known_args()
    names = options.runs.split(",")
    if unknown := set(names) - set(RUNS):
        parser.error(f"--runs: {', '.join(sorted(unknown))}: not one of {', '.join(RUNS)}")

    prepare(options, SMOLLM2)
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
    if not steps:
        sys.exit("no run made a step")
    write(options.out / "training_step.csv", steps)

    for name in names:
        rows = [row for row in steps if row["run"] == name][1:]
        if not rows:
            continue
        print(name, f"{len(rows)} steps", end="")
        for column in ("tokens", *TIMINGS, "max_memory_gib"):
            values = [row[column] for row in rows]
            print(f", {column} {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})", end="")
        print()


def prepare(options: argparse.Namespace, shape: dict) -> None:
    """Makes what is not given in `--out`: the model once, the data anew and the same each time."""
    if options.model is None:
        options.model = options.out.absolute() / "model"
        if not options.model.exists():
            save_model(options.model, shape, family="llama")
    if options.data is None:
        options.data = options.out.absolute() / "data"
        save_data(options.data, prompts=4096)


def train(name: str, gpu: str, options: argparse.Namespace, overrides: list[str]) -> list[dict]:
    """One run on one GPU; a row of the table for each of its steps (seconds)."""
    folder = (options.out / name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    algorithm, _, stock = name.partition("-")
    if stock:
        command = [sys.executable, "-m", "verl.trainer.main_ppo", *STOCK, *(TUNED if stock == "stock-tuned" else [])]
    else:
        command = [sys.executable, "-m", "gtpo_verl.cli", "train", f"algorithm={algorithm}", "model=smollm2"]
        command += ["scale=smollm2_1gpu", f"gtpo_verl.run_dir={folder}", "gtpo_verl.task=null"]
        command += ["gtpo_verl.preflight=false", "++ray_kwargs.ray_init._temp_dir=${oc.env:GTPO_VERL_TMP}"]
    command += [
        *STEP,
        f"actor_rollout_ref.model.path={options.model}",
        f"data.train_files={options.data / 'train.parquet'}",
        f"data.val_files={options.data / 'test.parquet'}",
        f"reward.custom_reward_function.path={options.data / 'reward.py'}",
        # Each run has a Ray cluster of its own.
        "++ray_kwargs.ray_init.address=local",
        "++ray_kwargs.ray_init.include_dashboard=false",
        f"trainer.total_training_steps={options.steps}",
        *overrides,
    ]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpu,
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
    }
    if stock:
        environment["VERL_USE_EXTERNAL_PLUGINS"] = "none"
    if stock == "stock-tuned":
        environment["TQ_NUM_THREADS"] = "1"  # as configs/train.yaml
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        code = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=folder).returncode
    steps = read_steps(name, folder)
    if code != 0:
        print(f"{name}: exit code {code} after {len(steps)} steps; {folder / 'output.txt'}", file=sys.stderr)
    return steps


def write(path: Path, steps: list[dict]) -> None:
    with path.open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(steps[0]))
        writer.writeheader()
        writer.writerows(steps)


def read_steps(name: str, folder: Path) -> list[dict]:
    """The same of a run's folder, finished or not."""
    metrics = folder / "metrics.jsonl"
    records = (
        [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []
    )
    return [
        {
            "run": name,
            "step": record["step"],
            "tokens": round(record["data"]["perf/total_num_tokens"]),
            **{column: round(record["data"][key], 4) for column, key in TIMINGS.items()},
            "max_memory_gib": round(record["data"]["actor/perf/max_memory_allocated_gb"], 2),
            "probs_diff_mean": record["data"].get("training/rollout_probs_diff_mean", float("nan")),
            "mfu_update": round(record["data"].get("perf/mfu/actor", float("nan")), 4),
        }
        for record in records
    ]


if __name__ == "__main__":
    main()
