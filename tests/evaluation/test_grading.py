"""Responses are graded by the reward of the training, whatever the file."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.evaluation.grading import MATH, TASKS, Reward, Verdict
from gtpo_verl.evaluation.problems import Problem, ProblemFile
from gtpo_verl.rewards.math import compute_score
from gtpo_verl.tasks import arithmetic, reasoning
from gtpo_verl.tasks.data_files import DataFileError

MINE = '''
def score(data_source, solution_str, ground_truth, extra_info=None, right=1.0):
    """Right is the truth at the end; says nothing of answers."""
    return right if solution_str.endswith(ground_truth) else 0.0

async def later(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": score(data_source, solution_str, ground_truth), "hit": 1.0, "pred": solution_str[:1]}
'''


def problem(data_source: str = "aime24", truth: str = "7", **extra_info: object) -> Problem:
    return Problem(0, data_source, [{"role": "user", "content": "?"}], truth, dict(extra_info))


def file(*problems: Problem) -> ProblemFile:
    return ProblemFile("some", Path("some.parquet"), list(problems), templated=False)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


@pytest.mark.parametrize("path", [MATH, TASKS])
def test_the_rewards_of_the_package_grade_what_is_theirs(path: str) -> None:
    reward = Reward(path)
    assert reward.grade(problem(), "So.\nAnswer: 7") == Verdict(1.0, True, True, "7")
    assert reward.grade(problem(), "Answer: 8") == Verdict(-1.0, False, True, "8")
    assert reward.grade(problem(), "I give up.") == Verdict(-1.0, False, False, None)
    (row,) = reasoning.rows("validation", 1, 0)
    gym = problem(row["data_source"], row["reward_model"]["ground_truth"], **row["extra_info"])
    assert reward.grade(gym, f"It is {gym.truth}") == Verdict(1.0, True, True, gym.truth)
    assert reward.function(arithmetic.DATA_SOURCE) is not compute_score


def test_a_run_names_its_reward() -> None:
    for model, path in (("tiny", TASKS), ("dapo_math", MATH)):
        assert Reward.of_run(compose_config([f"model={model}"])) == Reward(path)
    config = compose_config(["algorithm.gtpo.success.key=hit", "algorithm.gtpo.success.threshold=0.75"])
    assert str(Reward.of_run(config)).endswith("right where hit > 0.75")


def test_a_users_function_grades_everything(mine: str) -> None:
    function = {"path": mine, "name": "score", "reward_kwargs": {"right": 0.75}}
    reward = Reward.of_run(OmegaConf.create({"reward": {"custom_reward_function": function}}))
    # verl calls a plain number `acc`; it says nothing of answers.
    assert reward.grade(problem(), "Answer: 7") == Verdict(0.75, True, None, None)
    (row,) = reasoning.rows("validation", 1, 0)
    gym = problem(row["data_source"], "no such answer", **row["extra_info"])
    assert reward.grade(gym, row["reward_model"]["ground_truth"]) == Verdict(0.0, False, None, None)


def test_an_asynchronous_function_and_another_metric(mine: str) -> None:
    assert Reward(mine, "later", key="hit").grade(problem(), "8") == Verdict(0.0, True, True, "8")


def test_a_run_without_a_function_has_verls(mine: str) -> None:
    reward = Reward.of_run(OmegaConf.create({"reward": {"reward_manager": {"name": "dapo"}}}))
    assert reward.path is None
    assert reward.grade(problem("math_dapo"), "Answer: 7").right


def test_what_cannot_be_graded_is_named_before_anything_starts(mine: str) -> None:
    with pytest.raises(DataFileError, match=r"some.parquet: row 0: ground truth cannot be graded"):
        Reward().check([file(problem(truth="see the solution"))])
    with pytest.raises(ValueError, match=r"some.parquet: row 0: the reward .*returns score, hit, pred but no `acc`"):
        Reward(mine, "later").check([file(problem())])
    with pytest.raises(ValueError, match=r"some.parquet: row 0: .*reasoning_gym/chain_sum needs extra_info.entry"):
        Reward().check([file(problem("reasoning_gym/chain_sum"))])
    with pytest.raises(ValueError, match=r"none.py:score cannot be loaded"):
        Reward(str(Path(mine).with_name("none.py")), "score").check([file(problem())])
