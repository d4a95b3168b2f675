"""Every preset of `configs/algorithm` composes over verl's own configuration and means what its name says."""

import dataclasses
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig, gtpo_section, unfitting_pair, unused_keys

CONFIGS = Path(__file__).parents[2] / "configs"

PRESETS = {
    "dapo": ("grpo", "vanilla", "token-mean", {}),
    "gtpo_v1": ("gtpo_v1", "gtpo", "token-mean", {}),
    "gtpo_v1_clip": (
        "gtpo_v1",
        "gtpo",
        "token-mean",
        {"clip": {"enable": True}, "length_penalty": {"enable": True, "buffer": 32}},
    ),
    "gtpo_v1_relative_response": ("gtpo_v1", "gtpo", "token-mean", {"relative_to": "response"}),
    "gtpo_v1_relative_group": ("gtpo_v1", "gtpo", "token-mean", {"relative_to": "group"}),
    "gtpo_v2": ("gtpo_v2", "gtpo", "token-mean", {}),
    "gtpo_v3": ("gtpo_v3", "gtpo", "token-mean", {}),
    "grpo_s_v1": ("grpo_s_v1", "grpo_s", "seq-mean-token-mean", {}),
    "grpo_s_v2": ("grpo_s_v2", "grpo_s", "seq-mean-token-mean", {}),
    "grpo_s_v3": ("grpo_s_v3", "grpo_s", "seq-mean-token-mean", {}),
}


@pytest.fixture(scope="module", autouse=True)
def _hydra():
    with initialize_config_module("gtpo_verl.configs", version_base=None):
        yield


def composed(preset):
    return compose("train", [f"algorithm={preset}"])


def test_every_preset_is_known_here():
    assert {path.stem for path in (CONFIGS / "algorithm").glob("*.yaml")} == set(PRESETS)


def test_every_estimator_has_a_preset():
    assert set(ESTIMATORS) <= set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset(preset):
    estimator, loss, aggregation, options = PRESETS[preset]
    config = composed(preset)
    actor = config.actor_rollout_ref.actor
    assert config.algorithm.adv_estimator == estimator
    assert (actor.policy_loss.loss_mode, actor.loss_agg_mode) == (loss, aggregation)
    assert unfitting_pair(estimator, loss) is None
    gtpo = GtpoConfig.from_any(gtpo_section(config.algorithm))
    assert gtpo == GtpoConfig.from_any(options)
    if estimator in ESTIMATORS:
        assert unused_keys(estimator, gtpo) == []
    assert config.trainer.experiment_name == preset


def test_dapo_is_verls_own():
    assert composed("dapo").actor_rollout_ref.actor.clip_ratio_c == 10.0


def test_defaults_equal_the_dataclass():
    defaults = OmegaConf.to_container(OmegaConf.load(CONFIGS / "gtpo.yaml"))["algorithm"]["gtpo"]
    assert defaults == dataclasses.asdict(GtpoConfig())
