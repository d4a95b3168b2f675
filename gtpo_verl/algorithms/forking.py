"""Forking tokens (arXiv 2506.01939): only the tokens of the highest entropy are learnt from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gtpo_verl.algorithms.config import BATCH, RESPONSE
from gtpo_verl.algorithms.reading import check_types, read, require, require_one_of, section

ROOT = "algorithm.forking"


@dataclass(frozen=True)
class ForkingConfig:
    """Everything under `algorithm.forking`; beside any estimator, whose advantages become 0 at all other tokens.

    Raises:
        ValueError: on construction, for a value out of its range or of the wrong type, by the key's full name.
    """

    share: float = 1.0
    """The share of tokens, those of the highest entropy, that keep their advantage: above 0, at most 1. The paper's is
    0.2; 1 is all of them."""
    scope: str = BATCH
    """What the share is taken of: the tokens of the whole step (`batch`), or of each response (`response`)."""

    def __post_init__(self) -> None:
        check_types(self, ROOT)
        require(0 < self.share <= 1, f"{ROOT}.share", self.share, "above 0 and at most 1")
        require_one_of(self.scope, f"{ROOT}.scope", BATCH, RESPONSE)

    @classmethod
    def from_algorithm(cls, algorithm: Any) -> ForkingConfig:
        """Reads the `forking` part of verl's `algorithm` configuration; the defaults where it has none.

        Raises:
            ValueError: for an unknown key, or a value out of its range or of the wrong type, by the key's full name.
        """
        part = section(algorithm, "forking")
        return read(cls, {} if part is None else part, ROOT)


@torch.no_grad()
def forking_tokens(entropy: Tensor, offsets: Tensor, config: ForkingConfig) -> Tensor:
    """Which tokens have the highest entropies: their share, rounded up, of the batch or of each response.

    Of equal entropies the first come first, so that no more are taken however many are 0.

    Args:
        entropy: (tokens,) of any float dtype, nats, of the old policy, response after response, without padding.
        offsets: (responses + 1,) integers from 0 to `tokens`: where each response begins and the last one ends.
    Returns:
        (tokens,) bool.

    Raises:
        ValueError: for an entropy that is NaN or infinite.
    """
    if not torch.isfinite(entropy).all():
        raise ValueError("entropy must be finite, but holds NaN or infinity")
    pools = [entropy] if config.scope == BATCH else entropy.split(offsets.diff().tolist())
    return torch.cat([_highest(pool, config.share) for pool in pools] or [entropy.bool()])


def _highest(values: Tensor, share: float) -> Tensor:
    # A share such as 0.07 of 100 is a little above 7 in floating point, and not meant to be 8.
    count = math.ceil(share * len(values) * (1 - 1e-12))
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = values.kthvalue(len(values) - count + 1).values
    taken = values > threshold
    taken[(values == threshold).nonzero().squeeze(1)[: count - int(taken.sum())]] = True
    return taken
