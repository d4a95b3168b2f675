"""The only use of TransferQueue and of `KVBatchMeta`, verl's handle of a batch that lies in it.

The rows of a batch are responses. A row's key is `{uid}_{session}_{row}`: prompt, sampled response, and the turn where
an agent loop returns several rows a response.
"""

from collections.abc import Sequence
from typing import TypeAlias

import transfer_queue
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

Batch: TypeAlias = KVBatchMeta


def fetch(batch: Batch, fields: Sequence[str]) -> TensorDict:
    """These fields of all rows. Those of tokens are jagged: (responses, *), int64, float32 or bool."""
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))


def put(batch: Batch, fields: TensorDict) -> Batch:
    """Writes fields, new ones or in place of what was there, of all rows; returns the handle that knows of them."""
    return transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


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
