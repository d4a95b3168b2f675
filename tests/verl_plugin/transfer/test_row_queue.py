"""Rows put into TransferQueue together are those that verl puts one by one."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import asyncio
import torch
from gtpo_verl.verl_plugin import cpu
cpu.install()
from tensordict import TensorDict
from transfer_queue.metadata import extract_field_schema
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager as Manager
from transfer_queue.utils import serial_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from gtpo_verl.verl_plugin.transfer.row_queue import RowQueue, Rows

def row(i, length):
    return {
        "uid": f"u{i}", "reward_model": {"ground_truth": "5"}, "raw_prompt": [{"role": "user", "content": "1+1="}],
        "extra_fields": {"reward_extra_info": {"acc": float(i)}}, "index": i, "nothing": None, "dummy": torch.zeros(1),
        "responses": torch.arange(length), "rollout_log_probs": torch.arange(length) / 7, "one": torch.tensor(i),
        "routed_experts": torch.full((length, 2, 3), i, dtype=torch.int16), "mask": torch.arange(length) > 1,
    }

def stored(table, positions):
    # As AsyncSimpleStorageManager.put_data sends them, and a storage unit gets them.
    sent = {name: Manager._select_by_positions(table[name], positions) for name in table.keys()}
    got = serial_utils.decode(serial_utils.encode(sent))
    return [{name: values[i] for name, values in got.items()} for i in range(len(positions))]

def alike(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and a == b

for lengths in ([3], [4, 4, 4, 4], [3, 1, 4, 2, 6], [2, 0, 2]):
    rows = [row(i, length) for i, length in enumerate(lengths)]
    verl, ours = list_of_dict_to_tensordict(rows), Rows(rows)
    assert ours.batch_size == verl.batch_size
    assert extract_field_schema(ours) == extract_field_schema(verl)
    for positions in ([0], list(range(0, len(rows), 2)), list(range(len(rows)))):
        for mine, theirs in zip(stored(ours, positions), stored(verl, positions), strict=True):
            assert mine.keys() == theirs.keys()
            for name in theirs:
                assert alike(mine[name], theirs[name]), (name, mine[name], theirs[name])

class Queue:
    def __init__(self): self.puts = []
    async def async_kv_batch_put(self, **put):
        self.puts.append(put)
        if "bad" in put["keys"]: raise ConnectionError("storage is full")

async def ask():
    real = Queue()
    queue = RowQueue(real, list)
    queue.errors["p2"] = "ValueError: its"
    results = await asyncio.gather(
        queue.async_kv_batch_put(keys=["a"], fields=[{"x": 1}], tags=[{"t": 1}], partition_id="train"),
        queue.async_kv_batch_put(keys=["b", "c"], fields=[{"x": 2}, {"x": 3}], tags=[{}, {}], partition_id="train"),
        queue.async_kv_batch_put(keys=["v"], fields=[{"x": 4}], tags=[{}], partition_id="val"),
        queue.async_kv_batch_put(keys=["bad"], fields=[{"y": 4}], tags=[{}], partition_id="train"),
        queue.async_kv_put(key="p1", partition_id="train", tag={"status": "finished"}),
        queue.async_kv_put(key="p2", partition_id="train", tag={"status": "failure"}),
        return_exceptions=True,
    )
    assert [isinstance(result, ConnectionError) for result in results] == [False] * 3 + [True] + [False] * 2
    puts = {tuple(put["keys"]): put for put in real.puts}
    assert set(puts) == {("a", "b", "c"), ("v",), ("bad",), ("p1", "p2")}
    assert puts["a", "b", "c"]["fields"] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert puts["a", "b", "c"]["tags"] == [{"t": 1}, {}, {}]
    assert puts["p1", "p2"]["fields"] is None
    assert puts["p1", "p2"]["tags"] == [{"status": "finished"}, {"status": "failure", "error": "ValueError: its"}]

asyncio.run(ask())
"""


def test_as_verl_puts_them() -> None:
    """In a process of its own: verl's agent loops are imported under the platform `cpu`."""
    environment = {**os.environ, "VERL_PLATFORM": "cpu"}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=300, env=environment)


DUMP = """
import sys
from gtpo_verl.verl_plugin import cpu
cpu.install()
import ray
import ray.cloudpickle
from gtpo_verl.verl_plugin.rollout.agent_loop import BatchingAgentLoopWorker

actor = ray.remote(BatchingAgentLoopWorker)
with open(sys.argv[1], "wb") as file:
    ray.cloudpickle.dump(actor.__ray_metadata__.modified_class, file)
"""
LOAD = """
import inspect, pickle, sys
from types import SimpleNamespace
from gtpo_verl.verl_plugin import cpu
cpu.install()
from gtpo_verl.verl_plugin.transfer import row_queue

with open(sys.argv[1], "rb") as file:
    worker_class = pickle.load(file)
worker = worker_class.__new__(worker_class)
config = SimpleNamespace(transfer_queue=SimpleNamespace(backend=SimpleNamespace(storage_backend="SimpleStorage")))
queue = row_queue.install(config, worker)
for method in (worker._run_prompt, worker._agent_loop_postprocess):
    assert inspect.unwrap(method).__globals__["tq"] is queue
assert inspect.unwrap(worker._agent_loop_postprocess).__globals__["list_of_dict_to_tensordict"] is list
assert row_queue.install(config, worker) is queue
"""


@pytest.mark.slow
def test_rays_copy_of_the_worker_uses_it(tmp_path) -> None:
    """Ray carries some methods by value, and with them names that are not those of their module."""
    for script in (DUMP, LOAD):
        command = [sys.executable, "-c", script, str(tmp_path / "class")]
        subprocess.run(command, check=True, timeout=300, env={**os.environ, "VERL_PLATFORM": "cpu"})
