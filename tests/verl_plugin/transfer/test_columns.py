"""What the trainer and its workers keep of a batch is what TransferQueue would give them again."""

import os
import subprocess
import sys

SCRIPT = """
import dataclasses
import torch
from gtpo_verl.verl_plugin import cpu
cpu.install()
import ray
import transfer_queue as plain
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import BatchMeta, KVBatchMeta
from verl.protocol import BatchData
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import transferqueue_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.transfer import columns

ray.init(num_cpus=4, include_dashboard=False, address="local")
config = compose_config(["model=tiny", "scale=cpu", "gtpo_verl.task=null", "algorithm=gtpo_v2"]).transfer_queue
OmegaConf.resolve(config)
plain.init(config)

def row(i, prompt, length):
    return {
        "uid": f"u{i}", "extra_fields": {"reward_extra_info": {"acc": float(i)}}, "num_turns": 2,
        "prompts": torch.arange(prompt), "responses": torch.arange(length) + i, "rm_scores": torch.rand(length),
        "response_mask": torch.arange(length) % 2, "loss_mask": torch.arange(length) % 2,
        "input_ids": torch.arange(prompt + length) * 3, "position_ids": torch.arange(prompt + length),
    }

def alike(a, b):
    if isinstance(a, torch.Tensor) and a.is_nested:
        known = (a._get_min_seqlen(), a._get_max_seqlen()) == (b._get_min_seqlen(), b._get_max_seqlen())
        equal = torch.equal(a.values(), b.values()) and torch.equal(a.offsets(), b.offsets())
        return known and equal and a.dtype == b.dtype
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else list(a) == list(b)

def same(a, b):
    assert set(a.keys()) == set(b.keys()), (set(a.keys()), set(b.keys()))
    assert a.batch_size == b.batch_size
    for name in b.keys():
        assert alike(a.get(name), b.get(name)), (name, a.get(name), b.get(name))

def put(prefix, lengths):
    rows = [row(i, 2 + i, length) for i, length in enumerate(lengths)]
    tags = [{"seq_len": length} for length in lengths]
    keys = [f"{prefix}{i}_0_0" for i in range(len(rows))]
    return plain.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)

asked = []
get_data = plain.get_client().async_get_data
async def counting(metadata, **more):
    asked.append(set(metadata.field_names))
    return await get_data(metadata, **more)
plain.get_client().async_get_data = counting

def asks(names, call):
    asked.clear()
    result = call()
    assert set().union(*asked) == set(names), (asked, names)
    return result

def jagged_like(batch, make):
    responses = plain.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["responses"])["responses"]
    offsets = responses.offsets()
    return torch.nested.nested_tensor_from_jagged(make(int(offsets[-1])), offsets)

# ---- the trainer ----

transfer.keep_columns(trainer_base)
# A second trainer's is not laid over it.
assert transfer.keep_columns(trainer_base)._queue is plain
queue = trainer_base.tq
assert transfer.transfer_queue is queue

for lengths, translated in (([3, 1, 4], True), ([2, 2, 2], False), ([5], True)):
    batch, other = put(f"a{len(lengths)}{lengths[0]}", lengths), put(f"b{len(lengths)}{lengths[0]}", lengths)
    def get(names, keys=batch.keys): return queue.kv_batch_get(keys=keys, partition_id="train", select_fields=names)
    def stock(names, keys=batch.keys): return plain.kv_batch_get(keys=keys, partition_id="train", select_fields=names)

    names = ["uid", "responses", "response_mask", "extra_fields"]
    asks(names, lambda: get(names))
    asks(names, lambda: get(names))  # nothing is kept before a batch is named
    queue.begin(batch.keys)
    same(asks(names, lambda: get(names)), stock(names))
    got = asks(["uid", "extra_fields", "prompts"], lambda: get([*names, "prompts"]))
    same(got, stock([*names, "prompts"]))
    got.pop("responses")  # as verl takes columns out of what it was given
    same(asks([], lambda: get(["responses", "prompts"])), stock(["responses", "prompts"]))
    same(asks(["responses"], lambda: get(["responses"], other.keys)), stock(["responses"], other.keys))
    if len(lengths) > 1:
        same(asks(["responses"], lambda: get(["responses"], batch.keys[::-1])), stock(["responses"], batch.keys[::-1]))
        same(asks(["responses"], lambda: get(["responses"], batch.keys[:1])), stock(["responses"], batch.keys[:1]))
    everything = asks(get(None).keys(), lambda: get(None))
    assert {"uid", "responses", "input_ids"} <= set(everything.keys())

    # What is put is kept, and again when it is put again, for all rows or for some.
    assert queue.unchanged(["response_mask", "old_log_probs"])[1] == ["response_mask", "old_log_probs"]
    old, entropy = jagged_like(batch, torch.rand), jagged_like(batch, torch.rand)
    fields = TensorDict({"old_log_probs": old, "entropy": entropy}, batch_size=len(batch))
    meta = queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
    assert {"old_log_probs", "entropy", "responses"} <= set(meta.fields)
    got = asks([], lambda: get(["old_log_probs", "entropy"]))
    assert torch.equal(got["entropy"].values(), entropy.values())
    same(got, stock(["old_log_probs", "entropy"]))
    mask = jagged_like(batch, lambda n: torch.ones(n, dtype=torch.int64))
    queue.kv_batch_put(
        keys=batch.keys, partition_id="train", fields=TensorDict({"response_mask": mask}, batch_size=len(batch))
    )
    same(asks([], lambda: get(["response_mask"])), stock(["response_mask"]))
    assert get(["response_mask"])["response_mask"].values().all()
    assert queue.unchanged(["responses", "response_mask", "old_log_probs"])[1] == ["responses"]
    # A worker's, of which each pass writes new ones.
    for made in (torch.zeros, torch.ones):
        written = TensorDict({"log_probs": jagged_like(batch, made)}, batch_size=len(batch))
        plain.kv_batch_put(keys=batch.keys, partition_id="train", fields=written)
        same(asks(["log_probs"], lambda: get(["responses", "log_probs"])), stock(["responses", "log_probs"]))
    last = TensorDict({"entropy": torch.nested.as_nested_tensor([torch.ones(7)], layout=torch.jagged)}, batch_size=1)
    queue.kv_batch_put(keys=batch.keys[-1:], partition_id="train", fields=last)
    assert queue.unchanged(["entropy", "responses"])[1] == ["responses"]
    same(asks(["entropy"] if len(lengths) > 1 else [], lambda: get(["entropy"])), stock(["entropy"]))
    queue.kv_batch_put(keys=other.keys, partition_id="train", fields=fields)
    same(asks([], lambda: get(["old_log_probs"])), stock(["old_log_probs"]))
    dense = TensorDict({"weight": torch.arange(len(batch))}, batch_size=len(batch))
    queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=dense)
    same(asks(["weight"], lambda: get(["weight"])), stock(["weight"]))

    # ---- a worker ----

    fetch = transferqueue_utils._meta_to_realdata
    assert isinstance(fetch, columns.KeepingFetch)
    columns.install(transferqueue_utils)
    assert transferqueue_utils._meta_to_realdata is fetch

    def passes(of):
        queue.begin(of.keys)
        full = dataclasses.replace(of, fields=list(of.fields), extra_info={"t": 1})
        return transfer.for_forward(dataclasses.replace(full)), full

    def check(meta, asked_of):
        want = fetch._fetch(dataclasses.replace(meta, extra_info={"t": 1}))
        # As a rank gets them: in verl's dispatch they are translated once for all ranks, and cut.
        (meta_of_rank,) = BatchData(meta).chunk(1) if translated else (meta,)
        assert type(meta_of_rank) is (BatchMeta if translated else KVBatchMeta)
        got = asks(asked_of, lambda: fetch(meta_of_rank))
        names = [name for name in want.keys() if isinstance(want.get(name), torch.Tensor)]
        assert set(names) == set(meta.fields)
        same(got.select(*names), want.select(*names))
        assert got["t"] == want["t"] == 1
        assert columns.UNCHANGED not in got.keys()

    forward = set(transfer.for_forward(dataclasses.replace(meta)).fields)
    loss = {"old_log_probs"}
    first, full = passes(batch)
    full.fields = [*forward, *loss]
    check(first, forward)
    check(transfer.for_update(dataclasses.replace(full)), loss)
    check(transfer.for_update(dataclasses.replace(full)), forward | loss)  # what the update had is let go

    first, _ = passes(batch)
    check(first, forward)
    queue.kv_batch_put(
        keys=batch.keys, partition_id="train", fields=TensorDict({"response_mask": 1 - mask}, batch_size=len(batch))
    )
    check(transfer.for_update(dataclasses.replace(full)), loss | {"response_mask"})

    first, _ = passes(batch)
    check(first, forward)
    check(passes(other)[0], forward)  # another batch
    check(transfer.for_update(dataclasses.replace(full)), forward | loss)
    check(dataclasses.replace(full), forward | loss)  # a pass that says nothing of it

    queue.begin(batch.keys)
    get(["responses"])
    queue.kv_clear(keys=other.keys, partition_id="train")
    asks([], lambda: get(["responses"]))
    queue.kv_clear(keys=batch.keys, partition_id="train")
    again = put(f"a{len(lengths)}{lengths[0]}", lengths)  # as no step does: the same keys once more
    asks(["responses"], lambda: get(["responses"]))
print("done")
"""


def test_columns_are_those_of_transfer_queue() -> None:
    environment = {**os.environ, "VERL_PLATFORM": "cpu", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert result.stdout.splitlines()[-1] == "done"
