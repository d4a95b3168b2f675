"""The only use of TransferQueue and of `KVBatchMeta`, verl's handle of a batch that lies in it.

What verl's own agent loops put there passes `row_queue`; what its trainer and its workers ask for passes `columns`.

The rows of a batch are responses. A row's key is `{uid}_{session}_{row}`: prompt, sampled response, and the turn where
an agent loop returns several rows a response.
"""

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, TypeAlias

import transfer_queue
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from gtpo_verl.verl_plugin.transfer.columns import PASS, KeepingQueue

Batch: TypeAlias = KVBatchMeta

# What a language model's forward pass reads of a batch, and verl's `ppo_loss` beside it.
_FORWARD = ("input_ids", "position_ids", "loss_mask", "response_mask", "prompts", "responses")
_LOSS = ("old_log_probs", "advantages", "ref_log_prob", "rollout_is_weights")


def keep_columns(trainer: ModuleType) -> KeepingQueue:
    """Puts a `KeepingQueue` before TransferQueue, for this package and for verl's trainer.

    Args:
        trainer: verl/trainer/ppo/v1/trainer_base.py, whose name for TransferQueue is `tq`.

    Returns:
        The queue, to be told when a batch begins.
    """
    global transfer_queue
    plain: Any = transfer_queue
    if isinstance(plain, KeepingQueue):
        plain = plain._queue
    queue = KeepingQueue(plain, (*_FORWARD, "rollout_log_probs", "rm_scores"))
    trainer.tq = transfer_queue = queue  # type: ignore[attr-defined,assignment]
    return queue


def for_forward(batch: Batch) -> Batch:
    """The batch with the fields that the log-probability pass reads.

    Without a choice every field travels to the engine. Those of verl's agent loop that are no tensors (messages, reward
    information, ids) are a Python object a row, which tensordict walks at every micro-batch.

    Args:
        batch: of a model that reads text alone; changed in place.
    """
    batch.fields = list(_FORWARD)
    if isinstance(transfer_queue, KeepingQueue):
        batch.fields, told = transfer_queue.first_pass(_FORWARD)
        batch.extra_info = {**(batch.extra_info or {}), PASS: told}
    return batch


def for_update(batch: Batch) -> Batch:
    """As `for_forward`, of a batch that knows its fields: with those of the loss."""
    forward, loss = ([name for name in names if name in (batch.fields or ())] for names in (_FORWARD, _LOSS))
    batch.fields = [*forward, *loss]
    if isinstance(transfer_queue, KeepingQueue):
        batch.fields, told = transfer_queue.next_pass(forward, loss)
        batch.extra_info = {**(batch.extra_info or {}), PASS: told}
    return batch


def take_answers(workers: Any, queue: KeepingQueue) -> None:
    """Lets `queue` keep what the log-probability pass of these workers answers with.

    Args:
        workers: verl's worker group of the actor.
    """
    compute = workers.compute_log_prob
    workers.compute_log_prob = lambda batch: queue.take(compute(batch))


def fetch(batch: Batch, fields: Sequence[str]) -> TensorDict:
    """These fields of all rows. Those of tokens are jagged: (responses, *), int64, float32 or bool."""
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))


def of_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """A handle of some rows of a batch, by their numbers."""
    return batch.select_keys([batch.keys[row] for row in rows])


def put(batch: Batch, fields: TensorDict) -> Batch:
    """Writes fields, new ones or in place of what was there, of all rows; returns the handle that knows of them."""
    return transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


def sessions(keys: Iterable[str]) -> set[str]:
    """`{uid}_{session}` of the rows' keys: one a response, however many rows it has."""
    return {key.rsplit("_", 1)[0] for key in keys}


def group_errors(partition_id: str) -> dict[str, str]:
    """What the agent loop said of groups that failed: uid -> the first exception's text."""
    tags = (transfer_queue.kv_list(partition_id) or {}).get(partition_id, {})
    return {uid: tag["error"] for uid, tag in tags.items() if tag.get("is_prompt") and tag.get("error")}


def is_padding(batch: Batch) -> list[bool]:
    """Which rows verl added to fill the batch."""
    return [tag.get("is_padding", False) for tag in batch.tags]


def check_single_row_sessions(keys: Sequence[str]) -> None:
    """Refuses agent loops that give several rows a session.

    Args:
        keys: those of a batch.

    Raises:
        ValueError: naming the session.
    """
    sessions = [key.rsplit("_", 1)[0] for key in keys]
    if len(set(sessions)) != len(sessions):
        repeated = next(session for session in sessions if sessions.count(session) > 1)
        raise ValueError(
            f"The agent loop returned several rows for session {repeated}; groups with several rows a sampled session "
            "are not supported by GTPO and GRPO-S yet. Use an agent loop with one output a session "
            "(actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent)"
        )
