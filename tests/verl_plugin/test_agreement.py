"""Log-probabilities of a step that must not be trained on, and those that nobody would have noticed."""

import logging

import pytest
import torch
from tensordict import TensorDict

from gtpo_verl.verl_plugin.agreement import check_log_probs

NAN = float("nan")
ACTOR = [[-1.0, -2.0], [-3.0], [-0.5, -0.25, -4.0]]


def step(
    actor: list[list[float]], rollout: list[list[float]] | None, mask: list[list[int]] | None = None
) -> TensorDict:
    columns = {
        "old_log_probs": [torch.tensor(row) for row in actor],
        "response_mask": [torch.tensor(row) for row in mask or [[1] * len(row) for row in actor]],
    }
    if rollout is not None:
        columns["rollout_log_probs"] = [torch.tensor(row) for row in rollout]
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in columns.items()}
    return TensorDict(nested, batch_size=len(actor))


def warnings(caplog: pytest.LogCaptureFixture, data: TensorDict) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_log_probs(data)
    return caplog.messages


@pytest.mark.parametrize("bad", [NAN, float("inf"), float("-inf")])
@pytest.mark.parametrize("whose", ["The rollouts", "The actor"])
def test_what_is_no_number_ends_the_step_and_says_whose_it_is(whose: str, bad: float) -> None:
    broken = [[-1.0, -2.0], [bad], [-0.5, bad, bad]]
    cases = [step(ACTOR, broken)] if whose == "The rollouts" else [step(broken, ACTOR), step(broken, None)]
    for data in cases:
        with pytest.raises(ValueError, match=f"^{whose} .* in 2 of the step's 3 responses"):
            check_log_probs(data)


def shifted(nats: float, tokens: int = 40, responses: int = 20, of: int = 20) -> TensorDict:
    """The first of these responses are off by so much."""
    actor = [[-2.0] * tokens for _ in range(of)]
    return step(actor, [[p + nats * (row < responses) for p in tokens] for row, tokens in enumerate(actor)])


def test_rounding_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, step(ACTOR, None)) == []
    assert warnings(caplog, step(ACTOR, [[-1.0625, -1.9375], [-3.125], [-0.5, -0.25, -4.25]])) == []
    assert warnings(caplog, shifted(0.25)) == []
    # One rare token of a short response is rounded further.
    many = [[-2.0] * 40 for _ in range(5)]
    assert warnings(caplog, step([*many, [-14.0]], [*many, [-15.5]])) == []


@pytest.mark.parametrize("sign", [1, -1])
def test_another_policy_is_said(sign: int, caplog: pytest.LogCaptureFixture) -> None:
    """Few responses that are far off, or all of them a little; in either direction."""
    (message,) = warnings(caplog, shifted(sign * 1.5, responses=1))
    assert "lie 0.075 nat apart on average, and more than 1 in 1 of 20 responses" in message
    (message,) = warnings(caplog, shifted(sign * 0.5))
    assert "lie 0.5 nat apart on average, and more than 1 in 0 of 20 responses" in message


def test_what_the_mask_leaves_out_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    mask = [[1, 0], [0], [1, 0, 1]]
    data = step([[-1.0, NAN], [NAN], ACTOR[2]], [[-1.0, 9.0], [NAN], [-0.5, NAN, -4.0]], mask)
    assert warnings(caplog, data) == []
    assert warnings(caplog, step([[NAN]], [[NAN]], [[0]])) == []
    # Nor does it make a difference smaller; rows that verl adds have no token and are not counted.
    off = [[-2.0] * 10 + [NAN] * 90, [-1.0]]
    data = step([[-4.0] * 10 + [NAN] * 90, [-1.0]], off, [[1] * 10 + [0] * 90, [0]])
    (message,) = warnings(caplog, data)
    assert "lie 2 nat apart on average, and more than 1 in 1 of 1 responses" in message
    with pytest.raises(ValueError, match="in 1 of the step's 1 responses"):
        check_log_probs(step([[NAN], [-1.0]], None, [[1], [0]]))


def test_rollouts_may_have_none_for_the_last_words_of_a_tool(caplog: pytest.LogCaptureFixture) -> None:
    actor, mask = [[-1.0, -2.0, -9.0], [-3.0, -4.0]], [[1, 1, 0], [1, 1]]
    assert warnings(caplog, step(actor, [[-1.0, -2.0], [-3.0, -4.0]], mask)) == []
    # As many in all, and not the same ones.
    (message,) = warnings(caplog, step([[-1.0, -2.0], [-30.0]], [[-1.0], [-30.0, 0.0]], [[1, 1], [1]]))
    assert "lie 0.667 nat apart" in message


def test_a_long_step_is_summed_exactly_enough(caplog: pytest.LogCaptureFixture) -> None:
    """Four million tokens, all off by what is no news, and one response that is far off at the end."""
    actor = torch.full((4_000_000,), -2.0)
    rollout = actor + 0.004
    rollout[-1000:] -= 1.25
    rows = torch.arange(0, 4_000_001, 1000)
    jagged = {"old_log_probs": actor, "rollout_log_probs": rollout, "response_mask": torch.ones_like(actor).long()}
    nested = {name: torch.nested.nested_tensor_from_jagged(values, rows) for name, values in jagged.items()}
    (message,) = warnings(caplog, TensorDict(nested, batch_size=4000))
    assert "lie 0.00431 nat apart on average, and more than 1 in 1 of 4000 responses" in message
