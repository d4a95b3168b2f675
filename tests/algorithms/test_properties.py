"""What must hold whatever the entropies are: conservation, invariances, limits."""

import numpy as np
import pytest
import torch
from batches import LOG_VOCABULARY, flat, mixed_rows, padded, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig, compute_advantages, compute_padded_advantages
from gtpo_verl.algorithms.blocks import blocks
from gtpo_verl.algorithms.comparison import token_peers
from gtpo_verl.algorithms.estimators import lookup
from gtpo_verl.algorithms.sets import ratio
from gtpo_verl.algorithms.shaping import shape

seeds = st.integers(0, 2**32 - 1)
GTPO = [name for name in ESTIMATORS if name.startswith("gtpo")]
GRPO_S = [name for name in ESTIMATORS if name.startswith("grpo_s")]


def shaped(estimator, rows, options=None):
    """Rewards of the items of a batch that makes up one block, and which of them are right."""
    entropy, offsets, group, success = flat(rows)
    (block,) = blocks(offsets, group, success)
    method = lookup(estimator)
    config = method.resolve(GtpoConfig.from_any(options))
    rewards = shape(method, block, entropy[block.tokens].double(), config).rewards
    return rewards, block.right_tokens if estimator in GTPO else block.right


def advantages_of(estimator, rows, options=None):
    """One tensor of token advantages for each row."""
    result = compute_advantages(estimator, *flat(rows), options).advantages
    return result.split([len(row["entropy"]) for row in rows])


@pytest.mark.parametrize("relative_to", ["position", "response", "group"])
@given(seed=seeds, size=st.integers(1, 9), longest=st.integers(1, 20))
def test_ratios_of_a_set_sum_to_its_size(relative_to, seed, size, longest):
    entropy, *layout = flat(random_rows(seed, [size, size], longest))
    for block in blocks(*layout):
        peers = token_peers(block, relative_to)
        for values in (entropy[block.tokens].double(), 1 / entropy[block.tokens].double().clamp(min=1e-6)):
            torch.testing.assert_close(peers.sum(ratio(values, peers)), peers.size.double(), atol=1e-8, rtol=1e-9)


@pytest.mark.parametrize("relative_to", ["position", "response", "group"])
@given(seed=seeds, alpha=st.floats(0, 3))
def test_gtpo_conserves_the_reward(relative_to, seed, alpha):
    """Section 3.5.1: the shaped rewards of right tokens sum to (1 + alpha) times their number."""
    rewards, right = shaped("gtpo_v1", mixed_rows(seed), {"alpha": alpha, "relative_to": relative_to})
    assert rewards.sum().item() == pytest.approx((1 + alpha) * right.sum().item(), rel=1e-9)


@given(seed=seeds, beta=st.floats(0, 3))
def test_grpo_s_conserves_the_reward(seed, beta):
    """Section 3.5.2."""
    rewards, right = shaped("grpo_s_v1", mixed_rows(seed), {"beta": beta})
    assert rewards.sum().item() == pytest.approx((1 + beta) * right.sum().item(), rel=1e-9)


@pytest.mark.parametrize("estimator", ["gtpo_v2", "grpo_s_v2"])
@given(seed=seeds)
def test_wrong_rewards_sum_to_minus_their_number(estimator, seed):
    rewards, right = shaped(estimator, mixed_rows(seed))
    assert rewards[~right].sum().item() == pytest.approx(-(~right).sum().item(), rel=1e-9)


@given(seed=seeds, alpha=st.floats(0, 3))
def test_a_lone_survivor_gets_one_plus_alpha(seed, alpha):
    rows = mixed_rows(seed, groups=1)
    longest = max(len(row["entropy"]) for row in rows)
    rows[0]["entropy"] = rows[0]["entropy"] + [0.0, 1e-12, 0.3, LOG_VOCABULARY] * longest
    rewards, _ = shaped("gtpo_v1", rows, {"alpha": alpha})
    alone = rewards[longest : len(rows[0]["entropy"])]
    torch.testing.assert_close(alone, torch.full_like(alone, 1 + alpha), atol=1e-12, rtol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=seeds, nats=st.sampled_from([0.0, 1e-12, 0.3, LOG_VOCABULARY]))
