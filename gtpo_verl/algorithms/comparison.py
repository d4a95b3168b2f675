"""What entropy is compared with: the three ways of section 5 for tokens, and the entropy of a whole response."""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_verl.algorithms.blocks import Block
from gtpo_verl.algorithms.config import GROUP, RESPONSE
from gtpo_verl.algorithms.sets import Scattered, Sets


def token_peers(block: Block, relative_to: str) -> Sets:
    """The sets that tokens are compared within, for `relative_to` = `position`, `response` or `group`.

    By position they are the tokens at the same t across S+ (or S-) of a group: their number is the d_t (or h_t) of
    eqs. 2 and 13, which counts the responses of that side that are still running.
    """
    if relative_to == RESPONSE:
        return block.response
    if relative_to == GROUP:
        return block.side_of_token
    longest = block.lengths.new_zeros(block.side.count).scatter_reduce_(0, block.side.of, block.lengths, "amax")
    end = longest.cumsum(0)
    return Scattered(block.count_from(block.side.spread(end - longest)), int(end[-1]))


def sequence_entropy(entropy: Tensor, responses: Sets, kind: str, floor: float) -> Tensor:
    """A response's entropy, the H-hat of eq. 5: the `arithmetic` mean of its tokens', or the `geometric` one.

    Args:
        entropy: (n,) float64, nats, not negative.
        responses: the responses of the n tokens.
        kind: `arithmetic` or `geometric`.
        floor: the least entropy that the logarithm of the geometric mean sees.
    Returns:
        (responses,) float64.
    """
    if kind == "geometric":
        return torch.exp(responses.mean(entropy.clamp(min=floor).log()))
    return responses.mean(entropy)
