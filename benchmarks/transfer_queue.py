"""What a step's batch costs in TransferQueue, as verl fetches and puts it, and with `verl_plugin/transfer/columns.py`.

    VERL_PLATFORM=cpu OMP_NUM_THREADS=1 python -m benchmarks.transfer_queue --csv out.csv

Real TransferQueue over a Ray of its own; rows as verl's agent loops put them, and every fetch and put of a step of GTPO
with one rank, in the order in which trainer and worker make them, in one process, with verl's handles of the batch
translated, divided and put together again as in its calls to workers. Both ways take turns.
"""

import argparse
import csv
import datetime
import pickle
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import BatchData
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import transferqueue_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin import transfer

PARTITION = "train"
FORWARD = ["input_ids", "position_ids", "loss_mask", "response_mask", "prompts", "responses"]
PARTS = ["worker, log-prob pass", "trainer, log-prob pass", "advantages", "worker, update", "metrics"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--responses", type=int, default=1024)
    parser.add_argument(
        "--tokens", type=int, default=160, help="of the longest response; the shortest has three quarters"
    )
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    config = compose_config(["model=tiny", "scale=cpu", "gtpo_verl.task=null"]).transfer_queue
    OmegaConf.resolve(config)
    transfer_queue.init(config)
    keys = put_rows(options.responses, options.tokens)

    keeping = transfer.keep_columns(trainer_base)
    fetch: Any = transferqueue_utils._meta_to_realdata
    ways = {
        "as verl": Step(keys, transfer_queue, fetch._fetch, fetch._answer),
        "columns are kept, or travel whole": Step(keys, keeping, fetch, fetch.answer),
    }
    seconds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for repeat in range(options.repeats + 1):
        for way, step in ways.items():
            taken = step.take()
            if repeat > 0:  # the first ones open connections
                seconds[way].append(taken)
    with open(options.csv, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["way", "responses", "tokens", "part", "median_s", "fastest_s", "slowest_s", "repeats", "date"])
        for way, steps in seconds.items():
            for part in [*PARTS, "all"]:
                times = [sum(one.values()) if part == "all" else one[part] for one in steps]
                row = [way, options.responses, options.tokens, part]
                row += [f"{value:.3f}" for value in (statistics.median(times), min(times), max(times))]
                row += [len(times), datetime.date.today().isoformat()]
                print("  ".join(map(str, row)), flush=True)
                table.writerow(row)


def put_rows(responses: int, tokens: int) -> list[str]:
    """Rows of jagged lengths, sixteen a prompt; their keys."""
    generator = torch.Generator().manual_seed(0)
    keys = [f"p{i // 16}_{i % 16}_0" for i in range(responses)]
    for first in range(0, responses, 16):
        rows = []
        for i in range(first, min(first + 16, responses)):
            prompt, length = 25, int(torch.randint(tokens * 3 // 4, tokens + 1, (1,), generator=generator))
            rows.append(
                {
                    "uid": f"p{i // 16}",
                    "extra_fields": {"reward_extra_info": {"acc": float(i % 2)}},
                    "num_turns": 2,
                    "prompts": torch.arange(prompt),
                    "responses": torch.arange(length),
                    "response_mask": torch.ones(length, dtype=torch.int64),
                    "loss_mask": torch.ones(length, dtype=torch.int64),
                    "rollout_log_probs": torch.rand(length),
                    "rm_scores": torch.zeros(length),
                    "input_ids": torch.arange(prompt + length),
                    "position_ids": torch.arange(prompt + length),
                }
            )
        transfer_queue.kv_batch_put(
            keys=keys[first : first + 16],
            partition_id=PARTITION,
            fields=list_of_dict_to_tensordict(rows),
            tags=[{"status": "success"} for _ in rows],
        )
    return keys


class Step:
    """All that one step asks of TransferQueue, through `queue` in the trainer, `fetch` and `answer` in the worker."""

    def __init__(
        self, keys: list[str], queue: Any, fetch: Callable[[Any], TensorDict], answer: Callable[[TensorDict, Any], Any]
    ) -> None:
        self.keys, self.queue, self.fetch, self.answer = keys, queue, fetch, answer

    def take(self) -> dict[str, float]:
        """Seconds of each of `PARTS`."""
        batch = KVBatchMeta(keys=self.keys, tags=[{} for _ in self.keys], partition_id=PARTITION, fields=FORWARD)
        keeps = hasattr(self.queue, "begin")
        marks = [time.perf_counter()]
        if keeps:
            self.queue.begin(batch, derives=True, whole=True)
            batch = transfer.for_forward(batch)
        meta = self._divided(batch)
        data = self.fetch(meta)
        width, response = data["input_ids"].offsets(), data["responses"].offsets()
        # What the worker computes; its columns are those of whole sequences.
        made = self.answer(_columns(width, "log_probs", "entropy"), meta)
        batch = BatchData([made]).concat()
        if keeps:
            self.queue.take(batch)
        marks.append(time.perf_counter())
        self._get("entropy", "log_probs", "response_mask", "responses", "rollout_log_probs")
        self._put(response, "old_log_probs", "entropy")
        marks.append(time.perf_counter())
        self._get("uid", "response_mask", "entropy", "extra_fields")
        self._get("response_mask", "old_log_probs", "rollout_log_probs")
        batch = self._put(response, "advantages", "returns")
        marks.append(time.perf_counter())
        batch.fields = [*FORWARD, "old_log_probs", "advantages"]
        self.fetch(self._divided(transfer.for_update(batch) if keeps else batch))
        marks.append(time.perf_counter())
        self._get("prompts", "responses", "response_mask", "advantages", "returns", "rm_scores", "num_turns")
        marks.append(time.perf_counter())
        return dict(zip(PARTS, (after - before for before, after in pairwise(marks)), strict=True))

    def _get(self, *fields: str) -> TensorDict:
        return self.queue.kv_batch_get(keys=self.keys, partition_id=PARTITION, select_fields=list(fields))

    def _put(self, offsets: torch.Tensor, *fields: str) -> Any:
        return self.queue.kv_batch_put(keys=self.keys, partition_id=PARTITION, fields=_columns(offsets, *fields))

    def _divided(self, batch: KVBatchMeta) -> Any:
        """The part of the one rank, as Ray takes it there."""
        (meta,) = BatchData(batch).chunk(1)
        return pickle.loads(pickle.dumps(meta))


def _columns(offsets: torch.Tensor, *fields: str) -> TensorDict:
    column = torch.nested.nested_tensor_from_jagged(torch.rand(int(offsets[-1])), offsets)
    return TensorDict(dict.fromkeys(fields, column), batch_size=len(offsets) - 1)


if __name__ == "__main__":
    main()