def test_equal_entropies_equal_no_entropy_weighting(estimator, seed, nats):
    rows = [{**row, "entropy": [nats] * len(row["entropy"])} for row in mixed_rows(seed)]
    weights = ("alpha", "beta", "alpha2", "beta2")
    others = {"clip": {"enable": False}, "epsilon": 1e-12}
    weighted = advantages_of(estimator, rows, {**dict.fromkeys(weights, 0.7), **others})
    plain = advantages_of(estimator, rows, {**dict.fromkeys(weights, 0.0), **others})
    torch.testing.assert_close(torch.cat(weighted), torch.cat(plain), atol=1e-5, rtol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scope", ["group", "batch"])
@given(seed=seeds)
@settings(max_examples=15)
def test_the_order_of_rows_does_not_matter(estimator, scope, seed):
    rows = random_rows(seed, [5, 1, 4, 6], 9)
    order = np.random.default_rng(seed).permutation(len(rows))
    options = {"normalize": {"scope": scope}}
    before = advantages_of(estimator, rows, options)
    after = advantages_of(estimator, [rows[i] for i in order], options)
    torch.testing.assert_close(torch.cat([before[i] for i in order]), torch.cat(after), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=seeds, columns=st.integers(1, 40))
@settings(max_examples=15)
def test_padding_does_not_matter(estimator, seed, columns):
    rows = random_rows(seed, [5, 4], 9)
    narrow = compute_padded_advantages(estimator, *padded(rows)).advantages
    wide = compute_padded_advantages(estimator, *padded(rows, narrow.shape[1] + columns, fill=9.0)).advantages
    assert torch.equal(wide[:, : narrow.shape[1]], narrow)
    assert torch.all(wide[:, narrow.shape[1] :] == 0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=seeds)
@settings(max_examples=15)
def test_other_groups_do_not_matter(estimator, seed):
    rows = random_rows(seed, [5, 4, 6], 9)
    of_all = advantages_of(estimator, rows)
    kept = [i for i, row in enumerate(rows) if row["uid"] != "prompt-1"]
    of_kept = advantages_of(estimator, [rows[i] for i in kept])
    torch.testing.assert_close(torch.cat([of_all[i] for i in kept]), torch.cat(of_kept), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("relative_to", ["position", "response", "group"])
@given(seed=seeds, epsilon=st.sampled_from([1e-6, 1e-30]))
@settings(max_examples=15)
def test_every_entropy_gives_finite_advantages(estimator, relative_to, seed, epsilon):
    options = {"relative_to": relative_to, "uniform_groups": "keep", "epsilon": epsilon, "entropy_floor": 1e-30}
    result = compute_advantages(estimator, *flat(random_rows(seed, [8, 1, 3], 20)), options)
    assert torch.isfinite(result.advantages).all()
    assert all(np.isfinite(value) for value in result.metrics.values())


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-15])
@given(seed=seeds, nats=st.floats(2**-40, 11, width=32))
@settings(max_examples=15)
def test_equal_rewards_give_exactly_no_advantage(estimator, epsilon, seed, nats):
    """Rounding in the last bit of equal rewards must not be blown up by a small epsilon."""
    rows = [{**row, "success": True, "entropy": [nats] * len(row["entropy"])} for row in mixed_rows(seed)]
    options = {"uniform_groups": "keep", "epsilon": epsilon}
    assert torch.all(torch.cat(advantages_of(estimator, rows, options)) == 0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_negative_entropies_count_as_zero(estimator):
    rows = mixed_rows(3)
    rows[0]["entropy"] = [0.0, *rows[0]["entropy"]]
    expected = advantages_of(estimator, rows)
    rows[0]["entropy"][0] = -0.25
    assert torch.equal(torch.cat(advantages_of(estimator, rows)), torch.cat(expected))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(estimator, dtype):
    entropy, *layout = flat(random_rows(5, [6, 6], 30), dtype)
    halves = compute_advantages(estimator, entropy, *layout).advantages
    assert halves.dtype == torch.float32
    assert torch.equal(halves, compute_advantages(estimator, entropy.float(), *layout).advantages)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_inputs_are_not_modified(estimator):
    rows = random_rows(7, [6, 6], 9)
    arguments = flat(rows)
    copies = [argument.clone() for argument in arguments]
    compute_advantages(estimator, *arguments, {"sign_guard": True})
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))
    entropy, mask, index, success = padded(rows, fill=float("nan"))
    copies = entropy.clone(), mask.clone(), index.copy(), success.clone()
    compute_padded_advantages(estimator, entropy, mask, index, success)
    torch.testing.assert_close(entropy, copies[0], equal_nan=True, atol=0, rtol=0)
    assert torch.equal(mask, copies[1])
    assert (index == copies[2]).all()
    assert torch.equal(success, copies[3])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_entropies_are_constants(estimator):
    """The policy gradient is the same whether the entropies could carry a gradient or not, and none reaches them."""
    entropy, *layout = flat(mixed_rows(1))
    log_prob = torch.linspace(-2, 0, len(entropy), requires_grad=True)
    gradients = []
    for attached in (False, True):
        nats = entropy.clone().requires_grad_(attached)
        advantages = compute_advantages(estimator, nats, *layout).advantages
        assert not advantages.requires_grad
        (gradient,) = torch.autograd.grad((log_prob * advantages).sum() + 0 * nats.sum(), log_prob)
        gradients.append(gradient)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_batches_without_tokens(estimator):
    nothing = (
        torch.empty(0),
        torch.zeros(1, dtype=torch.int64),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0).bool(),
    )
    assert compute_advantages(estimator, *nothing).advantages.shape == (0,)
    empty = torch.zeros(3, 4), torch.zeros(3, 4), ["a", "a", "b"], torch.tensor([True, False, True])
    for scope in ("group", "batch"):
        result = compute_padded_advantages(estimator, *empty, {"normalize": {"scope": scope}})
        assert torch.equal(result.advantages, torch.zeros(3, 4))


