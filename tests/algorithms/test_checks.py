"""What is said before anything starts, and that the package needs neither verl nor Ray."""

import subprocess
import sys

import pytest
from batches import flat, random_rows
from omegaconf import OmegaConf

from gtpo_verl.algorithms import (
    ESTIMATORS,
    GtpoConfig,
    compute_advantages,
    needs_groups,
    refuse_kl_in_reward,
    unfitting_pair,
)


@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        ("gtpo_v1", "gtpo"),
        ("gtpo_v3", "gtpo"),
        ("grpo_s_v1", "grpo_s"),
        ("grpo_s_v2", "grpo_s_geometric"),
        ("grpo", "vanilla"),
        ("gae", "gspo"),
    ],
)
def test_pairs_that_fit(estimator, loss):
    assert unfitting_pair(estimator, loss) is None


@pytest.mark.parametrize(
    ("estimator", "loss", "remedy"),
    [
        ("gtpo_v1", "vanilla", "use gtpo"),
        ("gtpo_v2", "grpo_s", "use gtpo"),
        ("grpo_s_v1", "gtpo", "use grpo_s or grpo_s_geometric"),
        ("grpo_s_v1", "vanilla", "use grpo_s or grpo_s_geometric"),
        ("grpo", "gtpo", "verl's own loss"),
    ],
)
def test_pairs_that_do_not_fit(estimator, loss, remedy):
    warning = unfitting_pair(estimator, loss)
    assert f"adv_estimator={estimator}" in warning
    assert f"loss_mode={loss}" in warning
    assert remedy in warning


@pytest.mark.parametrize("form", [dict, OmegaConf.create])
def test_kl_in_reward_is_refused(form):
    with pytest.raises(ValueError, match=r"algorithm\.use_kl_in_reward"):
        refuse_kl_in_reward(form({"use_kl_in_reward": True}))
    refuse_kl_in_reward(form({"use_kl_in_reward": False}))
    refuse_kl_in_reward(form({}))
    refuse_kl_in_reward(None)


def test_the_algorithms_import_neither_verl_nor_ray():
    code = "import sys, gtpo_verl.algorithms; print({'verl', 'ray', 'hydra', 'omegaconf'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("uniform_groups", ["zero", "keep"])
@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("relative_to", ["position", "response", "group"])
def test_groups_are_said_to_be_needed_just_when_single_responses_give_no_advantage(
    estimator, uniform_groups, scope, relative_to
):
    options = {"uniform_groups": uniform_groups, "normalize": {"scope": scope}, "relative_to": relative_to}
    advantages = compute_advantages(estimator, *flat(random_rows(0, [1] * 9, 20)), options).advantages
    assert (advantages == 0).all() == needs_groups(estimator, GtpoConfig.from_any(options))
