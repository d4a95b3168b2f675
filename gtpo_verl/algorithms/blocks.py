"""Cuts a flat batch into blocks of whole groups, so that temporaries stay small beside the batch itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gtpo_verl.algorithms.sets import Runs, Scattered, Unions

# At this many tokens the temporaries of a block are a dozen tensors of 2 MiB: small beside a batch that needs cutting,
# yet large enough for the overhead of a block to vanish.
TOKENS_PER_BLOCK = 2**18


@dataclass(frozen=True)
class Block:
    """Some whole groups of a batch; responses without tokens are left out.

    Attributes:
        responses: (r,) int64, the block's responses, group after group, as indices into the batch.
        starts: (r,) int64, where each one's tokens start in the batch's flat tensors.
        lengths: (r,) int64, tokens of each.
        group: (r,) int64, counted from 0 within the block.
        right: (r,) bool.
    """

    responses: Tensor
    starts: Tensor
    lengths: Tensor
    group: Tensor
    right: Tensor

    @cached_property
    def groups(self) -> int:
        return int(self.group[-1]) + 1

    @cached_property
    def response(self) -> Runs:
        """The tokens of each response, (n,) in all."""
        return Runs(self.lengths)

    @cached_property
    def side(self) -> Scattered:
        """The responses in S- and in S+ of each group: 2 * group + right."""
        return Scattered(2 * self.group + self.right, 2 * self.groups)

    @cached_property
    def side_of_token(self) -> Unions:
        """The tokens of S- and of S+ of each group."""
        return Unions(self.response, self.side)

    @cached_property
    def tokens(self) -> Tensor:
        """(n,) int64: where each of the block's tokens stands in the batch's flat tensors."""
        return self.count_from(self.starts)

    @cached_property
    def right_tokens(self) -> Tensor:
        """(n,) bool: the tokens of right responses."""
        return self.response.spread(self.right)

    @cached_property
    def mixed(self) -> Tensor:
        """(groups,) bool: groups that hold right responses and wrong ones; the others are uniform."""
        return (self.side.size.view(-1, 2) > 0).all(1)

    def count_from(self, first: Tensor) -> Tensor:
        """(r,) -> (n,): consecutive numbers over each response's tokens, from the one given for its first."""
        before = self.lengths.cumsum(0) - self.lengths
        counted = self.response.spread(first - before)
        return counted.add_(torch.arange(len(counted), device=counted.device))


def blocks(offsets: Tensor, group: Tensor, right: Tensor) -> Iterator[Block]:
    """Cuts a batch at the borders of groups, whose rows may stand in any order, into blocks of about the same size.

    Args:
        offsets: (responses + 1,) int64, where each response's tokens begin and the last one's end.
        group: (responses,) int64, equal for responses to the same prompt.
        right: (responses,) bool.
    """
    lengths = offsets.diff()
    order = group.argsort(stable=True)
    order = order[lengths[order] > 0]
    if len(order) == 0:
        return
    _, group, _ = group[order].unique_consecutive(return_inverse=True, return_counts=True)
    tokens_before = lengths[order].cumsum(0) - lengths[order]
    first_of_group = torch.cat([group.new_ones(1), group.diff()]).bool()
    block = tokens_before[first_of_group][group] // TOKENS_PER_BLOCK
    _, sizes = block.unique_consecutive(return_counts=True)
    for responses, numbers in zip(order.split(sizes.tolist()), group.split(sizes.tolist()), strict=True):
        yield Block(responses, offsets[responses], lengths[responses], numbers - numbers[0], right[responses])
