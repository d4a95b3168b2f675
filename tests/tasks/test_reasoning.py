"""reasoning-gym's tasks as verl's data, and its verifiers as rewards."""

import json

import pytest

from gtpo_verl.tasks import reasoning
from gtpo_verl.tasks.reasoning import TASKS, ReasoningTask
from gtpo_verl.tasks.rewards import compute_score


def test_rows_take_turns_and_differ():
    rows = reasoning.rows("train", 40, 0)
    assert len({row["prompt"][-1]["content"] for row in rows}) == 40
    assert [row["data_source"] for row in rows[: len(TASKS)]] == [task.data_source for task in TASKS]
    assert [row["extra_info"]["index"] for row in rows] == list(range(40))


def test_the_seed_decides_the_rows():
    assert reasoning.rows("train", 10, 3) == reasoning.rows("train", 10, 3)
    assert reasoning.rows("train", 10, 3) != reasoning.rows("train", 10, 4)


def test_splits_are_disjoint_across_seeds():
    questions = {
        split: {row["prompt"][-1]["content"] for seed in (0, 1) for row in reasoning.rows(split, 40, seed)}
        for split in reasoning.SPLITS
    }
    assert not questions["train"] & questions["validation"]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_librarys_verifier_accepts_its_own_answer_only(task):
    for row in reasoning.rows("train", 5, 0, [task]):
        truth = row["reward_model"]["ground_truth"]
        right = compute_score(row["data_source"], f"I think it is {truth}.", truth, row["extra_info"])
        wrong = compute_score(row["data_source"], f"It is {truth}. Or {int(truth) + 1}", truth, row["extra_info"])
        assert (right["acc"], right["score"], right["pred"]) == (1.0, 1.0, truth)
        assert wrong["acc"] == 0.0
        assert wrong["score"] < 0.5


@pytest.mark.parametrize("response", ["", "none", "9" * 100_000, "\x00\ud800", "-", "1.2.3", "1,,,2", "٣"])
def test_any_response_gets_a_score(response):
    row = reasoning.rows("train", 1, 0)[0]
    result = compute_score(row["data_source"], response, row["reward_model"]["ground_truth"], row["extra_info"])
    assert set(result) == {"score", "acc", "answered", "pred"}
    assert result["acc"] == 0.0


def test_a_row_without_the_entry_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"extra_info\.entry"):
        compute_score("reasoning_gym/chain_sum", "4", "4", {"split": "train"})
    with pytest.raises(ValueError, match=r"extra_info\.entry"):
        compute_score("reasoning_gym/chain_sum", "4", "4", None)


def test_an_unknown_task_is_an_error():
    with pytest.raises(ValueError, match="nonsense"):
        compute_score("reasoning_gym/nonsense", "4", "4", {"entry": json.dumps({"answer": "4"})})


def test_too_few_questions_and_unknown_splits_are_refused():
    few = ReasoningTask("products", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    with pytest.raises(ValueError, match="products holds too few"):
        reasoning.rows("validation", 100, 0, [few])
    with pytest.raises(ValueError, match="'test'"):
        reasoning.rows("test", 1, 0)


@pytest.mark.parametrize(
    ("response", "answer"),
    [("4 + 4 = 8", "8"), ("1,234.", "1234"), ("it is -7!", "-7"), ("2.50", "2.50"), ("x", None), ("", None)],
)
def test_extract_answer(response, answer):
    assert reasoning.extract_answer(response) == answer
