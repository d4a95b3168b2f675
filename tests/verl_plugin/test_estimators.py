"""The estimators through verl's registry: the golden values, verl's call signature, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig
from gtpo_verl.verl_plugin.estimators import register_estimators

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())["advantages"]


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
