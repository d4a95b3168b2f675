"""Group Relative Overlong Punishment, by hand: which side of a group is penalised, and from which length on."""

import pytest
import torch

from gtpo_verl.algorithms import compute_advantages
from gtpo_verl.algorithms.blocks import blocks
from gtpo_verl.algorithms.shaping import group_relative_overlong_punishment

# right and wrong lengths; what each of them is added
EASY = [2, 4, 12], [20], [0, 0, -0.5 * 5 / 7], [0]  # 3 of 4; (2 + 12) / 2 = 7 is above the mean, 6
EASY_BY_MEAN = [2, 10, 12, 12], [1], [0, -0.5 / 9, -0.5 * 3 / 9, -0.5 * 3 / 9], [0]  # mean 9 is above 7
ALL_RIGHT = [1, 9], [], [0, -0.5 * 4 / 5], []
HARD = [30], [2, 4, 20], [0], [0, 0, 0]  # 1 of 4
ALL_WRONG = [], [1, 9], [], [0, 0]
MORE_RIGHT = [2, 6, 18], [4, 20], [0, 0, -0.5 * 7 / 11], [0, 0]  # 3 of 5, over all of them: (2 + 20) / 2 = 11
AS_MANY = [2, 18], [4, 20], [0, 0], [0, -0.5 * 9 / 11]
MORE_WRONG = [2, 18], [4, 20, 11], [0, 0], [0, -0.5 * 9 / 11, 0]  # on the knee: nothing yet
GROUPS = [EASY, EASY_BY_MEAN, ALL_RIGHT, HARD, ALL_WRONG, MORE_RIGHT, AS_MANY, MORE_WRONG]


def test_each_group_by_its_own_lengths():
    rows = [
        (g, right, length, penalty)
        for g, (right_lengths, wrong_lengths, of_right, of_wrong) in enumerate(GROUPS)
        for right, lengths, penalties in ((True, right_lengths, of_right), (False, wrong_lengths, of_wrong))
        for length, penalty in zip(lengths, penalties, strict=True)
    ]
    group, right, lengths, expected = (torch.tensor(column) for column in zip(*rows, strict=True))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    (block,) = blocks(offsets, group, right)
    torch.testing.assert_close(group_relative_overlong_punishment(block)[block.responses.argsort()], expected.double())


@pytest.mark.parametrize("estimator", ["gtpo_v1", "gtpo_v2", "gtpo_v3"])
def test_it_lowers_every_token_of_the_long_response(estimator):
    """Equal entropies: without the penalty, right tokens have equal advantages."""
    lengths = torch.tensor([2, 4, 12, 20])
    batch = torch.ones(38), torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), torch.zeros(4, dtype=torch.int64)
    success = torch.tensor([True, True, True, False])
    penalty = {"enable": True, "kind": "grop"}  # no max_length is needed
    result, metrics = compute_advantages(estimator, *batch, success, {"length_penalty": penalty})
    short, middle, long, _ = result.split(lengths.tolist())
    assert torch.equal(short, middle[:2])
    assert (long < short[0]).all()
    assert metrics["gtpo/length_penalty_mean"] == pytest.approx(-0.5 * 5 / 7 / 4)