def test_v2_gives_confident_wrong_tokens_the_blame():
    """The worked example of docs/method.md: as printed, an uncertain wrong token gets a positive advantage."""
    rows = [
        {"uid": "p", "success": True, "entropy": [0.5, 0.5]},
        {"uid": "p", "success": False, "entropy": [2.0, 0.1]},
        {"uid": "p", "success": False, "entropy": [0.1, 0.1]},
    ]
    _, uncertain, confident = advantages_of("gtpo_v2", rows)
    assert uncertain[0] > 0 > confident[0]
    _, guarded, _ = advantages_of("gtpo_v2", rows, {"sign_guard": True})
    assert guarded[0] == 0
    _, based, _ = advantages_of("gtpo_v3", rows)
    assert based[0] < 0


def test_polarity_gives_right_tokens_negative_advantages():
    right = torch.cat([a for a, row in zip(*_by_polarity("polarity"), strict=True) if row["success"]])
    assert (right < 0).float().mean() > 0.5
    right = torch.cat([a for a, row in zip(*_by_polarity("joint"), strict=True) if row["success"]])
    assert (right < 0).float().mean() == 0


def _by_polarity(over):
    rng = np.random.default_rng(0)
    rows = [
        {"uid": "p", "success": i % 2 == 0, "entropy": rng.lognormal(-2, 1.5, 40).astype(np.float32).tolist()}
        for i in range(8)
    ]
    return advantages_of("gtpo_v3", rows, {"normalize": {"over": over}}), rows
