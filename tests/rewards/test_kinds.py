"""kinds.yaml: each pair both ways, since equality does not depend on which of the two is the ground truth."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gtpo_verl.rewards.math import compute_score

KINDS = yaml.safe_load((Path(__file__).parent / "kinds.yaml").read_text(encoding="utf-8"))
PAIRS = [
    pytest.param(answer, truth, right, id=f"{number}-{key}-{place}")
    for number, kind in enumerate(KINDS)
    for key, right in (("right", True), ("wrong", False))
    for place, (answer, truth) in enumerate(kind.get(key, []))
]
RESPONSES = [
    pytest.param(response, truth, right, id=f"{number}-{key}-{place}")
    for number, kind in enumerate(KINDS)
    for key, right in (("right_responses", True), ("wrong_responses", False))
    for place, (response, truth) in enumerate(kind.get(key, []))
]


@pytest.mark.parametrize(("one", "other", "right"), PAIRS)
def test_verdict_whichever_is_the_truth(one: str, other: str, right: bool) -> None:
    for answer, truth in ((one, other), (other, one)):
        response = answer if answer.startswith(("\\boxed", "$\\boxed")) else f"Answer: {answer}"
        result = compute_score("any", response, truth)
        assert (result["failure"] == "none") is right, (answer, truth, result)
        assert result["failure"] != "timeout"


@pytest.mark.parametrize(("response", "truth", "right"), RESPONSES)
def test_verdict_on_a_whole_response(response: str, truth: str, right: bool) -> None:
    result = compute_score("any", response, truth)
    assert (result["failure"] == "none") is right, result
