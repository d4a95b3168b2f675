"""The penalty on length of section 4.5.1 around its two corners, by hand; its meaning for advantages beside it."""

import pytest
import torch

from gtpo_verl.algorithms import compute_advantages, shaped_rewards
from gtpo_verl.algorithms.config import LengthPenaltyConfig
from gtpo_verl.algorithms.shaping import overlong_penalty

MAX, BUFFER = 112, 32
FROM = MAX - BUFFER


@pytest.mark.parametrize(("denominator", "divisor"), [("buffer", BUFFER), ("max_length", MAX)])
def test_at_the_corners(denominator: str, divisor: int) -> None:
    penalty = LengthPenaltyConfig(enable=True, max_length=MAX, buffer=BUFFER, denominator=denominator)
    lengths = torch.tensor([0, 1, FROM - 1, FROM, FROM + 1, MAX - 1, MAX, MAX + 1, 10 * MAX])
    tokens_over = torch.tensor([0, 0, 0, 0, 1, BUFFER - 1, BUFFER, divisor, divisor])
    torch.testing.assert_close(overlong_penalty(lengths, penalty), -tokens_over.double() / divisor)


LENGTHS = [0, FROM, MAX, MAX, 1]
SUCCESS = torch.tensor([True, True, True, False, False])
BATCH = (
    torch.ones(sum(LENGTHS)),
    torch.nn.functional.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0)),
    torch.zeros(5, dtype=torch.int64),
    SUCCESS,
)


@pytest.mark.parametrize(("on", "wrong"), [("success", 0.0), ("all", -1.0)])
def test_a_response_without_tokens_and_one_that_is_wrong(on: str, wrong: float) -> None:
    keys = {"enable": True, "max_length": MAX, "buffer": BUFFER, "denominator": "buffer", "on": on}
    penalty = shaped_rewards("gtpo_v1", *BATCH, {"length_penalty": keys}).length_penalty
    torch.testing.assert_close(penalty, torch.tensor([0.0, 0.0, -1.0, wrong, 0.0], dtype=penalty.dtype))
    assert compute_advantages("gtpo_v1", *BATCH, {"length_penalty": keys}).advantages.isfinite().all()


def test_disabled_it_changes_nothing() -> None:
    disabled = {"enable": False, "max_length": MAX, "buffer": BUFFER, "on": "all"}
    plain = compute_advantages("gtpo_v1", *BATCH).advantages
    assert torch.equal(compute_advantages("gtpo_v1", *BATCH, {"length_penalty": disabled}).advantages, plain)
    enabled = compute_advantages("gtpo_v1", *BATCH, {"length_penalty": {**disabled, "enable": True}}).advantages
    assert not torch.equal(enabled, plain)
