"""Refusals that must not depend on what the batch happens to hold."""

import pytest
import torch

from gtpo_verl.algorithms import LOSSES, GtpoConfig, compute_advantages


@pytest.mark.parametrize("weight", [2.0, float("inf"), float("nan")])
@pytest.mark.parametrize("loss_mode", ["grpo_s", "grpo_s_geometric"])
def test_weights_that_vary_within_a_response(loss_mode, weight):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    assert loss_mode in LOSSES
    log_prob = torch.full((1, 2), -1.0)
    with pytest.raises(ValueError, match="rollout_is_weights"):
        get_policy_loss_fn(loss_mode)(
            log_prob,
            log_prob,
            torch.ones(1, 2),
            torch.ones(1, 2),
            config={"clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
            rollout_is_weights=torch.tensor([[1.0, weight]]),
        )


@pytest.mark.parametrize("tokens", [0, 2])
def test_a_length_penalty_without_a_length(tokens):
    with pytest.raises(ValueError, match=r"length_penalty\.max_length"):
        compute_advantages(
            "gtpo_v1",
            entropy=torch.ones(2 * tokens),
            offsets=torch.tensor([0, tokens, 2 * tokens]),
            group=torch.zeros(2, dtype=torch.int64),
            success=torch.tensor([True, False]),
            config=GtpoConfig.from_any({"length_penalty": {"enable": True, "buffer": 1}}),
        )
