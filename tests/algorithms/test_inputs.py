"""Input that does not fit is refused by the name of the argument."""

import pytest
import torch

from gtpo_verl.algorithms import compute_advantages, compute_padded_advantages

FLAT = {
    "entropy": torch.ones(3),
    "offsets": torch.tensor([0, 1, 3]),
    "group": torch.tensor([0, 0]),
    "success": torch.tensor([True, False]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entropy", torch.ones(1, 3)),
        ("entropy", torch.ones(3, dtype=torch.int64)),
        ("entropy", torch.tensor([1.0, float("nan"), 1.0])),
        ("entropy", torch.tensor([1.0, float("inf"), 1.0])),
        ("offsets", torch.tensor([0, 1, 2])),
        ("offsets", torch.tensor([1, 1, 3])),
        ("offsets", torch.tensor([0, 4, 3])),
        ("offsets", torch.empty(0, dtype=torch.int64)),
        ("group", torch.tensor([0, 0, 0])),
        ("group", torch.tensor([0.0, 0.0])),
        ("success", torch.tensor([1.0, 0.0])),
        ("success", torch.tensor([True])),
    ],
)
def test_flat(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        compute_advantages("gtpo_v1", **{**FLAT, name: value})


def test_unknown_estimator():
    with pytest.raises(ValueError, match=r"algorithm\.adv_estimator.*gtpo_v1.*grpo_s_v3.*'gtpo'"):
        compute_advantages("gtpo", **FLAT)


def test_padded():
    with pytest.raises(ValueError, match=r"entropy.*response_mask"):
        compute_padded_advantages(
            "gtpo_v1", torch.ones(2, 3), torch.ones(2, 4), ["a", "b"], torch.tensor([True, False])
        )
    with pytest.raises(ValueError, match=r"^group must be"):
        compute_padded_advantages("gtpo_v1", torch.ones(2, 3), torch.ones(2, 3), ["a"], torch.tensor([True, False]))


def test_uids_of_any_type_that_sorts():
    entropy, mask, success = torch.rand(4, 3), torch.ones(4, 3), torch.tensor([True, False, True, False])
    expected = compute_padded_advantages("gtpo_v1", entropy, mask, ["b", "b", "a", "a"], success).advantages
    for index in ([7, 7, 3, 3], torch.tensor([1, 1, 0, 0]), ("y", "y", "x", "x")):
        assert torch.equal(compute_padded_advantages("gtpo_v1", entropy, mask, index, success).advantages, expected)
