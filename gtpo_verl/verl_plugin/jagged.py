"""Rows of jagged batches in a few vector operations, where verl 0.9.1 handles them one by one.

A jagged tensor is a batch of rows of unlike lengths, stored one after another: `values` (tokens, ...) and `offsets`
(rows + 1,). verl cuts and reorders such batches in Python loops, a slice or more a row and, on a GPU, a wait for the
device a row: tenths of a second at every pass over a thousand responses. Each function here gives what verl's function
of the same name gives (a test compares them), and `install_in_workers` and `install_in_trainer` put it in its place.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from tensordict import TensorDict


def install_in_workers() -> None:
    """For processes that run the engine. Safe to call twice."""
    from verl.utils import tensordict_utils
    from verl.workers.engine import utils as engine_utils
    from verl.workers.utils import losses

    # Each in the module that calls it: verl imports them by name.
    _replace(tensordict_utils, index_select_tensor_dict)  # mini-batches and micro-batches
    _replace(engine_utils, restore_dynamic_batch)
    _replace(losses, no_padding_2_padding)


def install_in_trainer() -> None:
    """For the process that runs the trainer. Safe to call twice."""
    from verl.trainer.ppo.v1 import trainer_base

    _replace(trainer_base, response_from_nested)
    _replace(trainer_base, response_to_nested)
    _replace(trainer_base, get_seqlen_balanced_partitions)


def _replace(module: ModuleType, function: Any) -> None:
    current = getattr(module, function.__name__)
    if current is not function:
        function.verls = current
        setattr(module, function.__name__, function)


def select_rows(jagged: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a jagged tensor, in the order given.

    Args:
        jagged: (batch, *) or (batch, *, features), ragged in its second dimension.
        rows: (n,) int64 on the CPU or the tensor's device.

    Returns:
        (n, *), with the same further dimensions.
    """
    offsets = _offsets(jagged)
    rows = rows.to(offsets.device)
    lengths = offsets.diff()[rows]
    return _spans(jagged.values(), offsets[rows], _offsets_of(lengths))


def longest(jagged: torch.Tensor) -> int:
    """Length of the longest row: the one that the tensor knows, for which no device is waited, or a look at it."""
    return int(jagged._get_max_seqlen())  # type: ignore[attr-defined]  # no public name has it


def with_lengths(jagged: torch.Tensor) -> torch.Tensor:
    """The same rows, by a tensor that knows its shortest and longest one, as those from TransferQueue do."""
    return _jagged(jagged.values(), _offsets(jagged))


