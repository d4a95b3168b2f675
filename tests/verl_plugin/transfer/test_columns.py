"""What the trainer and its workers keep of a batch is what TransferQueue would give them again."""

import os
import subprocess
import sys

SCRIPT = """
import dataclasses
import pickle
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
from verl.utils import tensordict_utils as tu
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
        "input_ids": torch.cat([torch.arange(prompt), torch.arange(length) + i]),
        "position_ids": torch.arange(prompt + length),
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
    queue.begin(batch)
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
    def unchanged(*names): return queue.next_pass(names, [])[1].unchanged
    assert unchanged("response_mask", "old_log_probs") == ("response_mask", "old_log_probs")
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
    assert unchanged("responses", "response_mask", "old_log_probs") == ("responses",)
    # A worker's, of which each pass writes new ones.
    for made in (torch.zeros, torch.ones):
        written = TensorDict({"log_probs": jagged_like(batch, made)}, batch_size=len(batch))
        plain.kv_batch_put(keys=batch.keys, partition_id="train", fields=written)
        same(asks(["log_probs"], lambda: get(["responses", "log_probs"])), stock(["responses", "log_probs"]))
    last = TensorDict({"entropy": torch.nested.as_nested_tensor([torch.ones(7)], layout=torch.jagged)}, batch_size=1)
    queue.kv_batch_put(keys=batch.keys[-1:], partition_id="train", fields=last)
    assert unchanged("entropy", "responses") == ("responses",)
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
    assert transferqueue_utils._update_meta_with_output == fetch.answer

    FORWARD = {"input_ids", "position_ids", "loss_mask", "response_mask", "prompts", "responses"}
    loss = {"old_log_probs"}

    def passes(of):
        queue.begin(of, derives=derives)
        full = dataclasses.replace(of, fields=[*FORWARD, *loss], extra_info={"t": 1})
        return transfer.for_forward(dataclasses.replace(full)), full

    def check(meta, asked_of, wanted):
        want = fetch._fetch(dataclasses.replace(meta, extra_info={"t": 1}, fields=list(wanted)))
        # As a rank gets them: in verl's dispatch they are translated once for all ranks, and cut.
        (meta_of_rank,) = BatchData(meta).chunk(1) if translated else (meta,)
        assert type(meta_of_rank) is (BatchMeta if translated else KVBatchMeta)
        got = asks(asked_of, lambda: fetch(meta_of_rank))
        names = [name for name in want.keys() if isinstance(want.get(name), torch.Tensor)]
        assert set(names) == wanted, (names, wanted)
        same(got.select(*names), want.select(*names))
        assert got["t"] == want["t"] == 1
        assert columns.PASS not in got.keys()

    for derives in (False, True):
        forward = FORWARD - set(columns.DERIVED) if derives else FORWARD
        first, full = passes(batch)
        update = lambda: transfer.for_update(dataclasses.replace(full))
        check(first, forward, FORWARD)
        check(update(), loss, FORWARD | loss)
        check(update(), forward | loss, FORWARD | loss)  # what the update had is let go

        first, _ = passes(batch)
        check(first, forward, FORWARD)
        changed = TensorDict({"response_mask": 1 - mask}, batch_size=len(batch))
        queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=changed)
        check(update(), loss | {"response_mask"}, FORWARD | loss)
        try:
            fetch(update())
        except RuntimeError as error:  # the mask that the others follow from is gone
            assert derives and "did not see the first pass" in str(error), error
        else:
            assert not derives

        # Without a first pass, a changed mask stands beside the one that the rollouts had.
        queue.begin(batch, derives=derives)
        queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=changed)
        check(update(), FORWARD | loss, FORWARD | loss)
        mask_of_rollouts = stock(["loss_mask"])["loss_mask"]
        back = TensorDict({"response_mask": mask_of_rollouts}, batch_size=len(batch))
        plain.kv_batch_put(keys=batch.keys, partition_id="train", fields=back)
        queue.begin(batch, derives=derives)
        check(update(), forward | loss, FORWARD | loss)

        first, _ = passes(batch)
        check(first, forward, FORWARD)
        check(passes(other)[0], forward, FORWARD)  # another batch
        queue.begin(batch, derives=derives)
        check(update(), forward | loss, FORWARD | loss)
        check(dataclasses.replace(full), FORWARD | loss, FORWARD | loss)  # a pass that says nothing of it

    queue.begin(batch)
    get(["responses"])
    queue.kv_clear(keys=other.keys, partition_id="train")
    asks([], lambda: get(["responses"]))
    queue.kv_clear(keys=batch.keys, partition_id="train")
    again = put(f"a{len(lengths)}{lengths[0]}", lengths)  # as no step does: the same keys once more
    asks(["responses"], lambda: get(["responses"]))

# ---- a step whose columns travel whole ----

class Workers:
    # As verl's worker group: each of some ranks gets its rows, and answers.

    def __init__(self, ranks): self.ranks, self.fetches = ranks, [columns.KeepingFetch(Unpatched) for _ in range(ranks)]

    def call(self, batch, work):
        answers = []
        for rank, meta in enumerate(BatchData(batch).chunk(self.ranks)):
            meta = pickle.loads(pickle.dumps(meta))
            data = self.fetches[rank](meta)
            output = work(rank, data)
            if output is not None:
                answers.append(pickle.loads(pickle.dumps(self.fetches[rank].answer(output, meta, "compute_log_prob"))))
        return BatchData(answers).concat() if answers else None

    def compute_log_prob(self, batch):
        def work(rank, data):
            offsets = data["input_ids"].offsets()
            column = torch.nested.nested_tensor_from_jagged(torch.rand(int(offsets[-1])), offsets)
            made = {"log_probs": column, "entropy": column * 2}
            if more: made |= {"dense": torch.arange(len(data)) + rank, "low": column.bfloat16()}
            return tu.get_tensordict(made, non_tensor_dict={"metrics": {"mfu": 1.0}})
        return self.call(batch, work)

class Unpatched:
    tu = tu
    _meta_to_realdata = staticmethod(fetch._fetch)
    _update_meta_with_output = staticmethod(fetch._answer)
    _run_async_in_temp_loop = staticmethod(transferqueue_utils._run_async_in_temp_loop)

def pieces(): return (plain.kv_list(columns.PARTITION) or {}).get(columns.PARTITION, {})

FIELDS = ["responses", "response_mask", "log_probs", "entropy", "rm_scores"]
for ranks, more, lengths in ((1, False, [3, 1, 4]), (2, True, [3, 1, 4, 1, 5]), (3, False, [2, 2, 2]), (1, True, [1])):
    batch = put(f"w{ranks}{len(lengths)}", lengths)
    tags = [dict(tag, mine=n) for n, tag in enumerate(batch.tags)]
    batch = KVBatchMeta(keys=batch.keys, tags=tags, partition_id="train")  # as the replay buffer gives it
    def ask(of, names, keys): return of.kv_batch_get(keys=keys or batch.keys, partition_id="train", select_fields=names)
    def get(names, keys=None): return ask(queue, names, keys)
    def stock(names, keys=None): return ask(plain, names, keys)
    def hand(**fields):
        table = TensorDict(fields, batch_size=len(batch))
        return queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=table)

    workers = Workers(ranks)
    transfer.take_answers(workers, queue)
    def log_prob_pass():
        queue.begin(batch, derives=True, whole=True)
        answer = workers.compute_log_prob(transfer.for_forward(dataclasses.replace(batch)))
        assert answer.keys == batch.keys and columns.MADE not in (answer.extra_info or {})
        if more:
            same(get(["dense", "low"]), stock(["dense", "low"]))
            assert torch.equal(get(["low"])["low"].values(), get(["log_probs"])["log_probs"].values().bfloat16())
        return asks(["rm_scores"], lambda: get(FIELDS))

    data = log_prob_pass()
    assert "log_probs" not in stock(None).keys()
    same(data.select("responses", "response_mask", "rm_scores"), stock(["responses", "response_mask", "rm_scores"]))
    assert torch.equal(data["entropy"].values(), 2 * data["log_probs"].values())
    assert torch.equal(data["log_probs"].offsets(), stock(["input_ids"])["input_ids"].offsets())

    # What the trainer puts stays with it until a worker needs it.
    made = {name: jagged_like(batch, torch.rand) for name in ("old_log_probs", "entropy", "advantages", "returns")}
    handle = hand(old_log_probs=made["old_log_probs"], entropy=made["entropy"])
    assert handle.keys == batch.keys and handle.tags == tags and handle.extra_info == {}
    handle = hand(advantages=made["advantages"], returns=made["returns"])
    assert {"old_log_probs", "entropy", "advantages", "responses"} <= set(handle.fields)
    got = asks([], lambda: get([*made, "response_mask"]))
    for name, column in made.items():
        assert torch.equal(got[name].values(), column.values()), name
    assert not set(made) & set(stock(None).keys()) and not pieces()

    def update(handle, expected):
        seen = []
        workers.call(transfer.for_update(handle), lambda rank, data: seen.append(data))
        assert len(pieces()) == (ranks if len(seen) else 0)
        for name, column in expected.items():
            values = torch.cat([data[name].values() for data in seen])
            assert torch.equal(values, column.values()) and values.dtype == column.dtype, name
            for data in seen:
                assert torch.equal(data[name].offsets(), data["responses"].offsets())
        rolled = stock(["input_ids", "position_ids", "loss_mask", "prompts", "responses"])
        for name in rolled.keys():
            values = torch.cat([data[name].values() for data in seen])
            assert torch.equal(values, rolled[name].values()), name
        assert not {"entropy", "returns"} & set(seen[0].keys())  # no loss reads them

    mask = stock(["response_mask"])["response_mask"]
    update(handle, {"old_log_probs": made["old_log_probs"], "advantages": made["advantages"], "response_mask": mask})
    queue.kv_clear(keys=batch.keys, partition_id="train")
    assert not pieces()

    # With another mask, and weights beside it (verl's rollout correction).
    batch = KVBatchMeta(keys=put(f"x{ranks}{len(lengths)}", lengths).keys, tags=tags, partition_id="train")
    log_prob_pass()
    masked = jagged_like(batch, lambda n: torch.arange(n) % 3)
    weights = jagged_like(batch, torch.rand)
    handle = hand(old_log_probs=made["old_log_probs"], advantages=made["advantages"], entropy=made["entropy"],
                  response_mask=masked, rollout_is_weights=weights)
    update(handle, {"response_mask": masked, "rollout_is_weights": weights, "advantages": made["advantages"]})

    queue.kv_clear(keys=batch.keys, partition_id="train")

    # Somebody asks for some rows, for all fields, or puts some rows: what was held back is there.
    batch = KVBatchMeta(keys=put(f"v{ranks}{len(lengths)}", lengths).keys, tags=tags, partition_id="train")
    log_prob_pass()
    hand(old_log_probs=made["old_log_probs"], advantages=made["advantages"])
    last = batch.keys[-1:]
    if len(lengths) > 1:
        some = asks(["old_log_probs", "advantages"], lambda: get(["old_log_probs", "advantages"], last))
        same(some, stock(["old_log_probs", "advantages"], last))
    else:
        get(None)
    assert torch.equal(stock(["advantages"])["advantages"].values(), made["advantages"].values())
    assert not queue.next_pass(["advantages"], ["old_log_probs"])[1].sent and not pieces()
    handle = hand(advantages=made["returns"])  # held back again
    assert torch.equal(stock(["advantages"])["advantages"].values(), made["advantages"].values())
    update(handle, {"old_log_probs": made["old_log_probs"], "advantages": made["returns"]})
    log_prob_pass()
    hand(returns=made["returns"])
    assert torch.equal(get(None)["returns"].values(), made["returns"].values())
    hand(returns=made["advantages"])
    one = TensorDict({"returns": torch.nested.as_nested_tensor([torch.ones(7)], layout=torch.jagged)}, batch_size=1)
    queue.kv_batch_put(keys=last, partition_id="train", fields=one)
    got = get(["returns"])["returns"]
    same(TensorDict({"returns": got}, batch_size=len(batch)), stock(["returns"]))
    assert got.unbind()[-1].tolist() == [1.0] * 7
    if len(lengths) > 1:
        assert torch.equal(got.unbind()[0], made["advantages"].unbind()[0])
    # Columns of another shape than the responses' are put.
    log_prob_pass()
    hand(scale=torch.arange(len(batch)))
    assert torch.equal(stock(["scale"])["scale"], torch.arange(len(batch)))
    # In types that NumPy does not have, too.
    log_prob_pass()
    low = jagged_like(batch, lambda n: torch.rand(n).bfloat16())
    update(hand(old_log_probs=low, advantages=made["advantages"]), {"old_log_probs": low})
    # Workers that are cut otherwise than in the first pass are an error.
    if ranks == 2:
        handle = hand(old_log_probs=made["old_log_probs"], advantages=made["advantages"])
        workers.ranks, workers.fetches = 1, workers.fetches[:1]
        try:
            workers.call(transfer.for_update(handle), lambda rank, data: None)
        except RuntimeError as error:
            assert "divided among the workers otherwise" in str(error), error
        else:
            raise AssertionError("other rows were taken for one's own")
    queue.kv_clear(keys=batch.keys, partition_id="train")
    assert not pieces()

# ---- what was held back of rows that are still there when the queue turns to others ----

def begun(prefix, lengths):
    global batch, more
    batch, more = put(prefix, lengths), False
    workers = Workers(1)
    transfer.take_answers(workers, queue)
    queue.begin(batch, whole=True)
    assert not pieces()  # nor those of the batch before
    workers.compute_log_prob(transfer.for_forward(dataclasses.replace(batch)))
    workers.call(transfer.for_update(hand(returns=jagged_like(batch, torch.rand))), lambda rank, data: None)
    workers.call(transfer.for_update(hand(old_log_probs=jagged_like(batch, torch.rand))), lambda rank, data: None)
    assert len(pieces()) == 1
    advantages = jagged_like(batch, torch.rand)
    hand(advantages=advantages)
    return batch.keys, advantages.values()

one, two = begun("y", [3, 1, 4]), begun("z", [2, 2])
got = get(["responses", "advantages"], [*one[0], *two[0]])
assert torch.equal(got["advantages"].values(), torch.cat([one[1], two[1]]))
queue.kv_clear(keys=[*one[0], *two[0]], partition_id="train")
keys, values = begun("y", [3, 1, 4])
queue.kv_clear(keys=keys[0], partition_id="train")
assert torch.equal(get(["advantages"], keys[1:])["advantages"].values(), values[3:])
queue.kv_clear(keys=keys[1:], partition_id="train")
assert not pieces()

batch, other = put("y", [3, 1, 4]), put("z", [3, 1, 4])
workers = Workers(1)
transfer.take_answers(workers, queue)
queue.begin(batch, whole=True)
told = transfer.for_forward(dataclasses.replace(batch))
queue.begin(other, whole=True)
try:
    workers.compute_log_prob(told)
except RuntimeError as error:
    assert "answered for other rows" in str(error), error
else:
    raise AssertionError("columns of other rows were taken")
print("done")
"""


def test_columns_are_those_of_transfer_queue() -> None:
    environment = {**os.environ, "VERL_PLATFORM": "cpu", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert result.stdout.splitlines()[-1] == "done"
