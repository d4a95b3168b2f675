"""Columns of a batch that stay in a process, or travel in one piece, instead of row by row through TransferQueue.

A column, one field of all rows, lies in TransferQueue as a tensor a row, each of which is packed, sent and unpacked by
itself: of a thousand responses, a column takes a twentieth of a second to fetch and two to put. Here

- what a process has fetched or put of a batch stays there until the step is over: verl's trainer fetches what it has
  just put, and its workers fetch the same prompts and responses for the log-probability pass and for the update;
- what follows from other columns (`DERIVED`) is not fetched by the workers, but made there;
- what a worker computes for every token, and the columns that it had fetched for that, go to the trainer with its
  answer; what the trainer computes goes to the workers as one row a worker, in a partition of its own (`PARTITION`).

What comes out is what TransferQueue would give (tests compare): rows are known by their keys, which no two steps share,
and a column that is put again is new. Whoever asks the trainer's queue for other rows, or all fields, finds them there:
what was held back is put first.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import transfer_queue
from tensordict import NonTensorData, TensorDict
from transfer_queue import BatchMeta, KVBatchMeta

from gtpo_verl.verl_plugin import jagged

# Of verl's rows of text: prompts and responses one after the other, their positions, and the mask of the responses.
DERIVED = ("input_ids", "position_ids", "loss_mask")
_MASK = "response_mask"
_SOURCES = ("prompts", "responses", _MASK)
# In a batch's `extra_info`: a `Pass`, and a worker's answer, `Made`.
PASS = "gtpo_verl_pass"
MADE = "gtpo_verl_made"
# Of TransferQueue; a row of it is what one worker needs of the trainer's columns, under `{batch}/{its first row}`.
PARTITION = "gtpo_verl_columns"
_ROWS = "rows"  # in such a row beside the columns: the numbers of the worker's rows


@dataclass(frozen=True)
class Pass:
    """What the trainer says to the workers about a pass over a batch.

    Args:
        batch: its name.
        unchanged: fields that are what they were in the last pass.
        derives: fields of `DERIVED` are not fetched.
        whole: columns that the pass makes go back with the answer.
        sent: columns that lie in `PARTITION`.
    """

    batch: str
    unchanged: tuple[str, ...] = ()
    derives: bool = False
    whole: bool = False
    sent: tuple[str, ...] = ()


@dataclass
class Made:
    """A worker's answer.

    Args:
        rows: numbers of its rows in TransferQueue, in the order of the batch.
        columns: values (tokens,) and lengths (rows,) of each. Those of bfloat16 lie in TransferQueue.
    """

    rows: list[int]
    columns: dict[str, tuple[np.ndarray, np.ndarray]]

    def __deepcopy__(self, _: Any) -> "Made":
        """verl's handles of a batch copy what they carry."""
        return self


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
    """TransferQueue for the trainer.

    Args:
        queue: the module `transfer_queue`.
        of_rollouts: fields that the agent loops have written. Of others (`log_probs`) every pass of a worker may write
            new ones, and they are fetched each time.
    """

    def __init__(self, queue: Any, of_rollouts: Iterable[str]) -> None:
        self._queue = queue
        self._of_rollouts = frozenset(of_rollouts)
        self._columns = Columns()
        self._batch = KVBatchMeta()
        self._name = ""
        self._derives = self._whole = self._passed = False
        self._put: set[str] = set()  # since the batch began
        self._held: set[str] = set()  # of those, what TransferQueue does not have
        self._ranks: list[list[int]] = []  # the workers' rows, where they answer with whole columns
        self._sent: list[str] = []  # keys in `PARTITION`

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def begin(self, batch: KVBatchMeta, *, derives: bool = False, whole: bool = False) -> None:
        """Keeps columns of this batch from now on, and forgets those of others.

        Args:
            derives: its rows are verl's of text, of which `DERIVED` follow from others.
            whole: nobody but the actor's workers and this queue reads the batch until it is cleared.
        """
        self._recall()
        self._settle(self._batch.keys)  # for a trainer that ends its step with several batches
        self._columns.begin(batch.keys)
        self._batch, self._name = batch, uuid4().hex
        self._derives, self._whole, self._passed = derives, whole, False
        self._put, self._held, self._ranks = set(), set(), []

    def first_pass(self, fields: Iterable[str]) -> tuple[list[str], Pass]:
        """Of fields that the workers read, those that they get out of TransferQueue, and what they are told."""
        self._passed = True
        return self._to_fetch(fields, self._derives), Pass(self._name, derives=self._derives, whole=self._whole)

    def next_pass(self, again: Iterable[str], others: Iterable[str]) -> tuple[list[str], Pass]:
        """As `first_pass`; sends what the workers need and TransferQueue does not have.

        Args:
            again: fields that the workers read in the first pass, too.
            others: those that they read beside them.
        """
        again, fields = tuple(again), (*again, *others)
        unchanged = tuple(name for name in again if name not in self._put)
        sent = tuple(name for name in fields if name in self._held)
        if sent:
            self._send(sent)
        # The mask that another one was put in place of is the workers' if they had it.
        derives = self._derives and (self._passed or _MASK in unchanged)
        return self._to_fetch(fields, derives), Pass(self._name, unchanged, derives=derives, sent=sent)

    def _to_fetch(self, fields: Iterable[str], derives: bool) -> list[str]:
        return [name for name in fields if name not in self._held and not (derives and name in DERIVED)]

    def take(self, answer: KVBatchMeta) -> KVBatchMeta:
        """Keeps the columns that the workers answered with; returns what verl expects."""
        made: list[Made] | None = (answer.extra_info or {}).pop(MADE, None)
        if made is None:
            return answer
        if answer.keys != self._batch.keys:
            raise RuntimeError("the workers answered for other rows than they were given, or in another order")
        for name in made[0].columns:
            values, lengths = (np.concatenate([one.columns[name][part] for one in made]) for part in (0, 1))
            self._columns.keep([(name, jagged.of_lengths(torch.from_numpy(values), torch.from_numpy(lengths)))])
        self._ranks = [one.rows for one in made]
        return answer

    def kv_clear(self, keys: Any, partition_id: str) -> None:
        cleared = [keys] if isinstance(keys, str) else keys
        if self._columns.hold_any(cleared):
            self._recall()
            if not set(self._batch.keys).issubset(cleared):
                self._settle(cleared)
            self._columns.forget()
            self._held = set()
        self._queue.kv_clear(keys=keys, partition_id=partition_id)

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: Any = None) -> TensorDict:
        if select_fields is None or isinstance(keys, str) or not self._columns.are_of(keys):
            self._settle([keys] if isinstance(keys, str) else keys)
            return self._queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=select_fields)
        names = [select_fields] if isinstance(select_fields, str) else list(select_fields)
        known = self._columns.of(names)
        if missing := [name for name in names if name not in known]:
            data = self._queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=missing)
            self._columns.keep((name, data[name]) for name in self._of_rollouts.intersection(missing, data.keys()))
        else:
            data = TensorDict({}, batch_size=len(keys))
        return data.update(known)

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any = None, **more: Any) -> Any:
        if fields is None or not self._columns.hold_any(keys):
            return self._queue.kv_batch_put(keys=keys, partition_id=partition_id, fields=fields, **more)
        whole = self._columns.are_of(keys)
        if whole and self._ranks and not more and all(map(self._of_responses, fields.values())):
            self._columns.keep(fields.items())
            self._put.update(fields.keys())
            self._held.update(fields.keys())
            of_rollouts = (*self._of_rollouts, *DERIVED)
            return KVBatchMeta(list(keys), self._batch.tags, partition_id, [*{*of_rollouts, *self._put}])
        self._settle(keys)
        meta = self._queue.kv_batch_put(keys=keys, partition_id=partition_id, fields=fields, **more)
        self._put.update(fields.keys())
        self._columns.drop(fields.keys())
        if whole:
            self._columns.keep(fields.items())
        return meta

    def _of_responses(self, column: Any) -> bool:
        """Whether it has a number for each token of the responses."""
        responses: Any = self._columns.of(["responses"])["responses"]
        flat = jagged.is_jagged(column) and column.values().ndim == 1
        return flat and torch.equal(column.offsets(), responses.offsets())

    def _settle(self, keys: Iterable[str]) -> None:
        """Puts what was held back of a batch, of which somebody else wants to know."""
        if self._held and self._columns.hold_any(keys):
            held = TensorDict(self._columns.of(self._held), batch_size=len(self._batch.keys))
            self._queue.kv_batch_put(keys=self._batch.keys, partition_id=self._batch.partition_id, fields=held)
            self._held = set()

    def _send(self, names: Iterable[str]) -> None:
        self._recall()
        rows = torch.tensor([len(rows) for rows in self._ranks]).cumsum(0)
        columns = self._columns.of(names)
        # Where the workers' tokens end: responses' offsets at the ends of their rows.
        ends = self._columns.of(["responses"])["responses"].offsets()[rows]  # type: ignore[attr-defined]
        pieces = {name: jagged.of_lengths(column.values(), _lengths(ends)) for name, column in columns.items()}
        numbers = torch.tensor([number for rows in self._ranks for number in rows])
        pieces[_ROWS] = jagged.of_lengths(numbers, _lengths(rows))
        keys = [_piece(self._name, rows) for rows in self._ranks]
        self._queue.kv_batch_put(keys=keys, partition_id=PARTITION, fields=TensorDict(pieces, batch_size=len(keys)))
        self._sent = keys

    def _recall(self) -> None:
        if self._sent:
            self._queue.kv_clear(keys=self._sent, partition_id=PARTITION)
            self._sent = []


