"""verl's replay buffer as its synchronous trainer builds it."""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


def synchronous(**options: Any) -> ReplayBuffer:
    """With what the recipe sets of it in `options`."""
    return ReplayBuffer(
        **{
            "trainer_mode": "sync",
            "trainer_config": None,
            "max_off_policy_threshold": None,
            "max_off_policy_strategy": "drop",
            "sampler_kwargs": None,
            "refill_fn": lambda count: None,
            **options,
        }
    )
