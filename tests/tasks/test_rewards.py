"""compute_score as verl calls it."""

import pytest

from gtpo_verl.tasks import arithmetic
from gtpo_verl.tasks.rewards import compute_score

RESPONSES = [
    "",
    "#### 8",
    "#### 9",
    "#### " + "8" * 100_000,
    "\x00\ufffd\ud800",
    "#### eight",
    "漢字 #### \uff18",
    "####" * 1000,
    "3+5=8\n#### 8\n",
]


@pytest.mark.parametrize("response", RESPONSES)
def test_any_response_gets_the_same_keys_of_the_same_types(response):
    result = compute_score(arithmetic.DATA_SOURCE, response, "8", {"split": "train", "index": 0, "num_turns": 2})
    assert {key: type(value) for key, value in result.items()} == {
        "score": float,
        "acc": float,
        "answered": float,
        "pred": str,
    }
    assert result["acc"] in (0.0, 1.0)
    assert result["pred"]


@pytest.mark.parametrize(("response", "acc"), [("#### 8", 1.0), ("#### 9", 0.0), ("8", 0.0), ("#### 9\n#### 8", 1.0)])
def test_arithmetic_is_right_when_the_last_answer_is(response, acc):
    result = compute_score(arithmetic.DATA_SOURCE, response, "8")
    assert (result["score"], result["acc"]) == (acc, acc)


def test_verl_calls_it_by_keyword_and_with_more_keywords():
    result = compute_score(
        data_source=arithmetic.DATA_SOURCE,
        solution_str="#### 8",
        ground_truth="8",
        extra_info=None,
        reward_router_address="host",
        reward_model_tokenizer=None,
    )
    assert result["acc"] == 1.0


def test_every_worked_solution_is_right():
    config = arithmetic.ArithmeticConfig()
    answers = {p.prompt: str(p.answer) for p in arithmetic.distinct_problems("warmup", 2000, 0, config)}
    seen = 0
    for prompt, solution in arithmetic.corpus(0, config):
        if prompt in answers:
            assert compute_score(arithmetic.DATA_SOURCE, solution, answers[prompt])["acc"] == 1.0
            seen += 1
        if seen == 100:
            break


def test_an_unknown_data_source_is_named():
    with pytest.raises(ValueError, match="'gsm8k'"):
        compute_score("gsm8k", "", "")
