"""The estimators through verl's registry: the golden values, verl's call signature, what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig
from gtpo_verl.verl_plugin.estimators import register_estimators

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())["advantages"]


@pytest.fixture(autouse=True)
def _registered():
    register_estimators()


def gtpo_options(options):
    """A golden case's options under their names in `algorithm.gtpo`."""
    renamed = {"floor": "entropy_floor", "eps": "epsilon"}
    config = {}
    for key, value in options.items():
        if key == "clip":
            config["clip"] = {"enable": value is not None}
            if value is not None:
                config["clip"] |= dict(zip(("alpha1", "alpha2", "kappa"), value, strict=True))
        elif key == "penalty":
            config["length_penalty"] = {"enable": True, **value}
        elif key in ("scope", "over"):
            config.setdefault("normalize", {})[key] = value
        else:
            config[renamed.get(key, key)] = value
    return config


def padded(rows, under_the_mask=0.0):
    mask = torch.tensor([row["mask"] for row in rows])
    entropy = torch.full(mask.shape, under_the_mask)
    for i, row in enumerate(rows):
        entropy[i, mask[i].bool()] = torch.tensor(row["entropy"], dtype=entropy.dtype)
    index = np.array([row["uid"] for row in rows], dtype=object)
    success = torch.tensor([row["success"] for row in rows])
    return mask, entropy, index, success


def estimate(name, mask, entropy, index, success, config):
    rewards = torch.full(entropy.shape, float("nan"))
    estimator = get_adv_estimator_fn(name)
    return estimator(
        token_level_rewards=rewards, response_mask=mask, index=index, config=config, entropy=entropy, success=success
    )


@pytest.mark.parametrize("form", ["dict", "DictConfig", "dataclass"])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_advantages(case, form):
    gtpo = gtpo_options(case["options"])
    config = {
        "dict": {"gtpo": gtpo},
        "DictConfig": OmegaConf.create({"gtpo": gtpo}),
        "dataclass": {"gtpo": GtpoConfig.from_any(gtpo)},
    }[form]
    mask, entropy, index, success = padded(case["rows"], under_the_mask=float("nan"))
    if form == "DictConfig":
        mask = mask.bool()
    advantages, returns = estimate(case["adv_estimator"], mask, entropy, index, success, config)
    assert returns is advantages
    assert advantages.dtype == torch.float32
    torch.testing.assert_close(advantages, torch.tensor(case["advantages"]), atol=1e-5, rtol=0)


def test_golden_covers_every_estimator():
    assert {case["adv_estimator"] for case in GOLDEN} == set(ESTIMATORS)


def test_registering_twice_changes_nothing():
    before = {name: get_adv_estimator_fn(name) for name in ESTIMATORS}
    register_estimators()
    assert {name: get_adv_estimator_fn(name) for name in ESTIMATORS} == before


def random_batch(seed):
    """Six groups of four, right and wrong at random, every response with tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (24,), generator=generator)
    mask = (torch.arange(7) < lengths[:, None]).long()
    entropy = torch.rand(24, 7, generator=generator)
    index = np.array([f"prompt-{i % 6}" for i in range(24)], dtype=object)
    return mask, entropy, index, torch.rand(24, generator=generator) < 0.5


@pytest.mark.parametrize("seed", range(5))
def test_grpo_s_without_entropy_is_verls_grpo(seed):
    """With beta 0, fed rewards of 0 and 1, on groups of two or more and responses with tokens."""
    mask, entropy, index, success = random_batch(seed)
    rewards = torch.zeros_like(entropy)
    rewards[:, 0] = success.float()
    expected, _ = get_adv_estimator_fn("grpo")(rewards, mask, index)
    for uniform_groups in ("zero", "keep"):
        config = {"gtpo": {"beta": 0.0, "uniform_groups": uniform_groups}}
        advantages, _ = estimate("grpo_s_v1", mask, entropy, index, success, config)
        torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("missing", ["entropy", "success"])
def test_a_trainer_that_does_not_hand_over_what_is_needed(name, missing):
    mask, entropy, index, success = random_batch(0)
    given = {"entropy": entropy, "success": success}
    del given[missing]
    with pytest.raises(ValueError, match=rf"adv_estimator={name}.*without {missing}.*trainer_mode=sync.*V0"):
        get_adv_estimator_fn(name)(token_level_rewards=entropy, response_mask=mask, index=index, config=None, **given)


@pytest.mark.parametrize("config", [{"use_kl_in_reward": True}, OmegaConf.create({"use_kl_in_reward": True})])
def test_kl_in_reward_is_refused(config):
    with pytest.raises(ValueError, match=r"algorithm\.use_kl_in_reward"):
        estimate("gtpo_v1", *random_batch(0), config)


@pytest.mark.parametrize(
    "config",
    [None, {}, {"gamma": 1.0}, OmegaConf.create({"adv_estimator": "gtpo_v1"}), AlgoConfig(adv_estimator="gtpo_v1")],
    ids=["None", "empty", "dict", "DictConfig", "AlgoConfig"],
)
def test_a_configuration_without_our_section_has_the_defaults(config):
    batch = random_batch(1)
    advantages, _ = estimate("gtpo_v1", *batch, config)
    assert torch.equal(advantages, estimate("gtpo_v1", *batch, {"gtpo": GtpoConfig()})[0])


def test_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match=r"algorithm\.gtpo\.alhpa"):
        estimate("gtpo_v1", *random_batch(0), OmegaConf.create({"gtpo": {"alhpa": 1.0}}))


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    mask, entropy, index, success = random_batch(2)
    halves = entropy.to(dtype)
    advantages, _ = estimate(name, mask, halves, index, success, None)
    assert advantages.dtype == torch.float32
    assert torch.equal(advantages, estimate(name, mask, halves.float(), index, success, None)[0])


def test_importing_the_adapters_does_not_import_verl():
    code = "import sys, gtpo_verl.verl_plugin.estimators, gtpo_verl.verl_plugin.losses; print('verl' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
