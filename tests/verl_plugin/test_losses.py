"""The losses through verl's registry."""

import json
from pathlib import Path

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from gtpo_verl.verl_plugin.losses import register_losses

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())["losses"]
NAMES = ("gtpo", "grpo_s", "grpo_s_geometric")


@pytest.fixture(autouse=True)
def _registered():
    register_losses()


def actor_config(**kwargs):
    return ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **kwargs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", GOLDEN)
def test_golden_losses(case, name):
    config = actor_config(clip_ratio_low=case["clip_ratio_low"], clip_ratio_high=case["clip_ratio_high"])
    advantages = case["token_advantages"] if name == "gtpo" else case["sequence_advantages"]
    loss, _ = get_policy_loss_fn(name)(
        old_log_prob=torch.tensor(case["old_log_prob"]),
        log_prob=torch.tensor(case["log_prob"]),
        advantages=torch.tensor(advantages),
        response_mask=torch.tensor(case["mask"]),
        loss_agg_mode="token-mean",
        config=config,
    )
    assert loss.item() == pytest.approx(case[name], abs=1e-5)
