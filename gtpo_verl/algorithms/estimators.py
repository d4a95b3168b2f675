"""The six estimators: what a right and what a wrong item is worth.

An item is a token for `gtpo_*` and a response for `grpo_s_*`. Right items are weighted by `ratio(H)`, wrong ones by
`ratio(1 / H)`, and each function below turns those ratios, (n,) float64, into rewards. So an estimator is two lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gtpo_verl.algorithms.config import ALL, JOINT, ClipConfig, GtpoConfig

Reward = Callable[[Tensor, GtpoConfig], Tensor]
TOKEN, SEQUENCE = "token", "sequence"


@dataclass(frozen=True)
class Estimator:
    """An estimator of the paper.

    Attributes:
        level: whether its items are tokens (GTPO) or whole responses (GRPO-S).
        right: reward of right items, from `ratio(H)`.
        wrong: reward of wrong items, from `ratio(1 / H)`.
        over: what a null `normalize.over` stands for. None: with but one reward there is nothing to choose.
        clip: what a null `clip.enable` stands for. None: eq. 11 is not for this estimator.
    """

    level: str
    right: Reward
    wrong: Reward
    over: str | None = None
    clip: bool | None = None

    def resolve(self, config: GtpoConfig) -> GtpoConfig:
        """`config` as it holds for this estimator: nulls filled in, and what it does not use switched off.

        Raises:
            ValueError: for a range that is only checked now that its part is known to be on, by the key's full name.
        """
        clip = self.clip if config.clip.enable is None else config.clip.enable
        penalty = config.length_penalty.enable
        over = config.normalize.over or self.over
        return replace(
            config,
            clip=replace(config.clip, enable=bool(clip) and self.clip is not None),
            length_penalty=replace(config.length_penalty, enable=penalty and self.level == TOKEN),
            normalize=replace(config.normalize, over=over if self.over is not None else JOINT),
        )


def gtpo_right(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Eq. 2, or eq. 11 with `clip`."""
    if config.clip.enable:
        return clipped(ratio, config.clip)
    return 1 + config.alpha * ratio


def clipped(ratio: Tensor, clip: ClipConfig) -> Tensor:
    """Eq. 11."""
    return (clip.alpha1 + clip.alpha2 * ratio).clamp(1, clip.upper)


def grpo_s_right(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Eq. 5."""
    return 1 + config.beta * ratio


def nothing(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Wrong items in the first versions (sections 3.3.1 and 3.4.1)."""
    return torch.zeros_like(ratio)


def inverse(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Eqs. 13 and 17."""
    return -ratio


def gtpo_v3_right(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Later versions of the paper, known here from restatements alone."""
    return config.alpha1 + config.alpha2 * ratio


def gtpo_v3_wrong(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Later versions of the paper, known here from restatements alone."""
    return -gtpo_v3_right(ratio, config)


def grpo_s_v3_right(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Later versions of the paper, known here from restatements alone."""
    return config.beta1 + config.beta2 * ratio


def grpo_s_v3_wrong(ratio: Tensor, config: GtpoConfig) -> Tensor:
    """Later versions of the paper, known here from restatements alone."""
    return -grpo_s_v3_right(ratio, config)


ESTIMATORS: dict[str, Estimator] = {
    "gtpo_v1": Estimator(TOKEN, gtpo_right, nothing, clip=False),
    "gtpo_v2": Estimator(TOKEN, gtpo_right, inverse, over=ALL, clip=True),
    "gtpo_v3": Estimator(TOKEN, gtpo_v3_right, gtpo_v3_wrong, over=JOINT),
    "grpo_s_v1": Estimator(SEQUENCE, grpo_s_right, nothing),
    "grpo_s_v2": Estimator(SEQUENCE, grpo_s_right, inverse, over=ALL),
    "grpo_s_v3": Estimator(SEQUENCE, grpo_s_v3_right, grpo_s_v3_wrong, over=JOINT),
}


def lookup(estimator: str) -> Estimator:
    """The estimator of that name; raises ValueError with the names there are."""
    if estimator not in ESTIMATORS:
        raise ValueError(f"algorithm.adv_estimator must be one of {', '.join(ESTIMATORS)}, not {estimator!r}")
    return ESTIMATORS[estimator]
