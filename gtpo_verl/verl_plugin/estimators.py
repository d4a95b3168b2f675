"""Registers the six advantage estimators with verl."""

from __future__ import annotations

from functools import cache
from typing import Any

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig, compute_padded_advantages, gtpo_section, refuse_kl_in_reward


def register_estimators() -> None:
    """Adds the estimators to verl's registry; calling it again changes nothing."""
    from verl.trainer.ppo.core_algos import register_adv_est

    for name in ESTIMATORS:
        register_adv_est(name)(_estimator(name))


@cache  # verl takes the same function twice, but refuses another one of the same name
def _estimator(name: str) -> Any:
    def estimate(
        token_level_rewards: Any = None,
        response_mask: Any = None,
        index: Any = None,
        config: Any = None,
        entropy: Any = None,
        success: Any = None,
        **_: Any,
    ) -> tuple[Any, Any]:
        """Entropy-weighted advantages in verl's terms; see `compute_padded_advantages`.

        Args:
            token_level_rewards: not used, they may hold penalties.
            response_mask: (batch, response_length) of any dtype.
            index: (batch,) uids.
            config: the `algorithm` configuration, or None.
            entropy: (batch, response_length), nats, of the old policy.
            success: (batch,) bool.
        Returns:
            advantages and returns: the same (batch, response_length) float32 tensor.
        """
        missing = [key for key, value in (("entropy", entropy), ("success", success)) if value is None]
        if missing:
            raise ValueError(
                f"algorithm.adv_estimator={name} was called without {' and '.join(missing)}, which the trainer did not "
                "hand over. gtpo_verl's synchronous trainer (trainer.use_v1=true, trainer.v1.trainer_mode=sync) does; "
                "verl's V0 trainer and its asynchronous modes do not"
            )
        refuse_kl_in_reward(config)
        gtpo = GtpoConfig.from_any(gtpo_section(config))
        advantages, _metrics = compute_padded_advantages(name, entropy, response_mask, index, success, gtpo)
        return advantages, advantages

    estimate.__name__ = estimate.__qualname__ = name
    return estimate
