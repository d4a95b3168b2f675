"""Registers the three policy losses with verl."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gtpo_verl.algorithms import LOSSES, GlobalBatch


def register_losses() -> None:
    """Adds the losses to verl's registry; calling it again changes nothing."""
    from verl.trainer.ppo.core_algos import register_policy_loss

    for name in LOSSES:
        register_policy_loss(name)(_policy_loss(name))


@cache
def _policy_loss(name: str) -> Any:
    def policy_loss(
        old_log_prob: Any,
        log_prob: Any,
        advantages: Any,
        response_mask: Any,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Any = None,
    ) -> tuple[Any, dict[str, float]]:
        """The loss in verl's terms: see `gtpo_verl.algorithms.losses`.

        Args:
            loss_agg_mode: not used, the method fixes over what its loss is a mean.
            config: the actor's configuration; `clip_ratio_low`, `clip_ratio_high` and `global_batch_info` are read.
        """
        low, high = _clip_range(config)
        info = _get(config, "global_batch_info") or {}
        return LOSSES[name](
            log_prob=log_prob,
            old_log_prob=old_log_prob,
            advantages=advantages,
            response_mask=response_mask,
            clip_low=low,
            clip_high=high,
            rollout_is_weights=rollout_is_weights,
            global_batch=GlobalBatch(
                dp_size=info.get("dp_size") or 1,
                batch_num_tokens=info.get("batch_num_tokens"),
                global_batch_size=info.get("global_batch_size"),
            ),
        )

    policy_loss.__name__ = policy_loss.__qualname__ = name
    return policy_loss


def _clip_range(config: Any) -> tuple[float, float]:
    """`clip_ratio_low` and `clip_ratio_high`, or `clip_ratio` where they are null, as verl reads them."""
    either = _get(config, "clip_ratio")
    low, high = (_get(config, f"clip_ratio_{side}") for side in ("low", "high"))
    low, high = either if low is None else low, either if high is None else high
    if low is None or high is None:
        raise ValueError("the actor's configuration must give clip_ratio_low and clip_ratio_high, or clip_ratio")
    return low, high


def _get(config: Any, key: str) -> Any:
    """A key of a dict, a DictConfig or verl's dataclasses, None where it is absent."""
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