def _lengths(ends: torch.Tensor) -> torch.Tensor:
    return ends.diff(prepend=ends.new_zeros(1))


def _piece(batch: str, rows: list[int]) -> str:
    return f"{batch}/{rows[0]}"


def install(fetching: ModuleType) -> None:
    """Patches verl/utils/transferqueue_utils.py, which fetches a worker's rows (`_meta_to_realdata`) and puts what a
    pass has made (`_update_meta_with_output`). Safe to call twice."""
    if not isinstance(fetching._meta_to_realdata, KeepingFetch):
        keeping = KeepingFetch(fetching)
        fetching._meta_to_realdata = keeping  # type: ignore[attr-defined]
        fetching._update_meta_with_output = keeping.answer  # type: ignore[attr-defined]


class KeepingFetch:
    """Fetches a worker's rows of a batch, and answers with what a pass has made, as a `Pass` in its `extra_info` says.

    Args:
        fetching: verl/utils/transferqueue_utils.py.
    """

    def __init__(self, fetching: ModuleType) -> None:
        self._module = fetching
        self._fetch = fetching._meta_to_realdata
        self._answer = fetching._update_meta_with_output
        self._columns = Columns()

    def __call__(self, meta: Any) -> TensorDict:
        """Args: meta: `BatchMeta`, or `KVBatchMeta`."""
        told: Pass | None = (meta.extra_info or {}).get(PASS)
        if told is None:
            return self._fetch(meta)
        rows = meta.keys if isinstance(meta, KVBatchMeta) else meta.global_indexes
        fields = list(meta.fields if isinstance(meta, KVBatchMeta) else meta.field_names)
        known = self._columns.of(told.unchanged) if self._columns.are_of([told.batch, *rows]) else {}
        missing = [name for name in fields if name not in known and name not in told.sent]
        data = self._fetch(_narrowed(meta, missing)) if missing else self._bare(meta)
        if told.derives and not all(name in known for name in DERIVED):
            if told.unchanged and _MASK not in told.unchanged:
                raise RuntimeError("this worker did not see the first pass over a batch whose mask was changed since")
            data.update(derived(*(data[name] for name in _SOURCES)))
        if known:  # the second pass is the last
            self._columns.forget()
        else:
            self._columns.begin([told.batch, *rows])
            self._columns.keep(data.items())
        data.update(known)
        return data.update(self._sent(told, rows, data["responses"])) if told.sent else data

    def _bare(self, meta: Any) -> TensorDict:
        """What `_fetch` gives, of no fields: TransferQueue forgets how many rows there are."""
        data = TensorDict({}, batch_size=meta.size)
        self._module.tu.assign_non_tensor(data, **_narrowed(meta, []).extra_info)
        return data

    def _sent(self, told: Pass, rows: list[int], responses: torch.Tensor) -> dict[str, torch.Tensor]:
        piece = self._module._run_async_in_temp_loop(
            transfer_queue.async_kv_batch_get, keys=[_piece(told.batch, rows)], partition_id=PARTITION
        )
        if piece[_ROWS].values().tolist() != list(rows):
            raise RuntimeError("the batch was divided among the workers otherwise than in the log-probability pass")
        lengths = responses.offsets().diff()  # type: ignore[attr-defined]  # of jagged tensors
        return {name: jagged.of_lengths(piece[name].values(), lengths) for name in told.sent}

    def answer(self, output: TensorDict, meta: Any, func_name: str | None = None) -> Any:
        """verl's `_update_meta_with_output`: what a pass has made, into TransferQueue or the answer."""
        told: Pass | None = (meta.extra_info or {}).get(PASS)
        if told is None or not told.whole:
            return self._answer(output, meta, func_name)
        made = {name: value for name, value in output.items() if _travels_whole(value)}
        others = output.exclude(*made)
        meta = self._answer(others, meta, func_name)
        made.update(self._columns.of(_SOURCES))
        meta.extra_info = {name: value.data for name, value in others.items() if isinstance(value, NonTensorData)}
        meta.extra_info[MADE] = Made(
            list(meta.global_indexes),
            {
                name: (value.values().cpu().numpy(), value.offsets().diff().cpu().numpy())
                for name, value in made.items()
            },
        )
        return meta


def _travels_whole(value: Any) -> bool:
    """Whether it has a number for each token, of a type that NumPy knows. bfloat16, as the entropies of verl's fused
    kernels are, it does not know."""
    return jagged.is_jagged(value) and value.values().ndim == 1 and value.dtype is not torch.bfloat16


def derived(prompts: torch.Tensor, responses: torch.Tensor, response_mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """`DERIVED`, as verl's agent loops put them beside responses of text.

    Args:
        prompts, responses, response_mask: jagged (rows, *) int64.
    """
    input_ids = jagged.one_after_other(prompts, responses)
    return {
        "input_ids": input_ids,
        "position_ids": jagged.positions(input_ids),
        "loss_mask": jagged.with_lengths(response_mask),
    }


def _narrowed(meta: Any, fields: list[str]) -> Any:
    """Of the same rows, with these fields alone and without the mark. (`BatchMeta.select_fields` copies every row's
    description, which lasts as long as fetching a column.)"""
    extra_info = {name: value for name, value in meta.extra_info.items() if name != PASS}
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
