"""Every other preset of `configs/algorithm` trains a real step, in one run for all: what its advantages and its metrics
say. That each loss is the method's is tests/verl_plugin/test_preset_losses.py's."""

import statistics
from functools import cache

import brute_force
import pytest
import torch
from omegaconf import DictConfig
from presets_in_turn import TURNS
from training_run import Run, read_tokens

from gtpo_verl.algorithms import ESTIMATORS
from gtpo_verl.configuration.composition import compose_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

OVERLONG = 32  # tokens, of DAPO's penalty in every run's reward; 64 are the most


@pytest.fixture(params=TURNS)
def turn(request, presets_in_turn: Run):
    """Its configuration, the metrics and the tokens of its step."""
    step = list(TURNS).index(request.param) + 1
    (metrics,) = [record["data"] for record in presets_in_turn.metrics() if record["step"] == step]
    dump = read_tokens(presets_in_turn.folder / f"tokens/step_{step}.parquet")
    return composed(request.param), metrics, dump


@cache
def composed(name: str) -> DictConfig:
    return compose_config(TURNS[name])


def test_the_run_ends_well(presets_in_turn: Run) -> None:
    presets_in_turn.assert_nothing_left()
    assert presets_in_turn.steps() == list(range(1, len(TURNS) + 1))


def test_the_step_was_the_presets(turn) -> None:
    config, metrics, _ = turn
    assert metrics["actor/grad_norm"] > 0
    assert 0 < metrics["actor/entropy"] < 7
    ours = config.algorithm.adv_estimator in ESTIMATORS
    assert ("gtpo/zero_advantage_frac" in metrics) == ("actor/ratio_mean" in metrics) == ours
    loss = config.actor_rollout_ref.actor.policy_loss.loss_mode
    assert ("actor/pg_clipfrac" in metrics) == (loss != "kl_cov")
    assert ("actor/pg_clipfrac_lower" in metrics) == (not ours and loss not in ("clip_cov", "kl_cov"))
    assert ("actor/kl_loss" in metrics) == config.actor_rollout_ref.actor.use_kl_loss
    assert ("forking/entropy_threshold" in metrics) == (config.algorithm.forking.share < 1)
    # verl looks at the mismatch of vLLM and actor whenever it can; it weighs the loss only where that is chosen.
    weighed = config.algorithm.rollout_correction.rollout_is is not None
    assert ("rollout_corr/rollout_is_mean" in metrics) == weighed
    if weighed:
        assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-3)
    if config.algorithm.gtpo.length_penalty.kind == "grop":
        assert -0.5 < metrics["gtpo/length_penalty_mean"] <= 0


def test_the_advantages_are_the_methods(turn) -> None:
    config, _, dump = turn
    masks = [mask != 0 for mask in dump["response_mask"]]
    rows = [
        {"uid": uid, "success": reward["acc"] > 0.5, "entropy": entropy[mask].tolist()}
        for uid, reward, entropy, mask in zip(dump["uid"], dump["reward"], dump["entropy"], masks, strict=True)
    ]
    if config.algorithm.adv_estimator in ESTIMATORS:
        gtpo = {**config.algorithm.gtpo}
        gtpo["length_penalty"] = {**gtpo["length_penalty"], "max_length": 64}
        expected = brute_force.advantages(config.algorithm.adv_estimator, rows, gtpo)
    else:
        expected = of_groups(rows, config.algorithm.norm_adv_by_std_in_grpo)
    forking = config.algorithm.forking
    if forking.share < 1:
        kept = brute_force.forking([row["entropy"] for row in rows], forking.share, forking.scope)
        expected = [[a * k for a, k in zip(*pair, strict=True)] for pair in zip(expected, kept, strict=True)]
    for advantages, mask, want in zip(dump["advantages"], masks, expected, strict=True):
        torch.testing.assert_close(advantages[mask], torch.tensor(want), atol=1e-5, rtol=1e-5)
        assert (advantages[~mask] == 0).all()


def of_groups(rows: list[dict], over_deviation: bool) -> list[list[float]]:
    """GRPO's, of the reward with DAPO's penalty on length."""
    rewards = [row["success"] + min((64 - OVERLONG - len(row["entropy"])) / OVERLONG, 0) for row in rows]
    advantages = []
    for row, reward in zip(rows, rewards, strict=True):
        group = [r for r, other in zip(rewards, rows, strict=True) if other["uid"] == row["uid"]]
        scale = statistics.stdev(group) + 1e-6 if over_deviation else 1.0
        advantages.append([(reward - statistics.mean(group)) / scale] * len(row["entropy"]))
    return advantages


def test_grpo_begins_at_its_reference_model(presets_in_turn: Run) -> None:
    """Half of the first step is taken on the model that the reference model is a copy of, the other half beside it."""
    first = presets_in_turn.metrics()[0]["data"]
    assert 0 < first["actor/kl_loss"] < 0.1
