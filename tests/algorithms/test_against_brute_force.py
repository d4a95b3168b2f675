"""The vectorised estimators against the loops of `brute_force`, over random batches and all options."""

import brute_force
import numpy as np
import pytest
import torch
from batches import flat, padded, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_verl.algorithms import ESTIMATORS, compute_advantages, compute_padded_advantages, shaped_rewards
from gtpo_verl.algorithms import blocks as blocks_module

weights = st.sampled_from([0.0, 0.1, 1.0, 3.0])


@st.composite
def option_sets(draw, longest):
    alpha1 = draw(st.sampled_from([0.9, 0.7, 0.6]))
    buffer = draw(st.integers(1, max(1, longest)))
    return {
        "alpha": draw(weights),
        "beta": draw(weights),
        "alpha1": draw(st.sampled_from([0.5, 1.0])),
        "alpha2": draw(weights),
        "beta1": draw(st.sampled_from([0.5, 1.0])),
        "beta2": draw(weights),
        "clip": {
            "enable": draw(st.sampled_from([None, True, False])),
            "alpha1": alpha1,
            "alpha2": 1 - alpha1,
            "kappa": draw(st.sampled_from([1.1, 1.3])),
        },
        "length_penalty": {
            "enable": draw(st.booleans()),
            "kind": draw(st.sampled_from(["overlong", "grop"])),
            "buffer": buffer,
            "max_length": buffer + draw(st.integers(1, longest + 1)),
            "denominator": draw(st.sampled_from(["max_length", "buffer"])),
            "on": draw(st.sampled_from(["success", "all"])),
        },
        "relative_to": draw(st.sampled_from(["position", "response", "group"])),
        "sequence_entropy": draw(st.sampled_from(["arithmetic", "geometric"])),
        "normalize": {
            "scope": draw(st.sampled_from(["group", "batch"])),
            "over": draw(st.sampled_from([None, "all", "joint", "polarity"])),
        },
        "uniform_groups": draw(st.sampled_from(["zero", "keep"])),
        "sign_guard": draw(st.booleans()),
        "entropy_floor": draw(st.sampled_from([1e-6, 1e-2, 1e-9])),
        "epsilon": draw(st.sampled_from([1e-6, 1e-2])),
    }


@st.composite
def cases(draw, largest_group, longest):
    longest = draw(st.integers(0, longest))
    sizes = draw(st.lists(st.integers(1, largest_group), min_size=1, max_size=4))
    seed = draw(st.integers(0, 2**32 - 1))
    rows = random_rows(seed, sizes, longest, draw(st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0])))
    return rows, draw(option_sets(longest)), seed


def assert_matches(advantages, rows, estimator, options):
    """Compares the advantages of existing tokens, response after response."""
    expected = [a for row in brute_force.advantages(estimator, rows, options) for a in row]
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(case=cases(largest_group=12, longest=30))
def test_flat(estimator, case):
    rows, options, _ = case
    assert_matches(compute_advantages(estimator, *flat(rows), options).advantages, rows, estimator, options)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(case=cases(largest_group=12, longest=30))
def test_shaped_rewards(estimator, case):
    rows, options, _ = case
    rewards, penalty = shaped_rewards(estimator, *flat(rows), options)
    expected = [reward for row in brute_force.shaped(estimator, rows, options) for reward in row]
    torch.testing.assert_close(rewards, torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=1e-5)
    # The penalty is what is added: without it, the rewards are that much larger.
    without = shaped_rewards(estimator, *flat(rows), {**options, "length_penalty": {"enable": False}})
    lengths = torch.tensor([len(row["entropy"]) for row in rows])
    torch.testing.assert_close(rewards - penalty.repeat_interleave(lengths), without.rewards, atol=1e-5, rtol=1e-5)
    assert not without.length_penalty.any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("how", [("position", "arithmetic"), ("response", "geometric"), ("group", "arithmetic")])
def test_large_groups_and_long_responses(estimator, scope, how):
    """Hypothesis prefers small batches: this one has groups of up to 64 and responses of up to 300 tokens."""
    rows = random_rows(0, [64, 31, 1, 16], 300)
    options = {"relative_to": how[0], "sequence_entropy": how[1], "normalize": {"scope": scope}}
    assert_matches(compute_advantages(estimator, *flat(rows), options).advantages, rows, estimator, options)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(case=cases(largest_group=64, longest=400))
@settings(max_examples=60)
def test_many_large_groups_and_long_responses(estimator, case):
    rows, options, _ = case
    assert_matches(compute_advantages(estimator, *flat(rows), options).advantages, rows, estimator, options)


@pytest.mark.parametrize("mask_dtype", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -1.0])
@given(case=cases(largest_group=6, longest=12), padding=st.integers(0, 9), estimator=st.sampled_from(list(ESTIMATORS)))
@settings(max_examples=15)
def test_padded_with_holes_in_the_mask(mask_dtype, fill, case, padding, estimator):
    rows, options, seed = case
    width = max(len(row["entropy"]) for row in rows) + padding
    entropy, mask, index, success = padded(rows, width, holes=np.random.default_rng(seed), fill=fill)
    advantages = compute_padded_advantages(estimator, entropy, mask.to(mask_dtype), index, success, options).advantages
    assert_matches(advantages[mask.bool()], rows, estimator, options)
    assert torch.all(advantages[~mask.bool()] == 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@given(case=cases(largest_group=6, longest=12), estimator=st.sampled_from(list(ESTIMATORS)))
@settings(max_examples=15)
def test_other_dtypes(dtype, case, estimator):
    rows, options, _ = case
    entropy, *rest = flat(rows, dtype)
    assert_matches(
        compute_advantages(estimator, entropy, *rest, options).advantages,
        [
            {**row, "entropy": values.tolist()}
            for row, values in zip(rows, entropy.split([len(row["entropy"]) for row in rows]), strict=True)
        ],
        estimator,
        options,
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(case=cases(largest_group=6, longest=12), tokens_per_block=st.integers(1, 60))
@settings(max_examples=15)
def test_blocks_do_not_show(estimator, case, tokens_per_block):
    rows, options, _ = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "TOKENS_PER_BLOCK", tokens_per_block)
        assert_matches(compute_advantages(estimator, *flat(rows), options).advantages, rows, estimator, options)