def of_lengths(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The jagged tensor of these values (tokens,), whose rows have these lengths, (rows,) int64."""
    return _jagged(values, _offsets_of(lengths))


def one_after_other(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Each row of `first` with the same row of `second` after it; both jagged (rows, *) of one type."""
    lengths, more = _offsets(first).diff(), _offsets(second).diff()
    offsets = _offsets_of(lengths + more)
    values = first.values().new_empty(int(offsets[-1]))
    for part, starts, of_each in ((first, offsets[:-1], lengths), (second, offsets[:-1] + lengths, more)):
        shift = (starts - _offsets(part)[:-1]).repeat_interleave(of_each)
        values[shift + torch.arange(len(shift), device=shift.device)] = part.values()
    return _jagged(values, offsets)


def positions(jagged: torch.Tensor) -> torch.Tensor:
    """0, 1, 2 and so on in each row; jagged (rows, *) int64."""
    offsets = _offsets(jagged)
    starts = offsets[:-1].repeat_interleave(offsets.diff())
    return _jagged(torch.arange(len(starts), device=starts.device) - starts, offsets)


def index_select_tensor_dict(batch: TensorDict | None, indices: torch.Tensor | list) -> TensorDict | None:
    """verl/utils/tensordict_utils.py: rows of every field of a batch.

    Args:
        indices: (n,) numbers of rows.
    """
    stock = index_select_tensor_dict.verls  # type: ignore[attr-defined]
    if batch is None:
        return stock(batch, indices)
    rows = torch.tensor(indices) if isinstance(indices, list) else indices
    jagged = [key for key, value in batch.items() if is_jagged(value)]
    selected = stock(batch.exclude(*jagged), rows)
    for key in jagged:
        selected[key] = select_rows(batch[key], rows)
    return selected


def restore_dynamic_batch(data: torch.Tensor, batch_idx_list: Sequence[Sequence[int]]) -> torch.Tensor:
    """verl/utils/seqlen_balancing.py: the rows of all micro-batches, in the order of the batch they came from.

    Args:
        data: (batch, *), micro-batch after micro-batch.
        batch_idx_list: of each micro-batch, the numbers that its rows had in the batch.
    """
    if not is_jagged(data):
        return restore_dynamic_batch.verls(data, batch_idx_list)  # type: ignore[attr-defined]
    return select_rows(data, torch.tensor([row for rows in batch_idx_list for row in rows]).argsort())


def no_padding_2_padding(tensor: torch.Tensor, data: TensorDict) -> torch.Tensor:
    """verl/workers/utils/padding.py: what the model gave for the tokens of the responses, padded with zeros.

    Args:
        tensor: jagged (batch, *) over prompts and responses, or its values (tokens,); the value at a token belongs to
            the token after it. Gradients pass.
        data: `prompts` and `responses`, jagged.

    Returns:
        (batch, longest response).
    """
    values = tensor.values() if tensor.is_nested else tensor
    if values.ndim != 1 or not is_jagged(data["prompts"]):
        return no_padding_2_padding.verls(tensor, data)  # type: ignore[attr-defined]
    from verl.utils import tensordict_utils as tu

    lengths = data["responses"].offsets().diff()
    prompts = data["prompts"].offsets().diff()
    width = tu.get_non_tensor_data(data=data, key="max_response_len", default=-1)
    # One look at the device for all three; each look waits for it.
    longest, tokens, shortest = torch.stack([lengths.max(), (lengths + prompts).sum(), prompts.min()]).tolist()
    assert tokens == values.shape[0], f"{tokens} tokens in the batch, {values.shape[0]} values"
    assert shortest > 0, "a response without a prompt has no first log-probability"
    ends = (lengths + prompts).cumsum(0)
    position = torch.arange(longest if width < 0 else width, device=values.device)
    inside = position < lengths.unsqueeze(1)
    index = (ends - lengths - 1).unsqueeze(1) + position
    return torch.where(inside, values[index.clamp(max=tokens - 1)], 0)


def response_from_nested(tensor: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """verl/workers/utils/padding.py: what the model gave for the tokens of the responses.

    Args:
        tensor: jagged (batch, *) over prompts and responses, as in `no_padding_2_padding`.
        response_mask: jagged (batch, *) over responses.

    Returns:
        Jagged, of the mask's lengths.
    """
    offsets = _offsets(response_mask)
    return _spans(tensor.values(), _offsets(tensor)[1:] - offsets.diff() - 1, offsets)


def response_to_nested(tensor: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """verl/workers/utils/padding.py: a padded (batch, width) tensor of responses as a jagged one.

    Args:
        response_mask: jagged (batch, *) over responses.
    """
    assert response_mask.is_nested
    offsets = _offsets(response_mask)
    inside = torch.arange(tensor.shape[1], device=tensor.device) < offsets.diff().unsqueeze(1)
    return _jagged(tensor[inside], offsets)


def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """verl/utils/seqlen_balancing.py: numbers of the rows of each part. The trainer gives it a tensor, of which every
    comparison would make new ones.

    Args:
        seqlen_list: (rows,) int64, or a list.
    """
    numbers = seqlen_list.tolist() if isinstance(seqlen_list, torch.Tensor) else seqlen_list
    return get_seqlen_balanced_partitions.verls(numbers, k_partitions, equal_size)  # type: ignore[attr-defined]


def is_jagged(value: Any) -> bool:
    """Whether it is a tensor ragged in its second dimension; verl's position ids of vision models are not."""
    return isinstance(value, torch.Tensor) and value.layout == torch.jagged and getattr(value, "_ragged_idx", 1) == 1


def _offsets(jagged: torch.Tensor) -> torch.Tensor:
    return jagged.offsets()  # type: ignore[attr-defined]  # a method of the layout, not of the class


def _offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _spans(values: torch.Tensor, starts: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The jagged tensor of these offsets whose row i is what stands in `values` from `starts[i]` on."""
    lengths = offsets.diff()
    within = torch.arange(int(offsets[-1]), device=values.device) - offsets[:-1].repeat_interleave(lengths)
    return _jagged(values[within + starts.repeat_interleave(lengths)], offsets)


def _jagged(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """With its shortest and longest row, as verl's have them: without, torch 2.11 pads a row to the length of all."""
    shortest, longest = torch.stack(offsets.diff().aminmax()).tolist()
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=shortest, max_seqlen=longest)
