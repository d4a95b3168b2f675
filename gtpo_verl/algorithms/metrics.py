"""What a step's advantages look like: the `gtpo/*` metrics, gathered block by block."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from gtpo_verl.algorithms.blocks import Block
from gtpo_verl.algorithms.config import JOINT, GtpoConfig, NormalizeConfig
from gtpo_verl.algorithms.normalization import basis, moments_of_sides, standardize
from gtpo_verl.algorithms.shaping import Shaped, length_penalty

# Of more tokens than this, percentiles are those of an even sample: to sort them all would be slower than all the rest.
PERCENTILE_TOKENS = 2**17
PERCENTILES = (10, 50, 90)


class Tally:
    """Adds up a step's counts and sums, block after block.

    Fractions and means are of tokens unless said otherwise, and 0 where there is nothing to count.
    """

    def __init__(self, config: GtpoConfig, tokens: int) -> None:
        """`config` is resolved for the estimator; `tokens` is their number in the step."""
        self._config = config
        self._stride = max(1, -(-tokens // PERCENTILE_TOKENS))
        self._sums: dict[str, Any] = defaultdict(float)
        self._samples: dict[str, list[Tensor]] = {"right": [], "wrong": []}

    def add(self, block: Block, entropy: Tensor, shaped: Shaped, unguarded: Tensor, advantages: Tensor) -> None:
        """Adds a block.

        Args:
            entropy: (n,) float64, nats, of the block's tokens.
            shaped: rewards of its items.
            unguarded: (n,) float64, advantages of its tokens before `sign_guard`.
            advantages: (n,) float64, those that are handed on.
        """
        right = block.right_tokens
        self._add_entropy(block, entropy)
        self._add_correlation(block, advantages)
        sums = self._sums
        sums["right_negative"] += ((unguarded < 0) & right).sum()
        sums["wrong_positive"] += ((unguarded > 0) & ~right).sum()
        sums["zero"] += (advantages == 0).sum()
        sums["groups"] += block.groups
        sums["uniform_groups"] += block.groups - block.mixed.sum()
        sums["responses"] += len(block.lengths)
        if self._config.length_penalty.enable:
            sums["length_penalty"] += length_penalty(block, self._config.length_penalty).sum()
        if self._config.clip.enable:
            clip = self._config.clip
            unclipped = clip.alpha1 + clip.alpha2 * shaped.ratio
            # An average token's 1 stands on the lower bound, give or take rounding; it is not cut off.
            sums["clip_low"] += ((unclipped < 1 - 1e-9) & right).sum()
            sums["clip_high"] += ((unclipped > clip.upper + 1e-9) & right).sum()

    def _add_entropy(self, block: Block, entropy: Tensor) -> None:
        nats = block.response.sum(entropy)
        at_floor = entropy <= self._config.entropy_floor
        sample, sampled_right = entropy[:: self._stride], block.right_tokens[:: self._stride]
        for side, responses, tokens, sampled in (
            ("right", block.right, block.right_tokens, sampled_right),
            ("wrong", ~block.right, ~block.right_tokens, ~sampled_right),
        ):
            self._sums[side] += block.lengths[responses].sum()
            self._sums[f"{side}_entropy"] += nats[responses].sum()
            self._sums[f"{side}_floor"] += (at_floor & tokens).sum()
            self._samples[side].append(sample[sampled])

    def _add_correlation(self, block: Block, advantages: Tensor) -> None:
        right = block.right.double()
        moments = basis(moments_of_sides(right, block.side), NormalizeConfig(over=JOINT))
        grpo = standardize(right, block.side, moments, self._config.epsilon, block.mixed)
        sums, length = self._sums, block.lengths.double()
        sums["a"] += advantages.sum()
        sums["aa"] += advantages @ advantages
        sums["g"] += grpo @ length
        sums["gg"] += grpo.square() @ length
        sums["ag"] += block.response.sum(advantages) @ grpo

    def metrics(self) -> dict[str, float]:
        """The `gtpo/*` metrics of all blocks added."""
        sums = defaultdict(float, {name: float(value) for name, value in self._sums.items()})
        tokens = sums["right"] + sums["wrong"]

        def fraction(part: str, whole: float) -> float:
            return sums[part] / whole if whole else 0.0

        metrics = {
            "right_tokens_negative_frac": fraction("right_negative", sums["right"]),
            "wrong_tokens_positive_frac": fraction("wrong_positive", sums["wrong"]),
            "corr_with_grpo": _correlation(tokens, sums["a"], sums["g"], sums["aa"], sums["gg"], sums["ag"]),
            "zero_advantage_frac": fraction("zero", tokens),
            "clip_low_frac": fraction("clip_low", sums["right"]),
            "clip_high_frac": fraction("clip_high", sums["right"]),
            "length_penalty_mean": fraction("length_penalty", sums["responses"]),
            "uniform_groups_frac": fraction("uniform_groups", sums["groups"]),
        }
        for side, samples in self._samples.items():
            metrics[f"entropy_{side}_mean"] = fraction(f"{side}_entropy", sums[side])
            metrics[f"entropy_{side}_floor_frac"] = fraction(f"{side}_floor", sums[side])
            for percentile, value in zip(PERCENTILES, _percentiles(samples), strict=True):
                metrics[f"entropy_{side}_p{percentile}"] = value
        return {f"gtpo/{name}": value for name, value in metrics.items()}


def _percentiles(samples: list[Tensor]) -> list[float]:
    values = torch.cat(samples) if samples else torch.empty(0)
    if not len(values):
        return [0.0] * len(PERCENTILES)
    return torch.quantile(values, torch.tensor(PERCENTILES, dtype=values.dtype, device=values.device) / 100).tolist()


def _correlation(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Pearson's, from sums over n pairs; 0 where one of the two does not vary."""
    variances = (n * xx - x * x) * (n * yy - y * y)
    return (n * xy - x * y) / variances**0.5 if variances > 1e-12 * (n * xx) * (n * yy) else 0.0
