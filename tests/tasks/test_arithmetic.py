"""The worked-arithmetic task: problems, splits, solutions, answers."""

import itertools
import random

import pytest

from gtpo_verl.tasks import arithmetic
from gtpo_verl.tasks.arithmetic import ArithmeticConfig, Problem

CONFIG = ArithmeticConfig()


def test_problems_stay_within_the_configured_bounds():
    for problem in itertools.islice(arithmetic.problems("train", 0, CONFIG), 500):
        assert CONFIG.min_terms <= len(problem.terms) <= CONFIG.max_terms
        assert all(0 <= total <= CONFIG.max_value for total in itertools.accumulate(problem.terms))
        assert 0 not in problem.terms
        assert eval(problem.text) == problem.answer


def test_the_seed_decides_the_problems_and_different_seeds_differ():
    first, again, other = (arithmetic.rows("train", 50, seed, CONFIG) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_splits_are_disjoint_across_seeds():
    prompts = {
        split: {p.text for seed in range(3) for p in arithmetic.distinct_problems(split, 200, seed, CONFIG)}
        for split in arithmetic.SPLITS
    }
    for one, another in itertools.combinations(arithmetic.SPLITS, 2):
        assert not prompts[one] & prompts[another]


def test_warmup_corpus_never_shows_a_problem_of_another_split():
    by_prompt = {f"{text}=?" for split in ("train", "validation", "probe") for text in _texts(split)}
    assert not by_prompt & {prompt for prompt, _ in itertools.islice(arithmetic.corpus(0, CONFIG), 2000)}


def _texts(split):
    return [problem.text for problem in arithmetic.distinct_problems(split, 500, 0, CONFIG)]


def test_rows_have_distinct_prompts():
    prompts = [row["prompt"][0]["content"] for row in arithmetic.rows("validation", 300, 0, CONFIG)]
    assert len(set(prompts)) == 300


def test_a_space_too_small_is_refused_rather_than_searched_for_ever():
    with pytest.raises(ValueError, match="too few different problems"):
        arithmetic.distinct_problems("validation", 100, 0, ArithmeticConfig(min_terms=2, max_terms=2))


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="'test'"):
        next(arithmetic.problems("test", 0, CONFIG))


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_terms": 1},
        {"max_terms": 2},
        {"max_first": 99},
        {"step_weights": ()},
        {"step_weights": (0.0, 0.0)},
        {"skip_probability": 1.5},
    ],
)
def test_a_configuration_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=r"min_terms|max_first|step_weights|skip"):
        ArithmeticConfig(**wrong)


def test_every_line_of_a_worked_solution_is_true_and_the_answer_is_right():
    rng = random.Random(0)
    lengths = set()
    for problem in itertools.islice(arithmetic.problems("warmup", 0, CONFIG), 300):
        *steps, answer = arithmetic.worked_solution(problem, rng, CONFIG).split("\n")
        for step in steps:
            left, right = step.split("=")
            assert eval(left) == int(right)
        assert answer == f"#### {problem.answer}"
        lengths.add(len(steps))
    assert lengths == set(range(CONFIG.max_terms))


def test_without_skipping_the_steps_reach_the_answer():
    config = ArithmeticConfig(skip_probability=0.0)
    for problem in itertools.islice(arithmetic.problems("warmup", 0, config), 100):
        *steps, _ = arithmetic.worked_solution(problem, random.Random(0), config).split("\n")
        assert int(steps[-1].split("=")[1]) == problem.answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("3+5=8\n#### 8", "8"),
        ("#### 8\n#### 9", "9"),
        ("#### 007", "7"),
        ("#### -0", "0"),
        ("####\t-12 .", "-12"),
        ("8", None),
        ("", None),
        ("####", None),
        ("#### \n8", None),
        ("#### " + "9" * 5000, None),
        ("#### ٣", None),
        ("\x00\ufffd#### 4\ud800", "4"),
    ],
)
def test_extract_answer(response, answer):
    assert arithmetic.extract_answer(response) == answer


def test_problem_text_and_prompt():
    problem = Problem((3, 5, -6))
    assert (problem.text, problem.prompt, problem.answer) == ("3+5-6", "3+5-6=?", 2)
