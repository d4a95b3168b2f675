"""Columns of a batch that a process has had already, kept instead of fetched again.

A column, one field of all rows, travels through TransferQueue as a tensor a row, each of which is packed, sent and
unpacked by itself: for a thousand responses a twentieth of a second a column. Within a step verl's trainer fetches what
it has just put, and its workers fetch the same prompts and responses for the log-probability pass and for the update.
Here a column stays in the process that has fetched or put it until the step is over. What comes out is what
TransferQueue would give (tests compare): rows are known by their keys, which no two steps share, and a column that is
put again is new.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from types import ModuleType
from typing import Any
from uuid import uuid4

import torch
from tensordict import TensorDict
from transfer_queue import BatchMeta, KVBatchMeta

from gtpo_verl.verl_plugin import jagged

# In a batch's `extra_info`: a name of the batch, and which of its fields are what they were in the last pass over it.
UNCHANGED = "gtpo_verl_unchanged"


class Columns:
    """What is kept of one batch: jagged tensors, the rows in the order of its keys."""

    def __init__(self) -> None:
        self._keys: list[Any] | None = None
        self._kept: dict[str, torch.Tensor] = {}

    def begin(self, keys: Sequence[Any]) -> None:
        """Keeps columns of these rows from now on, and forgets those of others."""
        self._keys, self._kept = list(keys), {}

    def forget(self) -> None:
        self._keys, self._kept = None, {}

    def are_of(self, keys: Sequence[Any]) -> bool:
        return self._keys is not None and list(keys) == self._keys

    def hold_any(self, keys: Iterable[Any]) -> bool:
        """Whether one of these rows is of the batch."""
        return self._keys is not None and not set(self._keys).isdisjoint(keys)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._kept.pop(name, None)

    def keep(self, columns: Iterable[tuple[str, Any]]) -> None:
        """Those of one number or more a token; others are objects that somebody may change, or cheap to fetch."""
        for name, column in columns:
            if jagged.is_jagged(column):
                self._kept[name] = jagged.with_lengths(column)

    def of(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Those of these fields that are kept."""
        return {name: self._kept[name] for name in names if name in self._kept}


class KeepingQueue:
    """TransferQueue for the trainer: columns of the batch that `begin` names are fetched once, and what is put is kept.

    Args:
        queue: the module `transfer_queue`.
        of_rollouts: fields that the agent loops have written. Of others (`log_probs`) every pass of a worker may write
            new ones, and they are fetched each time.
    """

    def __init__(self, queue: Any, of_rollouts: Iterable[str]) -> None:
        self._queue = queue
        self._of_rollouts = frozenset(of_rollouts)
        self._columns = Columns()
        self._name = ""
        self._put: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def begin(self, keys: Sequence[str]) -> None:
        self._columns.begin(keys)
        self._name = uuid4().hex
        self._put = set()

    def kv_clear(self, keys: Any, partition_id: str) -> None:
        if self._columns.are_of(keys):
            self._columns.forget()
        self._queue.kv_clear(keys=keys, partition_id=partition_id)

    def unchanged(self, fields: Iterable[str]) -> tuple[str, list[str]]:
        """For `UNCHANGED`: of these fields, those that were not put since `begin`."""
        return self._name, [name for name in fields if name not in self._put]

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: Any = None) -> TensorDict:
        if select_fields is None or isinstance(keys, str) or not self._columns.are_of(keys):
            return self._queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=select_fields)
        names = [select_fields] if isinstance(select_fields, str) else list(select_fields)
        known = self._columns.of(names)
        if missing := [name for name in names if name not in known]:
            data = self._queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=missing)
            self._columns.keep((name, data[name]) for name in self._of_rollouts.intersection(missing))
        else:
            data = TensorDict({}, batch_size=len(keys))
        return data.update(known)

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any = None, **more: Any) -> Any:
        meta = self._queue.kv_batch_put(keys=keys, partition_id=partition_id, fields=fields, **more)
        if fields is not None and self._columns.hold_any(keys):
            self._put.update(fields.keys())
            self._columns.drop(fields.keys())
            if self._columns.are_of(keys):
                self._columns.keep(fields.items())
        return meta


def install(fetching: ModuleType) -> None:
    """Patches verl/utils/transferqueue_utils.py (`_meta_to_realdata`), which fetches a worker's rows. Safe to call
    twice."""
    if not isinstance(fetching._meta_to_realdata, KeepingFetch):
        fetching._meta_to_realdata = KeepingFetch(fetching._meta_to_realdata)  # type: ignore[attr-defined]


class KeepingFetch:
    """Fetches a worker's rows of a batch; of what `UNCHANGED` names, the columns of the last pass are taken again."""

    def __init__(self, fetch: Any) -> None:
        self._fetch = fetch
        self._columns = Columns()

    def __call__(self, meta: Any) -> TensorDict:
        """Args: meta: `BatchMeta`, or `KVBatchMeta`."""
        if UNCHANGED not in (meta.extra_info or {}):
            return self._fetch(meta)
        batch, unchanged = meta.extra_info[UNCHANGED]
        rows = [batch, *(meta.keys if isinstance(meta, KVBatchMeta) else meta.global_indexes)]
        fields = list(meta.fields if isinstance(meta, KVBatchMeta) else meta.field_names)
        known = self._columns.of(set(fields).intersection(unchanged)) if self._columns.are_of(rows) else {}
        data = self._fetch(_narrowed(meta, [name for name in fields if name not in known]))
        if known:  # the second pass is the last
            self._columns.forget()
        else:
            self._columns.begin(rows)
            self._columns.keep(data.items())
        return data.update(known)


def _narrowed(meta: Any, fields: list[str]) -> Any:
    """Of the same rows, with these fields alone and without the mark. (`BatchMeta.select_fields` copies every row's
    description, which lasts as long as fetching a column.)"""
    extra_info = {name: value for name, value in meta.extra_info.items() if name != UNCHANGED}
    if isinstance(meta, KVBatchMeta):
        narrowed = copy(meta)
        narrowed.fields, narrowed.extra_info = fields, extra_info
        return narrowed
    return BatchMeta(
        global_indexes=meta.global_indexes,
        partition_ids=meta.partition_ids,
        field_schema={name: meta.field_schema[name] for name in fields},
        production_status=meta.production_status,
        extra_info=extra_info,
        custom_meta=meta.custom_meta,
        _custom_backend_meta=[
            {name: value for name, value in row.items() if name.startswith("_") or name in fields}
            for row in meta._custom_backend_meta
        ],
    )
