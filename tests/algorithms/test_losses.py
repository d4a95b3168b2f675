"""The losses: value and gradient against brute force, masks, extremes, weights, metrics."""

import brute_force
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_verl.algorithms import LOSSES, GlobalBatch

LOW, HIGH = 0.2, 0.28
NAMES = list(LOSSES)
seeds = st.integers(0, 2**32 - 1)


def batch(seed, responses=5, width=7, spread=0.5, dtype=torch.float64):
    """Ratios on both sides of the clip range, advantages of both signs, uneven lengths from 0 on."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, width + 1, (responses,), generator=generator)
    old = -torch.rand(responses, width, generator=generator, dtype=dtype) * 3
    new = old + spread * torch.randn(responses, width, generator=generator, dtype=dtype)
    advantages = torch.randn(responses, width, generator=generator, dtype=dtype)
    return new, old, advantages, (torch.arange(width) < lengths[:, None]).long()


def rows_of(log_prob, old_log_prob, advantages, mask):
    names = ("log_prob", "old_log_prob", "advantages")
    tensors = (log_prob, old_log_prob, advantages)
    return [
        {name: tensor[i][mask[i].bool()].tolist() for name, tensor in zip(names, tensors, strict=True)}
        for i in range(len(mask))
    ]


def loss_of(name, log_prob, old_log_prob, advantages, mask, **kwargs):
    return LOSSES[name](log_prob, old_log_prob, advantages, mask, clip_low=LOW, clip_high=HIGH, **kwargs)[0]


def gradient(name, log_prob, *rest, **kwargs):
    log_prob = log_prob.clone().requires_grad_()
    (result,) = torch.autograd.grad(loss_of(name, log_prob, *rest, **kwargs), log_prob)
    return result


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds, spread=st.sampled_from([0.0, 0.1, 0.5, 30.0]))
def test_value(name, seed, spread):
    arguments = batch(seed, spread=spread)
    expected = brute_force.loss(name, rows_of(*arguments), LOW, HIGH)
    assert loss_of(name, *arguments).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@settings(max_examples=10)
def test_gradient_against_finite_differences_of_brute_force(name, seed):
    arguments = batch(seed, responses=3, width=4)
    mask = arguments[-1]
    computed, step = gradient(name, *arguments), 1e-6
    for i, t in mask.nonzero().tolist():
        ends = []
        for sign in (1, -1):
            moved = arguments[0].clone()
            moved[i, t] += sign * step
            ends.append(brute_force.loss(name, rows_of(moved, *arguments[1:]), LOW, HIGH))
        assert computed[i, t].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)
    assert torch.all(computed[mask == 0] == 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_gradcheck(name, seed):
    log_prob, *rest = batch(seed)
    assert torch.autograd.gradcheck(lambda x: loss_of(name, x, *rest), log_prob.requires_grad_())


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@settings(max_examples=15)
def test_a_step_against_the_gradient_lowers_the_loss(name, seed):
    """The losses are to be minimised: a right token's probability rises, a wrong one's falls."""
    _, old, advantages, mask = batch(seed)
    direction = -gradient(name, old, old, advantages, mask)
    before = loss_of(name, old, old, advantages, mask)
    assert loss_of(name, old + 1e-3 * direction, old, advantages, mask) <= before
    if name == "gtpo":
        assert torch.equal(direction.sign(), (advantages * mask).sign())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("mask_dtype", [torch.int64, torch.bool, torch.float32])
def test_what_is_under_the_mask_reaches_nothing(name, fill, mask_dtype):
    *tensors, mask = batch(3)
    weights = torch.full(mask.shape, 1.5, dtype=torch.float64)
    spoiled = [torch.where(mask.bool(), tensor, fill) for tensor in (*tensors, weights)]
    clean = gradient(name, *tensors, mask, rollout_is_weights=weights)
    dirty = gradient(name, *spoiled[:3], mask.to(mask_dtype), rollout_is_weights=spoiled[3])
    assert torch.equal(clean, dirty)
    values = LOSSES[name](*tensors, mask, LOW, HIGH), LOSSES[name](*spoiled[:3], mask.to(mask_dtype), LOW, HIGH)
    assert torch.equal(values[0][0], values[1][0])
    assert values[0][1] == values[1][1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_extreme_ratios_stay_finite(name, log_ratio, dtype):
    old = torch.full((2, 3), -1.0, dtype=dtype)
    advantages = torch.tensor([[1.0] * 3, [-1.0] * 3], dtype=dtype)
    log_prob = (old + log_ratio).requires_grad_()
    loss, metrics = LOSSES[name](log_prob, old, advantages, torch.ones(2, 3), LOW, HIGH)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(log_prob.grad).all()
    assert metrics["actor/ratio_max"] <= 4.9e8


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full(name, dtype):
    *tensors, mask = batch(4)
    halves = [tensor.to(dtype) for tensor in tensors]
    loss = loss_of(name, *halves, mask)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, loss_of(name, *(half.float() for half in halves), mask))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_log_prob_gets_a_gradient(name):
    *tensors, mask = batch(5)
    weights = torch.ones(mask.shape, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (*tensors, weights)]
    loss_of(name, *leaves[:3], mask, rollout_is_weights=leaves[3]).backward()
    assert leaves[0].grad is not None
    assert all(leaf.grad is None for leaf in leaves[1:])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("counts", [(), (2, 10, 5), (1, 0, 0), (2, 0, 0)])
def test_a_micro_batch_without_tokens(name, counts):
    """Nor has the whole mini-batch any, in the last cases: 0 / 0 would be NaN."""
    *tensors, mask = batch(6)
    global_batch = GlobalBatch(*counts)
    assert torch.all(gradient(name, *tensors, 0 * mask, global_batch=global_batch) == 0)
    assert loss_of(name, *tensors, 0 * mask, global_batch=global_batch) == 0


@pytest.mark.parametrize(("name", "key"), [("gtpo", "batch_num_tokens"), ("grpo_s", "global_batch_size")])
def test_ranks_need_the_global_numbers(name, key):
    with pytest.raises(ValueError, match=rf"global_batch_info\.{key}"):
        loss_of(name, *batch(0), global_batch=GlobalBatch(dp_size=2))


def test_gtpo_weights_tokens():
    *tensors, mask = batch(7)
    weights = torch.rand(mask.shape, dtype=torch.float64)
    new, old, advantages = tensors
    assert loss_of("gtpo", *tensors, mask, rollout_is_weights=weights).item() == pytest.approx(
        loss_of("gtpo", new, old, advantages * weights, mask).item()
    )


@pytest.mark.parametrize("name", ["grpo_s", "grpo_s_geometric"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_grpo_s_weights_responses(name, dtype):
    new, old, advantages, mask = batch(8)
    weights = torch.rand(len(mask), 1).to(dtype).expand(mask.shape)
    weighted = loss_of(name, new, old, advantages, mask, rollout_is_weights=weights * mask)
    assert weighted.item() == pytest.approx(loss_of(name, new, old, advantages * weights, mask).item())


@pytest.mark.parametrize("name", ["grpo_s", "grpo_s_geometric"])
def test_grpo_s_refuses_weights_that_vary_within_a_response(name):
    *tensors, mask = batch(9)
    with pytest.raises(ValueError, match=r"rollout_is_weights.*rollout_is=sequence"):
        loss_of(name, *tensors, mask, rollout_is_weights=torch.rand(mask.shape))


def test_grpo_s_reaches_every_token_in_proportion_to_its_ratio():
    """The gradient of eq. 7, where eq. 28 as printed is not: A / |o| * w_t * grad log pi_t, averaged over responses."""
    new, old, _, mask = batch(10, spread=0.05)
    advantages = torch.randn(len(mask), 1, dtype=torch.float64).expand(mask.shape)
    ratio = (new - old).exp() * mask
    length = mask.sum(1, keepdim=True).clamp(min=1)
    mean_ratio = ratio.sum(1, keepdim=True) / length
    assert torch.all((mean_ratio[mask.any(1)] > 1 - LOW) & (mean_ratio[mask.any(1)] < 1 + HIGH))
    expected = -advantages * ratio / length / mask.any(1).sum()
    torch.testing.assert_close(gradient("grpo_s", new, old, advantages, mask), expected)


@pytest.mark.parametrize("name", NAMES)
def test_metrics(name):
    log_ratio = torch.tensor([[0.5, 0.1, 9.0], [-0.5, -0.7, -0.6]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    advantages = torch.tensor([[1.0, 1.0, 7.0], [-1.0, -1.0, -1.0]])
    _, metrics = LOSSES[name](log_ratio - 1, torch.full_like(log_ratio, -1.0), advantages, mask, LOW, HIGH)
    r = log_ratio.exp()
    ratios = {
        "gtpo": r[mask.bool()],
        "grpo_s": torch.stack([r[0, :2].mean(), r[1].mean()]),
        "grpo_s_geometric": torch.stack([log_ratio[0, :2].mean().exp(), log_ratio[1].mean().exp()]),
    }[name]
    decided = {"gtpo": 4 / 5, "grpo_s": 1.0, "grpo_s_geometric": 1.0}[name]
    assert metrics == pytest.approx(
        {
            "actor/ratio_mean": ratios.mean().item(),
            "actor/ratio_max": ratios.max().item(),
            "actor/pg_clipfrac": decided,
            "actor/ppo_kl": (-0.5 - 0.1 + 0.5 + 0.7 + 0.6) / 5,
        },
        abs=1e-6,
    )
