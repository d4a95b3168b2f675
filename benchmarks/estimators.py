"""Time and peak memory of the advantage estimators on CPU, at the paper's batch and at 1/8 and 1/64 of it.

    python benchmarks/estimators.py                  # the figures of docs/performance.md, several minutes
    python benchmarks/estimators.py --responses 1024 128 --skip "loop over positions"

Each case runs in a process of its own, so that no allocator's cache helps or hurts the next one. Memory is what the
process grows by beyond its inputs, output included (Linux: the high-water mark of /proc).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gtpo_verl.algorithms import compute_advantages, compute_padded_advantages

GROUP_SIZE = 16
MAX_LENGTH = 20_480
MEAN_LENGTH = 5_000


@dataclass
class Batch:
    """A batch with lengths as those of reasoning are: log-normal, cut off at the longest allowed."""

    entropy: Tensor
    offsets: Tensor
    group: Tensor
    success: Tensor

    @classmethod
    def random(cls, responses: int) -> Batch:
        rng = np.random.default_rng(0)
        drawn = np.clip(rng.lognormal(8.3, 0.7, responses), 1, MAX_LENGTH)
        lengths = torch.from_numpy(np.clip(drawn * MEAN_LENGTH / drawn.mean(), 1, MAX_LENGTH).astype(np.int64))
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        # Most tokens are nearly certain, a few are not.
        entropy = torch.from_numpy(rng.random(int(offsets[-1]), dtype=np.float32)).pow_(8).mul_(3)
        group = torch.arange(responses) // GROUP_SIZE
        return cls(entropy, offsets, group, torch.from_numpy(rng.random(responses) < 0.4))


@dataclass
class PaddedBatch:
    """The same, as verl's registry takes it."""

    entropy: Tensor
    response_mask: Tensor
    token_level_rewards: Tensor
    index: np.ndarray
    success: Tensor

    @classmethod
    def random(cls, responses: int) -> PaddedBatch:
        batch = Batch.random(responses)
        mask = torch.arange(MAX_LENGTH) < batch.offsets.diff()[:, None]
        entropy = torch.zeros(mask.shape).masked_scatter_(mask, batch.entropy)
        rewards = torch.zeros(mask.shape)
        rewards[:, 0] = batch.success.float()
        index = np.array([f"prompt-{g}" for g in batch.group.tolist()], dtype=object)
        return cls(entropy, mask.long(), rewards, index, batch.success)


def core(estimator: str, batch: Batch) -> None:
    compute_advantages(estimator, batch.entropy, batch.offsets, batch.group, batch.success)


def padded(estimator: str, batch: PaddedBatch) -> None:
    compute_padded_advantages(estimator, batch.entropy, batch.response_mask, batch.index, batch.success)


def verl_grpo(batch: PaddedBatch) -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    compute_grpo_outcome_advantage(batch.token_level_rewards, batch.response_mask, batch.index)


def loop_over_groups(batch: Batch, over_positions: bool = False) -> Tensor:
    """gtpo_v1, default options and no metrics, one group after another; within it, all positions at once or in turn."""
    advantages = torch.zeros_like(batch.entropy)
    responses = batch.entropy.split(batch.offsets.diff().tolist())
    outputs = advantages.split(batch.offsets.diff().tolist())
    members: dict[int, list[int]] = {}
    for i, g in enumerate(batch.group.tolist()):
        members.setdefault(g, []).append(i)
    for rows in members.values():
        right = [i for i in rows if batch.success[i]]
        if len(right) in (0, len(rows)):
            continue
        rewards = [torch.zeros_like(responses[i]) for i in rows]
        for i, shaped in zip(right, ratios(responses, right, over_positions), strict=True):
            rewards[rows.index(i)] = 1 + 0.1 * shaped
        together = torch.cat(rewards)
        mean, std = together.mean(), together.std()
        for i, reward in zip(rows, rewards, strict=True):
            outputs[i].copy_((reward - mean) / (std + 1e-6))
    return advantages


