"""The paper's claims, numerically: section 3.5, appendices A.1 to A.3."""

import numpy as np
import pytest
import torch
from batches import flat
from hypothesis import given
from hypothesis import strategies as st

from gtpo_verl.algorithms import compute_advantages, grpo_s_loss, gtpo_loss


def grouped_rows(seed, groups=24, size=8):
    """Groups of both kinds of response, with entropies and lengths spread as those of reasoning are."""
    rng = np.random.default_rng(seed)
    return [
        {
            "uid": f"prompt-{g:03}",
            "success": i % 3 == 0,
            "entropy": rng.lognormal(-1.5, 1.2, int(rng.integers(5, 60))).astype(np.float32).tolist(),
        }
        for g in range(groups)
        for i in range(size)
    ]


def policy_gradient(loss, rows, advantages):
    """Gradient of a loss at the old policy with respect to logits that are free at each token: its direction."""
    lengths = [len(row["entropy"]) for row in rows]
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    padded = torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, advantages.double())
    log_prob = torch.full(mask.shape, -1.0, dtype=torch.float64, requires_grad=True)
    value, _ = loss(log_prob, log_prob.detach(), padded, mask, 0.2, 0.28)
    (gradient,) = torch.autograd.grad(value, log_prob)
    return gradient[mask]


def cosine(a, b):
    return torch.nn.functional.cosine_similarity(a, b, dim=0).item()


@given(lengths=st.lists(st.integers(1, 40), min_size=2, max_size=10), seed=st.integers(0, 2**32 - 1))
def test_a1_the_mean_over_all_samples_varies_no_more(lengths, seed):
    """Eqs. 22, 24 and 26, by simulation of both estimators; with 20,000 draws a variance is off by 1 % (one sigma)."""
    rng = np.random.default_rng(seed)
    draws, n = 20_000, np.array(lengths)
    means = rng.normal(0, 1 / np.sqrt(n), (draws, len(n)))  # of n standard normal samples
    of_means, of_all = means.mean(1), means @ n / n.sum()
    assert of_means.var() == pytest.approx((1 / n).sum() / len(n) ** 2, rel=0.06)
    assert of_all.var() == pytest.approx(1 / n.sum(), rel=0.06)
    assert 1 / n.sum() <= (1 / n).sum() / len(n) ** 2 * (1 + 1e-12)


def test_a2_holds_for_a_function_of_the_samples_too():
    """Var(Y2) < Var(Y1) for y = w * (x - c) on independent samples, where responses differ in length."""
    rng = np.random.default_rng(0)
    n, draws = np.array([2, 5, 40, 100]), 20_000
    samples = [np.exp(rng.normal(0, 0.1, (draws, k))) * (rng.random((draws, k)) - 0.3) for k in n]
    of_means = np.mean([s.mean(1) for s in samples], axis=0)
    of_all = sum(s.sum(1) for s in samples) / n.sum()
    assert of_all.var() < 0.5 * of_means.var()


def test_a2_does_not_hold_for_rewards_that_a_response_shares():
    """Conclusion 2 takes tokens' rewards as independent. A response's are one and the same: the plain mean wins."""
    rng = np.random.default_rng(0)
    n = np.array([2, 5, 40, 100])
    rewards = (rng.random((20_000, len(n))) < 0.5).astype(float)
    assert rewards.mean(1).var() < 0.6 * (rewards @ n / n.sum()).var()


@pytest.mark.parametrize("estimator", ["gtpo_v1", "gtpo_v2"])
def test_eq_27_is_the_gradient_of_eq_4(estimator):
    """At the old policy: the mean over tokens of w * A * grad log pi. The loss is minimised, hence the sign."""
    rows = grouped_rows(0)
    advantages = compute_advantages(estimator, *flat(rows)).advantages
    expected = -advantages.double() / len(advantages)
    torch.testing.assert_close(policy_gradient(gtpo_loss, rows, advantages), expected)


def token_level_grpo(rows):
    """DAPO's direction in the terms of section 3.5.1: rewards of tokens standardised over the tokens of the group."""
    return compute_advantages("gtpo_v1", *flat(rows), {"alpha": 0.0}).advantages


def test_eq_9_the_direction_is_close_to_dapos_for_small_alpha():
    """Eq. 9 says that only the step size changes. Dividing by the standard deviation cancels most of that factor, and
    the direction turns by an angle that grows with alpha.
    """
    rows = grouped_rows(1)
    dapo = policy_gradient(gtpo_loss, rows, token_level_grpo(rows))
    cosines, lengths = [], []
    for alpha in (0.0, 0.05, 0.1, 0.5, 1.0, 3.0):
        advantages = compute_advantages("gtpo_v1", *flat(rows), {"alpha": alpha}).advantages
        gtpo = policy_gradient(gtpo_loss, rows, advantages)
        cosines.append(cosine(gtpo, dapo))
        lengths.append((gtpo.norm() / dapo.norm()).item())
    assert cosines[0] == pytest.approx(1, abs=1e-9)
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[2] > 0.99
    assert cosines[-1] < 0.95
    assert lengths == pytest.approx([1.0] * len(lengths), abs=0.01)


def test_eq_10_the_direction_is_close_to_grpos_for_small_beta():
    rows = grouped_rows(2)
    grpo = policy_gradient(grpo_s_loss, rows, compute_advantages("grpo_s_v1", *flat(rows), {"beta": 0.0}).advantages)
    cosines = []
    for beta in (0.0, 0.05, 0.1, 0.5, 1.0, 3.0):
        advantages = compute_advantages("grpo_s_v1", *flat(rows), {"beta": beta}).advantages
        cosines.append(cosine(policy_gradient(grpo_s_loss, rows, advantages), grpo))
    assert cosines[0] == pytest.approx(1, abs=1e-9)
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[2] > 0.99
    assert cosines[-1] < 0.99


@given(seed=st.integers(0, 2**32 - 1))
def test_the_geometric_mean_is_never_the_larger(seed):
    """Section 3.4.1 prints the inequality the other way round."""
    values = np.random.default_rng(seed).lognormal(0, 2, 10)
    assert np.exp(np.log(values).mean()) <= values.mean() * (1 + 1e-12)
