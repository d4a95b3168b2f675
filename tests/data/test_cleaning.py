"""Repetitions, contradictions, and prompts that are wrapped once."""

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_verl.data.cleaning import clean, unwrapped
from gtpo_verl.rewards.prompts import dapo_prompt
from gtpo_verl.tasks.data_files import DataFileError


def cleaned(pairs, path, batch_rows=1000):
    table = pyarrow.table(
        {
            "text": pyarrow.array([text for text, _ in pairs], pyarrow.string()),
            "truth": pyarrow.array([truth for _, truth in pairs], pyarrow.string()),
            "row": pyarrow.array(range(len(pairs)), pyarrow.int64()),
        }
    )
    return clean((table.slice(start, batch_rows) for start in range(0, len(pairs), batch_rows)), path)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from(["", " ", "\n"])), min_size=1),
    st.integers(1, 7),
)
def test_against_counting_by_hand(rows, batch_rows):
    """In batches of any size, every row is kept, a repetition, or of a problem with contradicting answers."""
    result = cleaned([(f"What{space} is {n}?", str(answer)) for n, answer, space in rows], "x", batch_rows)
    # White space between words is one space, at their ends none.
    answers = {}
    for row, (n, answer, _) in enumerate(rows):
        answers.setdefault(n, []).append((row, answer))
    clear = [n for n, given_answers in answers.items() if len({a for _, a in given_answers}) == 1]
    assert [problem.row for problem in result.problems] == sorted(answers[n][0][0] for n in clear)
    assert result.duplicates == sum(len(answers[n]) - 1 for n in clear)
    assert result.rows == len(rows) == len(result.problems) + result.duplicates + result.conflicting


def test_answers_that_the_reward_takes_for_equal_do_not_contradict(tmp_path):
    result = cleaned([("a", "7"), ("a", "$7$"), ("a", "7.0"), ("b", r"\frac{1}{2}"), ("b", "0.5")], tmp_path)
    assert [problem.truth for problem in result.problems] == ["7", r"\frac{1}{2}"]
    assert not result.conflicts


def test_unicode_forms_of_a_character_do_not_make_another_problem(tmp_path):
    composed, decomposed, other = "Pok\u00e9mon\u00a0in \u00c5", "Poke\u0301mon in A\u030a", "Pokemon in A"
    result = cleaned([(composed, "1"), (decomposed, "1"), (other, "1"), ("x²", "1"), ("x2", "1")], tmp_path)
    assert [(problem.text, problem.rows) for problem in result.problems] == [
        (composed, 2),
        (other, 1),
        ("x²", 1),
        ("x2", 1),
    ]


@pytest.mark.timeout(60)
def test_thousands_of_answers_to_one_problem_are_one_conflict(tmp_path):
    result = cleaned([("a", str(number)) for number in range(20_000)] + [("b", "1")], tmp_path)
    (conflict,) = result.conflicts
    assert list(conflict.answers.items())[:2] == [("0", 0), ("1", 1)]
    assert (conflict.rows, result.conflicting, len(result.problems)) == (20_000, 20_000, 1)
    with pytest.raises(DataFileError, match="row 5: ground_truth is empty"):
        cleaned([("a", str(number)) for number in range(5)] + [("a", "$$")], tmp_path)


def test_a_prompt_is_wrapped_once(tmp_path):
    braces = r"Let $\{x\}$ be {problem}."
    result = cleaned([(dapo_prompt(braces), "1"), (braces, "1"), ("other", "2"), ("other ", "2")], tmp_path)
    assert [problem.prompt for problem in result.problems] == [dapo_prompt(braces), dapo_prompt("other")]
    assert [problem.rows for problem in result.problems] == [2, 2]


def test_instructions_that_overlap_are_no_wrapped_problem(tmp_path):
    before, after = dapo_prompt("{}").split("{}")
    text = before + after.lstrip()
    (problem,) = cleaned([(text, "1")], tmp_path).problems
    assert (problem.text, problem.prompt) == (text, dapo_prompt(text))


@given(st.text())
def test_unwrapping_undoes_wrapping(problem):
    assert unwrapped(dapo_prompt(problem)) == problem.strip()


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ((" \n", "1"), "row 2: the problem is empty"),
        ((dapo_prompt(""), "1"), "row 2: the problem is empty"),
        (("x", " "), "row 2: ground_truth is empty"),
        (("x", "$$"), "row 2: ground_truth is empty"),
        (("x", "9" * 2001), "row 2: ground_truth has 2001 characters"),
    ],
)
def test_empty_and_endless_rows_are_named(tmp_path, pair, words):
    path = tmp_path / "some.parquet"
    with pytest.raises(DataFileError, match=r"some\.parquet: " + words):
        cleaned([("a", "1"), ("b", "2"), pair], path)