def ratios(responses: tuple[Tensor, ...], right: list[int], over_positions: bool) -> list[Tensor]:
    """Entropies over the mean at the same position of those right responses that still run."""
    longest = max(len(responses[i]) for i in right)
    if not over_positions:
        matrix = torch.nn.utils.rnn.pad_sequence([responses[i] for i in right], batch_first=True)
        running = torch.nn.utils.rnn.pad_sequence([torch.ones_like(responses[i]) for i in right], batch_first=True)
        mean = matrix.sum(0) / running.sum(0)
        return [torch.where(mean[: len(responses[i])] == 0, 1, responses[i] / mean[: len(responses[i])]) for i in right]
    results = [torch.ones_like(responses[i]) for i in right]
    for t in range(longest):
        running_rows = [k for k, i in enumerate(right) if len(responses[i]) > t]
        at_t = torch.stack([responses[right[k]][t] for k in running_rows])
        shaped = at_t / at_t.mean()
        for k, value in zip(running_rows, shaped, strict=True):
            results[k][t] = value
    return results


CASES: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any], int]] = {
    # name: how its batch is made, what runs, how often
    "gtpo_v1": (Batch.random, partial(core, "gtpo_v1"), 5),
    "gtpo_v2": (Batch.random, partial(core, "gtpo_v2"), 5),
    "gtpo_v3": (Batch.random, partial(core, "gtpo_v3"), 5),
    "grpo_s_v1": (Batch.random, partial(core, "grpo_s_v1"), 5),
    "gtpo_v1, padded": (PaddedBatch.random, partial(padded, "gtpo_v1"), 3),
    "verl's grpo, padded": (PaddedBatch.random, verl_grpo, 3),
    "gtpo_v1, loop over groups": (Batch.random, loop_over_groups, 3),
    "gtpo_v1, loop over positions": (Batch.random, partial(loop_over_groups, over_positions=True), 1),
}


def status(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def measure(name: str, responses: int, threads: int, connection: Any) -> None:
    """Sends the tokens of the batch, seconds and CPU seconds of the fastest runs, bytes of inputs, bytes of growth."""
    torch.set_num_threads(threads)
    make, run, repeats = CASES[name]
    run(make(GROUP_SIZE))  # imports and first-use costs
    batch = make(responses)
    tensors = [value for value in vars(batch).values() if isinstance(value, Tensor)]
    seconds, cpu_seconds, growth = [], [], []
    for _ in range(repeats):
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as refs:
            refs.write("5")  # the high-water mark starts anew
        before, start, cpu_start = status("VmRSS"), time.perf_counter(), time.process_time()
        run(batch)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        growth.append(status("VmHWM") - before)
    tokens = int(batch.offsets[-1]) if isinstance(batch, Batch) else int(batch.response_mask.sum())
    connection.send((tokens, min(seconds), min(cpu_seconds), sum(t.nbytes for t in tensors), max(growth)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, nargs="+", default=[8192, 1024, 128])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--skip", nargs="*", default=[], help="cases whose name holds one of these")
    arguments = parser.parse_args()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    print(
        f"{processor}, {arguments.threads} of {os.cpu_count()} cores, torch {torch.__version__}, {platform.system()}\n"
    )
    columns = ("estimator", "responses", "tokens", "s", "CPU s", "CPU ns / token", "inputs, MB", "growth, MB", "ratio")
    print("| " + " | ".join(columns) + " |\n|---" + "|---:" * (len(columns) - 1) + "|")
    context = multiprocessing.get_context("spawn")
    for name in CASES:
        for responses in arguments.responses:
            if any(word in name for word in arguments.skip):
                continue
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=measure, args=(name, responses, arguments.threads, sender))
            process.start()
            sender.close()
            tokens, seconds, cpu, inputs, growth = receiver.recv()
            process.join()
            cells = [name, f"{responses:,}", f"{tokens / 1e6:.2f} M", f"{seconds:.2f}", f"{cpu:.2f}"]
            cells += [f"{cpu / tokens * 1e9:.0f}", f"{inputs / 1e6:.0f}", f"{growth / 1e6:.0f}"]
            cells += [f"{growth / inputs:.1f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
