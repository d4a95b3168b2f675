"""verl's reward workers, asked for many scores in one call."""

import asyncio
from itertools import cycle
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop import reward_loop
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

from gtpo_verl.configuration.reward_results import check_result, deciding_metrics
from gtpo_verl.verl_plugin.batching import Batch, Batcher, Failure, settle

# Responses a call: more calls keep more reward workers busy, fewer cost less.
_CALL = 4


def install() -> None:
    """verl/experimental/reward_loop/reward_loop.py (`RewardLoopManager.__init__`) takes the worker by its module's
    name, in this process; it offers no setting for the class."""
    reward_loop.RewardLoopWorker = BatchingRewardLoopWorker  # type: ignore[misc]


class BatchingRewardLoopWorker(RewardLoopWorker):
    """verl's worker with `compute_scores`, which takes nothing but numbers for scores."""

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        # Once: to read them from the configuration takes as long as all else that a response costs here.
        self._deciding = deciding_metrics(config)

    async def compute_score(self, data: DataProto) -> dict:
        """As in verl, of one response; raises ValueError for a reward that is no finite number, or whose metric that
        decides something is none. verl trains on NaN without a word."""
        result = await super().compute_score(data)
        reward, more = _number(result["reward_score"]), result.get("reward_extra_info", {})
        result = {**result, "reward_score": reward}
        if more:
            result["reward_extra_info"] = more = {name: _number(value) for name, value in more.items()}
        check_result(reward, more, self._deciding)
        return result

    async def compute_scores(self, packed: list[Any]) -> list[Any]:
        """`compute_score` of each batch that `pack` made; in its place the `Failure` that it ended with."""
        scores = await asyncio.gather(*(self.compute_score(unpack(data)) for data in packed), return_exceptions=True)
        return [Failure(score) if isinstance(score, BaseException) else score for score in scores]


def _number(value: Any) -> Any:
    """That of a tensor without dimensions. verl's DAPO manager makes one of every reward, for its length penalty. It
    takes eighty times as long to the agent loop as a number, and there pydantic prints it into a warning."""
    return value.item() if isinstance(value, torch.Tensor) and value.ndim == 0 else value


class BatchingRewards:
    """Looks like the Ray handle of a reward worker, as far as verl's agent loops use one, and is all of them."""

    def __init__(self, workers: list[ray.actor.ActorHandle]):
        self._workers = cycle(workers)
        self._score = Batcher(self._score_many)

    @property
    def compute_score(self) -> "BatchingRewards":
        return self

    def remote(self, data: Any) -> Any:
        return self._score(data)

    async def _score_many(self, batch: Batch) -> None:
        parts = [batch[start : start + _CALL] for start in range(0, len(batch), _CALL)]
        await asyncio.gather(*(self._score_part(next(self._workers), part) for part in parts))

    async def _score_part(self, worker: ray.actor.ActorHandle, part: Batch) -> None:
        try:
            scores = await worker.compute_scores.remote([pack(data) for data, _ in part])
        except Exception as error:
            scores = [error] * len(part)
        for (_, future), score in zip(part, scores, strict=True):
            settle(future, score)


def pack(data: DataProto) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A batch for another process; a tensor takes ten times as long there as an array."""
    return {name: tensor.numpy() for name, tensor in data.batch.items()}, data.non_tensor_batch, data.meta_info


def unpack(packed: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> DataProto:
    """What `pack` was given."""
    arrays, non_tensor_batch, meta_info = packed
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    size = len(next(iter(tensors.values())))
    return DataProto(TensorDict(tensors, batch_size=size), non_tensor_batch, meta_info)
