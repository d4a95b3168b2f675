"""GRPO's advantages, which are DAPO's, against a loop in plain floats."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gtpo_verl.algorithms import group_advantages


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(-2, 2, width=32)), max_size=24))
def test_rewards_over_the_deviation_of_their_group(rows) -> None:
    names = sorted({name for name, _ in rows})
    group = torch.tensor([names.index(name) * 7 - 3 for name, _ in rows], dtype=torch.int64)
    got = group_advantages(torch.tensor([reward for _, reward in rows], dtype=torch.float64), group)
    assert got.dtype == torch.float32
    for (name, reward), advantage in zip(rows, got.tolist(), strict=True):
        peers = [other for one, other in rows if one == name]
        spread = statistics.stdev(peers) if len(peers) > 1 else 0.0
        if spread <= 1e-9:
            assert advantage == pytest.approx(0, abs=2e-3)
        else:
            want = (reward - statistics.fmean(peers)) / (spread + 1e-6)
            assert advantage == pytest.approx(want, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize(
    ("rewards", "group", "named"),
    [
        (torch.tensor([1, 0]), torch.tensor([0, 0]), "rewards must be"),
        (torch.tensor([1.0, float("nan")]), torch.tensor([0, 0]), "rewards must be"),
        (torch.ones(2, 1), torch.tensor([0, 0]), "rewards must be"),
        (torch.ones(2), torch.tensor([0]), "group must be"),
        (torch.ones(2), torch.ones(2), "group must be"),
    ],
)
def test_what_does_not_fit_is_named(rewards, group, named) -> None:
    with pytest.raises(ValueError, match=named):
        group_advantages(rewards, group)
