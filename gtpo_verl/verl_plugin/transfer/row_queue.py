"""Rows for TransferQueue that are put in one call for many responses."""

import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from omegaconf import DictConfig
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from gtpo_verl.verl_plugin.batching import Batch, Batcher, settle


def install(config: DictConfig, worker: Any) -> "RowQueue":
    """Patches verl/trainer/ppo/v1/agent_loop_tq.py (`AgentLoopWorkerTQ`) in this process: it puts each response into
    TransferQueue by a call of its own, four messages to its processes.

    Args:
        config: the whole configuration.
        worker: the agent-loop worker. Ray carries the methods of an actor's base class by value where the module's name
            for it is Ray's own class, so that they do not see the module's names: what counts is what they see.
    """
    simple = config.transfer_queue.backend.storage_backend == "SimpleStorage"
    queue: RowQueue | None = None
    for method in (worker._run_prompt, worker._agent_loop_postprocess):
        names = inspect.unwrap(method).__globals__
        if not isinstance(names["tq"], RowQueue):
            queue = queue or RowQueue(names["tq"], Rows if simple else list_of_dict_to_tensordict)
            warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")  # of the layout, in `_tensor`
            names["tq"] = queue
            names["list_of_dict_to_tensordict"] = list  # made once a batch, below
    return names["tq"]


class RowQueue:
    """TransferQueue, as far as verl's agent loops use it, with puts that travel together."""

    def __init__(self, queue: Any, table: Callable[[list[dict[str, Any]]], Any]) -> None:
        self._queue = queue
        self._table = table
        self._put = Batcher(self._put_many)
        self.errors: dict[str, str] = {}  # of a prompt's first response that failed, by the prompt's uid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> Any:
        """A tag without fields; that of a prompt that failed says why."""
        if tag.get("status") == "failure" and key in self.errors:
            tag = {**tag, "error": self.errors.pop(key)}
        return self._put((partition_id, [key], None, [tag]))

    def async_kv_batch_put(
        self, keys: list[str], partition_id: str, fields: list[dict[str, Any]], tags: list[dict[str, Any]]
    ) -> Any:
        """Rows of fields, a dictionary a key, and their tags."""
        return self._put((partition_id, keys, fields, tags))

    async def _put_many(self, batch: Batch) -> None:
        alike: dict[Any, Batch] = {}
        for item, future in batch:
            partition_id, _, fields, _ = item
            columns = None if fields is None else tuple(fields[0])
            alike.setdefault((partition_id, columns), []).append((item, future))
        for (partition_id, columns), part in alike.items():
            keys = [key for item, _ in part for key in item[1]]
            tags = [tag for item, _ in part for tag in item[3]]
            rows = None if columns is None else [row for item, _ in part for row in item[2]]
            try:
                await self._queue.async_kv_batch_put(
                    keys=keys,
                    partition_id=partition_id,
                    fields=None if rows is None else self._table(rows),
                    tags=tags,
                )
                result: Any = None
            except Exception as error:
                result = error
            for _, future in part:
                settle(future, result)


class Rows:
    """verl's TensorDict of rows, as far as TransferQueue's simple storage looks at one to put it.

    That takes a column apart once for every storage unit and twice to describe it, which for nested tensors and objects
    lasts longer than all the rest: a column is given in its parts, and described by a nested tensor of the older
    layout, whose parts are found without Python.
    """

    def __init__(self, rows: list[dict[str, Any]]):
        self.batch_size = torch.Size([len(rows)])
        self._columns = {name: [row[name] for row in rows] for name in rows[0]}
        self._tensors = {
            name: _tensor(column)
            for name, column in self._columns.items()
            if all(isinstance(part, torch.Tensor) for part in column)
        }

    def keys(self) -> Iterable[str]:
        return self._columns.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        return {**self._columns, **self._tensors}.items()

    def __getitem__(self, name: str) -> Any:
        tensor = self._tensors.get(name)
        return self._columns[name] if tensor is None or tensor.is_nested else tensor


def _tensor(parts: list[torch.Tensor]) -> torch.Tensor:
    """The tensor that verl's `list_of_dict_to_tensordict` makes of them; where it is nested, of the older layout."""
    if all(part.shape == parts[0].shape for part in parts):
        return torch.stack(parts)
    return torch.nested.as_nested_tensor(parts, layout=torch.strided)
