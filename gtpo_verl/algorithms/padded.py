"""The same advantages for padded tensors: takes the tokens out, calls the flat core, puts the advantages back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gtpo_verl.algorithms.advantages import AdvantageResult, compute_advantages


def compute_padded_advantages(
    estimator: str, entropy: Tensor, response_mask: Tensor, index: Any, success: Tensor, config: Any = None
) -> AdvantageResult:
    """`compute_advantages` for tensors of shape (batch, response_length).

    Args:
        estimator: a name in `ESTIMATORS`.
        entropy: (batch, response_length) of any float dtype, nats. What stands where the mask is 0 is never read.
        response_mask: (batch, response_length) of any dtype, not 0 at a response's own tokens.
        index: (batch,) the uids of the prompts, of any type that sorts.
        success: (batch,) bool, whether a response is right.
        config: a `GtpoConfig`, or what `GtpoConfig.from_any` takes.
    Returns:
        advantages (batch, response_length) float32, 0 where the mask is 0, and metrics.

    Raises:
        ValueError: as `compute_advantages` does, and for shapes that do not fit, naming the argument.
    """
    if entropy.dim() != 2 or entropy.shape != response_mask.shape:
        raise ValueError(
            f"entropy {tuple(entropy.shape)} and response_mask {tuple(response_mask.shape)} must both be "
            "(batch, response_length)"
        )
    mask = response_mask.bool().to(entropy.device)
    _, group = np.unique(np.asarray(index), return_inverse=True)
    offsets = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    flat = compute_advantages(
        estimator,
        entropy.detach().masked_select(mask),
        offsets,
        torch.from_numpy(group.reshape(-1)),
        torch.as_tensor(success),
        config,
    )
    advantages = torch.zeros(entropy.shape, dtype=torch.float32, device=entropy.device)
    return AdvantageResult(advantages.masked_scatter_(mask, flat.advantages), flat.metrics)
