"""The 32B runs: DAPO's published settings for every algorithm, and nothing between two of them but the algorithm."""

from functools import cache
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from gtpo_verl.configuration.composition import compose_config

ALGORITHMS = ["dapo", "gtpo_v1", "gtpo_v2", "gtpo_v3", "grpo_s_v1", "grpo_s_v2", "grpo_s_v3"]
SCALES = ["32b_16x8", "32b_8x8", "7b_1x8"]

# The algorithm, and names made from its name.
OWN_KEYS = {
    "algorithm.adv_estimator",
    "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.clip_ratio_c",
    "trainer.experiment_name",
    "critic.loss_agg_mode",  # verl: the actor's; there is no critic
    "actor_rollout_ref.rollout.trace.experiment_name",
    "gtpo_verl.run_dir",
    "gtpo_verl.token_dump_dir",
    "trainer.default_local_dir",
}

# arXiv 2503.14476, section 4.1, and DAPO's verl recipe.
PUBLISHED = {
    "data.max_prompt_length": 2048,
    "data.max_response_length": 20480,
    "data.train_batch_size": 512,
    "actor_rollout_ref.rollout.n": 16,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 10,
    "actor_rollout_ref.actor.optim.weight_decay": 0.1,
    "actor_rollout_ref.actor.clip_ratio_low": 0.2,
    "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "algorithm.use_kl_in_reward": False,
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 1.0,
    "actor_rollout_ref.rollout.val_kwargs.top_p": 0.7,
    "actor_rollout_ref.rollout.val_kwargs.n": 32,
    "reward.reward_kwargs.max_resp_len": 20480,
    "reward.reward_kwargs.overlong_buffer_cfg": {"enable": True, "len": 4096, "penalty_factor": 1.0, "log": False},
}


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in flat(child, f"{prefix}{name}.").items()}


@cache
def composed(algorithm: str, scale: str) -> DictConfig:
    return compose_config([f"algorithm={algorithm}", "model=dapo_math", f"scale={scale}"])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("algorithm", ["dapo", "gtpo_v1", "grpo_s_v2"])
def test_published_settings(algorithm: str, scale: str) -> None:
    config = composed(algorithm, scale)
    assert {key: OmegaConf.select(config, key) for key in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_token_mean_but_for_the_methods_that_weigh_responses(algorithm: str) -> None:
    expected = "seq-mean-token-mean" if algorithm.startswith("grpo_s") else "token-mean"
    assert composed(algorithm, "32b_16x8").actor_rollout_ref.actor.loss_agg_mode == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
def test_only_the_algorithm_differs(algorithm: str) -> None:
    dapo = flat(OmegaConf.to_container(composed("dapo", "32b_16x8")))
    other = flat(OmegaConf.to_container(composed(algorithm, "32b_16x8")))
    different = {key for key in dapo.keys() | other.keys() if dapo.get(key, "absent") != other.get(key, "absent")}
    assert different <= OWN_KEYS
    assert {"algorithm.adv_estimator", "trainer.experiment_name"} <= different


def test_both_penalties_on_length_come_from_the_same_two_settings() -> None:
    overrides = ["model=dapo_math", "scale=32b_16x8", "data.max_response_length=1000"]
    config = compose_config([*overrides, "reward.reward_kwargs.overlong_buffer_cfg.len=100"])
    assert config.reward.reward_kwargs.max_resp_len == 1000
    # null: the trainer takes data.max_response_length
    assert config.algorithm.gtpo.length_penalty.max_length is None
    assert config.algorithm.gtpo.length_penalty.buffer == 100
    assert config.algorithm.gtpo.length_penalty.enable
