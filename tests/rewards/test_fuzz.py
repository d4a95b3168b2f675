"""Random answers: nothing raises or hangs, equality is symmetric and stable, and what the fuzzer found stays mended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gtpo_verl.rewards.algebra import parse
from gtpo_verl.rewards.exact import compare
from gtpo_verl.rewards.grading import grade
from gtpo_verl.rewards.math import compute_score
from gtpo_verl.rewards.normalization import normalize_answer
from gtpo_verl.rewards.reading import read
from gtpo_verl.rewards.truth import MAX_NESTING, nesting, problem_with_truth

MATH = json.loads((Path(__file__).parent / "math500_answers.json").read_text(encoding="utf-8"))["answers"]
_PIECES = r"""
0 1 2 13 1.5 .5 1e3 2e-1 \frac{1}{2} \frac12 \frac \sqrt \sqrt{2} \sqrt[3]{8} x y n i e I T \pi pi ab cat sin \sin \cos
\ln \log_2 ( ) [ ] { } \{ \} + - * / ^ _ ! = < > \le \in \neq \cup \setminus \infty , ; : | % \% ^\circ \text{ \text{cm}
cm m dollars \$ am pm \pm \mp \cdot \times \binom{5}{2} \begin{pmatrix}1\\2\end{pmatrix} \begin{pmatrix} & \\
\overline{3} 0.\overline{3} \ldots ... \mathrm{e} \mathbb{R} \emptyset ² ½ √ ° − and or ~ " ' . $ ** \approx f(x)
\triangle \to \sum_{k=1}^{3} \int \lim_{x\to0} ^T A B \max(1,2) \gcd \lfloor \rfloor \pmod{7} \equiv 1,234 10,\!080 _8
10:30 3:4 \vec{v} \bar{x} not no Yes \, \! \quad
"""  # noqa: RUF001
PIECES = _PIECES.split()
TEXTS = st.one_of(
    st.lists(st.sampled_from([*PIECES, " "]), min_size=1, max_size=8).map("".join),
    st.sampled_from(MATH),
    st.builds(
        lambda answer, place, piece: answer[:place] + piece + answer[place + 1 :],
        st.sampled_from(MATH),
        st.integers(0, 12),
        st.sampled_from(PIECES),
    ),
    st.text(max_size=30),
)
ROUNDS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(ROUNDS, max_examples=1500)


def normalized(text: str) -> str:
    answer = normalize_answer(text)
    return answer if nesting(answer) <= MAX_NESTING else "1"


def assert_equality_is_one(one: str, other: str) -> None:
    one, other = normalized(one), normalized(other)
    started = time.monotonic()
    if not one or not other:
        assert compare(one, other) is False
        return
    verdicts = grade(one, other), grade(other, one)
    assert verdicts[0] == verdicts[1]
    assert compare(one, other) == compare(other, one)
    if verdicts[0] in ("right", "wrong"):
        assert compare(one, other) in (None, verdicts[0] == "right")
    assert grade(one, one) in ("right", "undefined")
    read.cache_clear()
    parse.cache_clear()
    assert grade(one, other) == verdicts[0]
    assert time.monotonic() - started < 60


@given(TEXTS, TEXTS)
@ROUNDS
def test_equality_is_symmetric_reflexive_and_stable(one: str, other: str) -> None:
    assert_equality_is_one(one, other)


@pytest.mark.slow
@given(TEXTS, TEXTS)
@MANY
def test_equality_is_symmetric_reflexive_and_stable_often(one: str, other: str) -> None:
    assert_equality_is_one(one, other)


@given(TEXTS)
@ROUNDS
def test_normalising_twice_changes_nothing_and_every_text_is_a_truth_or_is_not(text: str) -> None:
    answer = normalize_answer(text)
    assert normalize_answer(answer) == answer
    assert problem_with_truth(text) is None or isinstance(problem_with_truth(text), str)


@given(TEXTS, TEXTS, st.sampled_from(["Answer: {}", r"\boxed{{{}}}", "<think>{}", "{}</think>\nAnswer: {}", "{}"]))
@ROUNDS
def test_any_response_gets_a_verdict_of_one_form(answer: str, more: str, form: str) -> None:
    result = compute_score("any", form.format(answer, more), "x+1")
    assert set(result) == {"score", "acc", "answered", "pred", "failure"}
    assert result["failure"] not in ("timeout", "worker_died")


# What fuzzing found, each by its kind: an exception of sympy, an order that mattered, a number that never ended.
FOUND = [
    (r"T\times\begin{pmatrix}1\\2\end{pmatrix}^\binom{5}{2}", "33_4"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}or$", r"\vec{v}\frac12sin \equiv"),
    (r"\lim_{x\to 0}2x^y", r"\begin{pmatrix} 1^\circ \\ 2 \\ cat3 \end{pmatrix}"),
    (r"'^\circ \infty \sqrt", "}_{8}"),
    (r"\%'", r"(-\infty,\infty\mp"),
    ("(0infty)", "(0infty)"),
    (r"2+2i,\,-2-2i,\,-2+2i,\,2-2i^{32,\!000,\!000}", "2+2i"),
    ("3^{200^7}", "3^{200^7}"),
    (r"10,\!080 sin',^ \\\ln", "10080"),
    (r"\\*1,234<i&\le", "1,234"),
    (r" 8\text{, and }\mp10^{x Yes! \sqrt[3]{8}}", "8"),
    (r"554^{x\ - 6x^2 +134}", r"554^{x\ - 6x^2 +135}"),
    (r"\{\emptyset\}", r"\emptyset"),
]


@pytest.mark.parametrize(("one", "other"), FOUND)
def test_what_was_found(one: str, other: str) -> None:
    assert_equality_is_one(one, other)
    assert_equality_is_one(one, one)
