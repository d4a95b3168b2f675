"""Every preset of `configs/algorithm` composes over verl's own configuration and means what its name says."""

import dataclasses
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from gtpo_verl.algorithms import ESTIMATORS, ForkingConfig, GtpoConfig, gtpo_section, unfitting_pair, unused_keys

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
    "grpo": ("grpo", "vanilla", "seq-mean-token-mean", {}),
    "dr_grpo": ("grpo", "vanilla", "seq-mean-token-sum-norm", {}),
    "gspo": ("grpo", "gspo", "seq-mean-token-mean", {}),
    "cispo": ("grpo", "cispo", "token-mean", {}),
    "gmpo": ("grpo", "geo_mean", "token-mean", {}),
    "clip_cov": ("grpo", "clip_cov", "token-mean", {}),
    "kl_cov": ("grpo", "kl_cov", "token-mean", {}),
    "dapo_forking_tokens": ("grpo", "vanilla", "token-mean", {}),
}

# Of others' methods: what the preset sets beside the loss, and nothing of what all runs share.
ACTOR = "actor_rollout_ref.actor"
OTHERS = {
    "dapo": {f"{ACTOR}.clip_ratio_c": 10.0},
    "grpo": {
        f"{ACTOR}.clip_ratio_high": 0.2,
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_coef": 0.04,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
    },
    "dr_grpo": {
        "algorithm.norm_adv_by_std_in_grpo": False,
        f"{ACTOR}.loss_scale_factor": 112,  # data.max_response_length
        f"{ACTOR}.clip_ratio_high": 0.2,
    },
    "gspo": {f"{ACTOR}.clip_ratio_low": 3e-4, f"{ACTOR}.clip_ratio_high": 4e-4},
    "cispo": {f"{ACTOR}.clip_ratio_low": 10.0, f"{ACTOR}.clip_ratio_high": 0.2},
    "gmpo": {
        f"{ACTOR}.clip_ratio_low": 0.4,
        f"{ACTOR}.clip_ratio_high": 0.4,
        f"{ACTOR}.use_dynamic_bsz": False,
    },
    "clip_cov": {
        f"{ACTOR}.policy_loss.clip_cov_ratio": 2e-4,
        f"{ACTOR}.policy_loss.clip_cov_lb": 1.0,
        f"{ACTOR}.policy_loss.clip_cov_ub": 5.0,
        f"{ACTOR}.clip_ratio_low": 1.0,
        f"{ACTOR}.clip_ratio_high": 1.0,
        f"{ACTOR}.use_dynamic_bsz": False,
    },
    "kl_cov": {
        f"{ACTOR}.policy_loss.kl_cov_ratio": 2e-4,
        f"{ACTOR}.policy_loss.ppo_kl_coef": 1.0,
        f"{ACTOR}.use_dynamic_bsz": False,
    },
    "dapo_forking_tokens": {f"{ACTOR}.clip_ratio_c": 10.0, "algorithm.forking.share": 0.2},
}


@pytest.fixture(scope="module", autouse=True)
def _hydra():
    with initialize_config_module("gtpo_verl.configs", version_base=None):
        yield


@cache
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


@pytest.mark.parametrize("preset", OTHERS)
def test_others_settings(preset):
    config = composed(preset)
    assert {key: OmegaConf.select(config, key) for key in OTHERS[preset]} == OTHERS[preset]


@pytest.mark.parametrize("preset", OTHERS)
def test_others_differ_from_the_base_by_those_settings_alone(preset):
    """What is sampled, rewarded and how the optimizer steps is every method's."""
    base, other = (flat(OmegaConf.to_container(composed(name), resolve=True)) for name in ("gtpo_v1", preset))
    different = {key for key in base.keys() | other.keys() if base.get(key, "absent") != other.get(key, "absent")}
    shared = {"algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.loss_agg_mode"}
    followers = {key for key in different if key.startswith("critic.") or key.endswith("log_prob_use_dynamic_bsz")}
    named = {key for key in different if "experiment_name" in key or preset in str(other[key])}
    assert different <= shared | set(OTHERS[preset]) | followers | named


def flat(node, prefix=""):
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in flat(child, f"{prefix}{name}.").items()}


@pytest.mark.parametrize(("choice", "level"), [("token_tis", "token"), ("sequence_tis", "sequence")])
def test_rollout_correction(choice, level):
    config = compose("train", ["algorithm=gtpo_v2", f"rollout_correction={choice}"])
    correction = config.algorithm.rollout_correction
    assert (correction.rollout_is, correction.rollout_is_threshold) == (level, 2.0)
    assert not correction.bypass_mode
    assert correction.rollout_rs is None
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    assert composed("gtpo_v2").algorithm.rollout_correction.rollout_is is None  # nor without the choice


def test_grop_takes_one_key_more():
    options = ["algorithm.gtpo.length_penalty.enable=true", "algorithm.gtpo.length_penalty.kind=grop"]
    config = compose("train", ["algorithm=gtpo_v2", "model=dapo_math", *options])
    penalty = GtpoConfig.from_any(gtpo_section(config.algorithm)).length_penalty
    assert (penalty.enable, penalty.kind) == (True, "grop")
    assert unused_keys("gtpo_v2", GtpoConfig.from_any(gtpo_section(config.algorithm))) == []


def test_defaults_equal_the_dataclasses():
    defaults = OmegaConf.to_container(OmegaConf.load(CONFIGS / "gtpo.yaml"))["algorithm"]
    assert defaults == {"gtpo": dataclasses.asdict(GtpoConfig()), "forking": dataclasses.asdict(ForkingConfig())}
