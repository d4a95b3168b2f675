"""Log-probabilities of a step that must not be trained on, and those that nobody would have noticed."""

import logging

import pytest
import torch
from tensordict import TensorDict

from gtpo_verl.verl_plugin.agreement import check_log_probs


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


ACTOR = [[-1.0, -2.0], [-3.0], [-0.5, -0.25, -4.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("whose", ["vLLM", "The actor"])
def test_what_is_no_number_ends_the_step_and_says_whose_it_is(whose: str, bad: float) -> None:
    broken = [[-1.0, -2.0], [bad], [-0.5, bad, bad]]
    both = [step(ACTOR, broken)] if whose == "vLLM" else [step(broken, ACTOR), step(broken, None)]
    for data in both:
        with pytest.raises(ValueError, match=f"^{whose} gave .* in 2 of the step's 3 responses .*first is number 1"):
            check_log_probs(data)


def test_rounding_is_no_news_and_another_policy_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_log_probs(step(ACTOR, [[-1.0625, -1.875], [-3.25], [-0.5, -0.375, -4.125]]))
        check_log_probs(step(ACTOR, None))
        # A token alone may be far off; it is the response that comes from elsewhere.
        check_log_probs(step(ACTOR, [[-1.0, -2.0], [-3.0], [-0.5, -0.25, -6.5]]))
    assert caplog.messages == []
    with caplog.at_level(logging.WARNING):
        check_log_probs(step(ACTOR, [[-4.0, -2.0], [-3.0], [-0.5, -0.25, -8.0]]))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("In 2 of 3 responses")
    assert "most: 1.5" in caplog.messages[0]


def test_what_the_mask_leaves_out_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    nothing = float("nan")
    mask = [[1, 0], [0], [1, 0, 1]]
    with caplog.at_level(logging.WARNING):
        check_log_probs(
            step([[-1.0, nothing], [nothing], ACTOR[2]], [[-1.0, 9.0], [nothing], [-0.5, nothing, -4.0]], mask)
        )
    assert caplog.messages == []
