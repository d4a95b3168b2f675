"""The `gtpo/*` metrics on batches small enough to count by hand."""

import numpy as np
import pytest
import torch
from batches import flat, mixed_rows

from gtpo_verl.algorithms import ESTIMATORS, compute_advantages
from gtpo_verl.algorithms import metrics as metrics_module

ROWS = [
    {"uid": "a", "success": True, "entropy": [3.0, 1.0, 1.0, 0.0]},
    {"uid": "a", "success": True, "entropy": [1.0, 1.0]},
    {"uid": "a", "success": False, "entropy": [2.0, 0.0]},
    {"uid": "a", "success": False, "entropy": [0.5, 0.5, 1e-6]},
    {"uid": "b", "success": True, "entropy": [4.0]},
    {"uid": "c", "success": False, "entropy": []},
]

NAMES = {
    "gtpo/right_tokens_negative_frac",
    "gtpo/wrong_tokens_positive_frac",
    "gtpo/corr_with_grpo",
    "gtpo/zero_advantage_frac",
    "gtpo/clip_low_frac",
    "gtpo/clip_high_frac",
    "gtpo/length_penalty_mean",
    "gtpo/uniform_groups_frac",
} | {
    f"gtpo/entropy_{side}_{what}" for side in ("right", "wrong") for what in ("mean", "p10", "p50", "p90", "floor_frac")
}


def run(estimator, rows=ROWS, options=None):
    result = compute_advantages(estimator, *flat(rows), options)
    return result.advantages, result.metrics


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_metric_is_there_and_is_a_number(estimator):
    for rows in (ROWS, ROWS[4:5], ROWS[5:]):
        _, metrics = run(estimator, rows)
        assert set(metrics) == NAMES
        assert all(isinstance(value, float) and np.isfinite(value) for value in metrics.values())


def test_entropies():
    _, metrics = run("grpo_s_v1")
    right, wrong = [3, 1, 1, 0, 1, 1, 4], [2, 0, 0.5, 0.5, 1e-6]
    for side, values in (("right", right), ("wrong", wrong)):
        assert metrics[f"gtpo/entropy_{side}_mean"] == pytest.approx(np.mean(values))
        for q in (10, 50, 90):
            assert metrics[f"gtpo/entropy_{side}_p{q}"] == pytest.approx(np.percentile(values, q))
    assert metrics["gtpo/entropy_right_floor_frac"] == pytest.approx(1 / 7)
    # float32's 1e-6 is a hair below the floor's
    assert metrics["gtpo/entropy_wrong_floor_frac"] == pytest.approx(2 / 5)


def test_percentiles_of_a_sample(monkeypatch):
    monkeypatch.setattr(metrics_module, "PERCENTILE_TOKENS", 2_000)
    rng = np.random.default_rng(0)
    rows = [{"uid": "a", "success": i % 2 == 0, "entropy": rng.random(1_000).tolist()} for i in range(10)]
    _, metrics = run("gtpo_v1", rows)
    assert metrics["gtpo/entropy_right_p10"] == pytest.approx(0.1, abs=0.05)
    assert metrics["gtpo/entropy_wrong_p90"] == pytest.approx(0.9, abs=0.05)


def test_uniform_groups_and_zero_advantages():
    advantages, metrics = run("gtpo_v1")
    assert metrics["gtpo/uniform_groups_frac"] == pytest.approx(1 / 2)  # a group without tokens is none
    assert metrics["gtpo/zero_advantage_frac"] == pytest.approx((advantages == 0).float().mean().item())
    assert metrics["gtpo/zero_advantage_frac"] == pytest.approx(1 / 12)


@pytest.mark.parametrize("estimator", ["gtpo_v2", "grpo_s_v2"])
@pytest.mark.parametrize("sign_guard", [False, True])
def test_unexpected_signs_are_counted_even_if_they_are_guarded(estimator, sign_guard):
    rows = mixed_rows(1, groups=8)
    right = torch.tensor([row["success"] for row in rows for _ in row["entropy"]])
    unguarded, expected = run(estimator, rows)
    _, metrics = run(estimator, rows, {"sign_guard": sign_guard})
    for key, fraction in (
        ("right_tokens_negative_frac", (unguarded[right] < 0).float().mean().item()),
        ("wrong_tokens_positive_frac", (unguarded[~right] > 0).float().mean().item()),
    ):
        assert metrics[f"gtpo/{key}"] == expected[f"gtpo/{key}"] == pytest.approx(fraction)
    assert expected["gtpo/wrong_tokens_positive_frac"] > 0


def test_clip_fractions():
    # ratios by position: 1.5, 1, 1, 1 (a mean of 0 counts as 1) and 0.5, 1; alone in its group: 1
    _, metrics = run("gtpo_v1", options={"clip": {"enable": True, "alpha1": 0.7, "alpha2": 0.3, "kappa": 2.2}})
    assert metrics["gtpo/clip_low_frac"] == pytest.approx(1 / 7)
    assert metrics["gtpo/clip_high_frac"] == pytest.approx(1 / 7)
    _, metrics = run("gtpo_v1")
    assert metrics["gtpo/clip_low_frac"] == metrics["gtpo/clip_high_frac"] == 0


def test_length_penalty_is_a_mean_over_responses():
    penalty = {"enable": True, "max_length": 4, "buffer": 2, "denominator": "buffer"}
    _, metrics = run("gtpo_v1", options={"length_penalty": penalty})
    assert metrics["gtpo/length_penalty_mean"] == pytest.approx(-1 / 5)
    _, metrics = run("gtpo_v1", options={"length_penalty": {**penalty, "on": "all"}})
    assert metrics["gtpo/length_penalty_mean"] == pytest.approx((-1 - 0.5) / 5)
    _, metrics = run("grpo_s_v1", options={"length_penalty": penalty})
    assert metrics["gtpo/length_penalty_mean"] == 0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_correlation_with_grpo(estimator):
    rows = mixed_rows(0)
    advantages, metrics = run(estimator, rows)
    success = {uid: [r["success"] for r in rows if r["uid"] == uid] for uid in {r["uid"] for r in rows}}
    grpo = [
        (row["success"] - np.mean(success[row["uid"]])) / np.std(success[row["uid"]], ddof=1)
        for row in rows
        for _ in row["entropy"]
    ]
    expected = np.corrcoef(advantages.numpy(), grpo)[0, 1]
    assert metrics["gtpo/corr_with_grpo"] == pytest.approx(expected, abs=1e-5)


def test_correlation_is_one_without_entropy_weighting():
    _, metrics = run("grpo_s_v1", mixed_rows(1), {"beta": 0.0})
    assert metrics["gtpo/corr_with_grpo"] == pytest.approx(1.0, abs=1e-6)
