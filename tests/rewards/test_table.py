"""Answers to real problems: each equals itself in every wrapping, and nothing else, not even itself with one change.

The answers are those of MATH-500 (math500_answers.json, with its source and licence), the kind of AIME's (0 to 999) and
the kind of DAPO-Math-17k's (integers of any size and sign).
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gtpo_verl.rewards.exact import compare
from gtpo_verl.rewards.grading import grade
from gtpo_verl.rewards.math import compute_score
from gtpo_verl.rewards.truth import problem_with_truth, truth_text

TABLE = json.loads((Path(__file__).parent / "math500_answers.json").read_text(encoding="utf-8"))
MATH = TABLE["answers"]
AIME = [str(number) for number in (0, 1, 9, 10, 25, 73, 104, 204, 321, 540, 699, 809, 999)]
DAPO = ["-1", "-13", "-999", "1000", "1024", "2020", "65536", "123456789", "-2147483648", "3140740680", "10" * 30]
ANSWERS = list(dict.fromkeys([*MATH, *AIME, *DAPO]))
WRAPPINGS = (
    "Answer: {}",
    "Answer: ${}$",
    "Answer: $${}$$.",
    r"Answer: \({}\)",
    r"Answer: \[{}\]",
    "**Answer:** {}",
    "**Answer: ${}$**",
    "### Final Answer: {}<|im_end|>",
    "Answer:\n\n{}",
    "Answer:\n$$\n{}\n$$",
    "Answer:\n\\[\n{}\n\\]\n",
    r"\boxed{{{}}}",
    r"The result is $\boxed{{ {} }}$.",
    r"Answer: $\boxed{{{}}}$",
    r"\[ \boxed{{{}}} \]",
    "<think>Answer: 77777</think>\nAnswer: {}",
    "so 77777 it is\n</think>\n\n<answer>Answer: {}</answer>",
    "Answer: 77777\nNo.\nAnswer: {}\n",
)
# Equal, judged by hand: a unit, a base or the name of a variable that one of them leaves out, another spelling.
EQUAL = {
    frozenset(pair)
    for pair in (
        ("90^\\circ", "90"),
        ("120^\\circ", "120"),
        ("30^\\circ", "30"),
        ("36^\\circ", "36"),
        ("\\$36", "36"),
        ("15\\mbox{ cm}^2", "15"),
        ("x=5", "5"),
        ("40_9", "40"),
        ("204_5", "204"),
        ("1,-2", "-2,1"),
        ("(-2,1)", "-2,1"),
        ("\\frac14", "\\frac{1}{4}"),
        ("10,\\!080", "10080"),
        ("2 \\sqrt{5}", "2\\sqrt{5}"),
    )
}


def right(answer: str, truth: str) -> bool:
    """The verdict, in this process: 100,000 pairs would be slow on pipes."""
    known = compare(truth_text(answer), truth_text(truth))
    return grade(truth_text(answer), truth_text(truth)) == "right" if known is None else known


def changes(answer: str) -> Iterator[str]:
    """The answer with one digit, sign, bracket or word changed."""
    for digit in re.finditer(r"\d", answer):
        yield answer[: digit.start()] + str((int(digit[0]) + 1) % 10) + answer[digit.end() :]
    for sign in re.finditer(r"[-+]", answer):
        yield answer[: sign.start()] + ("+" if sign[0] == "-" else "-") + answer[sign.end() :]
    if not answer.startswith(("-", "\\text")) and answer != "0":
        yield "-" + answer
    if not re.fullmatch(r"\\text\{\(.\)\}", answer):  # (B) is B, with or without
        for bracket in re.finditer(r"[()\[\]]", answer):
            other = {"(": "[", "[": "(", ")": "]", "]": ")"}[bracket[0]]
            yield answer[: bracket.start()] + other + answer[bracket.end() :]
            yield answer[: bracket.start()] + answer[bracket.end() :]
    for text in re.finditer(r"\\(?:text|mbox)\s*\{([^{}]*)\}", answer):
        yield answer[: text.start(1)] + "other" + answer[text.end(1) :]
        yield answer[: text.start(1)] + "not " + text[1] + answer[text.end(1) :]


def assert_only_themselves(pairs: Iterable[tuple[str, str]]) -> None:
    for number, pair in enumerate(pairs):
        answer, other = pair if number % 2 else reversed(pair)
        if answer != other:
            assert right(answer, other) is (frozenset((answer, other)) in EQUAL), (answer, other)


def test_the_table_is_whole() -> None:
    assert len(MATH) == 301
    assert "MIT" in TABLE["license"]
    assert {pair for pair in EQUAL if not pair <= {*ANSWERS, "90", "120", "10080"}} == set()


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_sample_equals_itself_in_every_wrapping(wrapping: str) -> None:
    for answer in ANSWERS[WRAPPINGS.index(wrapping) % 6 :: 6]:
        assert compute_score("any", wrapping.format(answer), answer)["acc"] == 1.0, (wrapping, answer)


def test_a_sample_differs_from_every_other_and_from_itself_changed() -> None:
    assert_only_themselves(itertools.product(ANSWERS[::23], ANSWERS))
    for answer in ANSWERS[::5]:
        for changed in changes(answer):
            assert changed == answer or not right(changed, answer), (answer, changed)


def test_every_answer_is_a_truth_and_equals_itself_by_algebra() -> None:
    for answer in ANSWERS:
        assert problem_with_truth(answer) is None, answer
        assert grade(truth_text(answer), truth_text(answer)) == "right", answer


@pytest.mark.slow
def test_every_answer_in_every_wrapping() -> None:
    for answer, wrapping in itertools.product(ANSWERS, WRAPPINGS):
        assert compute_score("any", wrapping.format(answer), answer)["acc"] == 1.0, (wrapping, answer)


@pytest.mark.slow
def test_every_answer_differs_from_every_other() -> None:
    assert_only_themselves(itertools.combinations(ANSWERS, 2))


@pytest.mark.slow
def test_every_answer_differs_from_itself_changed() -> None:
    for answer in ANSWERS:
        for changed in changes(answer):
            assert changed == answer or not right(changed, answer), (answer, changed)


@pytest.mark.slow
def test_integers_of_any_size_equal_themselves_and_nothing_else() -> None:
    generator = random.Random(20260711)
    numbers = sorted({generator.randint(-(10**size), 10**size) for size in range(1, 40) for _ in range(20)})
    for number, larger in itertools.pairwise(numbers):
        assert compute_score("any", f"Answer: {number:,}", str(number))["acc"] == 1.0
        assert compute_score("any", f"Answer: {number}", str(larger))["acc"] == 0.0
        assert compute_score("any", f"Answer: {number}", str(-number))["acc"] == float(number == 0)
