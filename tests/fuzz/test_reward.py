r"""The reward on random answers: it raises nothing and ends in time; equality is one; the arithmetic is Python's.

Every property is held against an oracle that shares no code with the reward: exact fractions, or how the text was made.
``GTPO_VERL_FUZZ_MINUTES`` gives the long budget (`budget`).
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from budget import tried
from hypothesis import assume, example, given
from hypothesis import strategies as st
from test_table import WRAPPINGS, changes

from gtpo_verl.rewards.exact import compare
from gtpo_verl.rewards.math import compute_score
from gtpo_verl.rewards.normalization import normalize_answer
from gtpo_verl.rewards.pool import Limits, WorkerPool
from gtpo_verl.rewards.truth import MAX_NESTING, nesting, problem_with_truth, truth_text

TABLE = Path(__file__).parents[1] / "rewards" / "math500_answers.json"
MATH = json.loads(TABLE.read_text(encoding="utf-8"))["answers"]
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
# What depends on the load of the machine.
UNDECIDED = ("timeout", "out_of_memory", "worker_died")


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[WorkerPool, WorkerPool]]:
    """Two, so that an answer meets two histories."""
    both = WorkerPool(Limits(seconds=5, workers=1)), WorkerPool(Limits(seconds=5, workers=1))
    yield both
    for pool in both:
        pool.close()


def normalized(text: str) -> str:
    answer = normalize_answer(text)
    return answer if nesting(answer) <= MAX_NESTING else "1"


def verdict(pool: WorkerPool, one: str, other: str) -> str:
    """As `compute_score` decides, of two answers that are written as truths are."""
    left, right = truth_text(one), truth_text(other)
    known = compare(left, right)
    return pool.grade(left, right) if known is None else "right" if known else "wrong"


def assert_equality_is_one(one: str, other: str, pools: tuple[WorkerPool, WorkerPool]) -> None:
    one, other = normalized(one), normalized(other)
    first, second = pools
    if not one or not other:
        assert compare(one, other) is False
        return
    # The second pool is asked in another order.
    itself = second.grade(one, one)
    verdicts = [first.grade(one, other), first.grade(other, one), second.grade(other, one), second.grade(one, other)]
    decided = {given for given in verdicts if given not in UNDECIDED}
    assert len(decided) <= 1, verdicts
    assert compare(one, other) == compare(other, one)
    for given_verdict in decided & {"right", "wrong"}:
        assert compare(one, other) in (None, given_verdict == "right")
    assert itself in ("right", "undefined", *UNDECIDED)


@tried(60, share=4)
@given(one=TEXTS, other=TEXTS)
def test_equality_is_symmetric_reflexive_and_stable(one: str, other: str, pools) -> None:
    assert_equality_is_one(one, other, pools)


@tried(150)
@given(text=TEXTS)
def test_normalising_twice_changes_nothing_and_every_text_is_a_truth_or_is_not(text: str) -> None:
    answer = normalize_answer(text)
    assert normalize_answer(answer) == answer
    assert problem_with_truth(text) is None or isinstance(problem_with_truth(text), str)


FORMS = ["Answer: {}", r"\boxed{{{}}}", "<think>{}", "{}</think>\nAnswer: {}", "{}", "Answer: {}\n{}", "{}\\boxed{{{}"]
LONG = st.builds(
    lambda piece, times, end: piece * min(times, 300_000 // max(len(piece), 1)) + end,
    st.one_of(st.sampled_from([*PIECES, " ", "\n", "\\", "<think>", "</think>", "Answer:", r"\boxed{"]), TEXTS),
    st.sampled_from([1, 20, 500, 2000, 30_000, 300_000]),
    TEXTS,
)


def assert_has_a_verdict(response: str) -> None:
    began = time.monotonic()
    result = compute_score("any", response, "x+1")
    assert time.monotonic() - began < 60  # the pool's limit is 10 s, and its start may wait for the machine
    assert set(result) == {"score", "acc", "answered", "pred", "failure"}
    assert (result["score"], result["acc"]) in ((1.0, 1.0), (-1.0, 0.0))
    assert (result["failure"] == "none") is (result["acc"] == 1.0)
    assert 0 < len(str(result["pred"])) <= 256
    str(result["pred"]).encode()
    assert result["failure"] != "worker_died"


@tried(80, share=2)
@given(answer=TEXTS, more=TEXTS, form=st.sampled_from(FORMS))
def test_any_response_gets_a_verdict_of_one_form(answer: str, more: str, form: str) -> None:
    assert_has_a_verdict(form.format(answer, more))


@tried(25, share=2)
@given(answer=LONG, more=LONG, form=st.sampled_from(FORMS))
def test_any_response_of_any_length_gets_its_verdict_in_time(answer: str, more: str, form: str) -> None:
    assert_has_a_verdict(form.format(answer, more))


# Arithmetic against Python's ------------------------------------------------------------------------------------------

INTEGERS = st.one_of(st.integers(0, 12), st.integers(0, 10**6))
DIGITS = st.integers(1, 9)


def spelled(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    return str(value) if value.denominator == 1 else rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


# Without thousands separators: within brackets, where the leaves stand, a comma separates two items (docs/reward.md).
LEAVES = st.one_of(
    INTEGERS.map(lambda n: (str(n), Fraction(n))),
    st.builds(lambda a, b: (rf"\frac{a}{b}", Fraction(a, b)), DIGITS, DIGITS),
    st.builds(lambda a, b: (rf"\dfrac{{{a}}}{{{b}}}", Fraction(a, b)), INTEGERS, st.integers(1, 999)),
    st.builds(
        lambda n, a, b: (rf"{n}\frac{{{a}}}{{{a + b}}}", n + Fraction(a, a + b)), st.integers(1, 99), DIGITS, DIGITS
    ),
    st.integers(0, 99).map(lambda n: (rf"\sqrt{{{n * n}}}", Fraction(n))),
    st.integers(0, 9).map(lambda n: (rf"\sqrt[3]{{{n**3}}}", Fraction(n))),
    st.integers(0, 8).map(lambda n: (f"{n}!", Fraction(math.factorial(n)))),
    st.builds(
        lambda n, k: (rf"\binom{{{n}}}{{{k}}}", Fraction(math.comb(n, k))), st.integers(0, 12), st.integers(0, 12)
    ),
    st.integers(-99, 99).map(lambda n: (f"|{n}|", Fraction(abs(n)))),
    st.builds(lambda a, b: (rf"\lfloor \frac{{{a}}}{{{b}}} \rfloor", Fraction(a // b)), INTEGERS, DIGITS),
)


def _joined(left: tuple[str, Fraction], sign: str, right: tuple[str, Fraction]) -> tuple[str, Fraction] | None:
    (one, a), (other, b) = left, right
    if sign in ("+", "-"):
        return f"({one}){sign}({other})", a + b if sign == "+" else a - b
    if sign in ("/", r"\div ", r"\frac"):
        if b == 0:
            return None
        return (rf"\frac{{{one}}}{{{other}}}" if sign == r"\frac" else f"({one}){sign}({other})"), a / b
    return f"({one}){sign}({other})", a * b


def _power(base: tuple[str, Fraction], exponent: int) -> tuple[str, Fraction] | None:
    if (base[1] == 0 and exponent < 0) or base[1] == exponent == 0:
        return None
    return f"({base[0]})^{{{exponent}}}", base[1] ** exponent


SIGNS = st.sampled_from(["+", "-", r"\cdot ", r"\times ", "*", "", " ", "/", r"\div ", r"\frac"])
ARITHMETIC = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_joined, inner, SIGNS, inner),
        st.builds(_power, inner, st.integers(-3, 4)),
        inner.map(lambda one: (f"-({one[0]})", -one[1])),
    ).filter(lambda made: made is not None and max(abs(made[1].numerator), made[1].denominator) < 10**60),
    max_leaves=5,
)


@tried(80, share=4)
@given(made=ARITHMETIC, change=st.data())
def test_an_expression_is_its_value_and_no_other(made: tuple[str, Fraction], change, pools) -> None:
    text, value = made
    assert verdict(pools[0], text, spelled(value)) in ("right", *UNDECIDED), (text, value)
    other = value + change.draw(st.sampled_from([1, -1, Fraction(1, 2), Fraction(1, 10**9), -value, value, value * 9]))
    assume(other != value)
    assert verdict(pools[0], spelled(other), text) != "right", (text, other)


@tried(120, share=2)
@given(
    exact=st.fractions(-(10**4), 10**4, max_denominator=10**5),
    places=st.integers(1, 12),
    ulps=st.integers(-3, 3),
)
def test_a_decimal_is_what_it_rounds_and_nothing_else(exact: Fraction, places: int, ulps: int, pools) -> None:
    """docs/reward.md: to half a unit of the sixth decimal, and to 1 in 20,000; what six decimals can write is exact."""
    unit = Fraction(1, 10**places)
    decimal = (round(exact / unit) + ulps) * unit
    written = f"{'-' if decimal < 0 else ''}{abs(decimal).numerator * 10**places // decimal.denominator:0{places + 1}d}"
    written = f"{written[:-places]}.{written[-places:]}"
    assert Fraction(written) == decimal
    distance = abs(decimal - exact)
    rounds = distance <= Fraction(5, 10**7) and distance <= max(abs(exact), abs(decimal)) / 20_000
    right = distance == 0 or (rounds and (exact * 10**6).denominator != 1)
    for pair in ((written, spelled(exact)), (spelled(exact), written)):
        assert verdict(pools[0], *pair) in ("right" if right else "wrong", *UNDECIDED), pair


@tried(80)
@given(
    numbers=st.lists(st.integers(0, 10**4), min_size=2, max_size=4),
    other=st.integers(0, 10**9),
    space=st.sampled_from([" ", "  ", r"\ ", r"\quad "]),
)
def test_numbers_side_by_side_are_no_number(numbers: list[int], other: int, space: str, pools) -> None:
    grouped = numbers[0] and len(str(numbers[0])) <= 3 and all(len(str(number)) == 3 for number in numbers[1:])
    assume(not grouped)  # 1 234 is a number
    text = space.join(map(str, numbers))
    joined = int("".join(map(str, numbers)))
    for value in (sum(numbers), math.prod(numbers), joined, numbers[0], numbers[-1], other):
        assert verdict(pools[0], text, str(value)) != "right", (text, value)
        assert verdict(pools[0], str(value), text) != "right", (text, value)


# Structure ------------------------------------------------------------------------------------------------------------

VALUES = st.one_of(st.integers(-99, 999).map(Fraction), st.fractions(-9, 9, max_denominator=12))


@tried(60)
@given(items=st.lists(VALUES, min_size=2, max_size=4, unique=True), order=st.randoms(use_true_random=False))
def test_lists_and_sets_have_no_order_and_tuples_have_one(items: list[Fraction], order, pools) -> None:
    pool = pools[0]
    shuffled = list(items)
    order.shuffle(shuffled)
    one, other = (", ".join(map(spelled, values)) for values in (items, shuffled))
    assert verdict(pool, one, other) in ("right", *UNDECIDED)
    assert verdict(pool, rf"\{{{one}\}}", rf"\{{{other}\}}") in ("right", *UNDECIDED)
    assert verdict(pool, f"({one})", f"({other})") in ("right" if items == shuffled else "wrong", *UNDECIDED)
    assert verdict(pool, f"({one})", rf"\{{{one}\}}") != "right"
    assert verdict(pool, one, ", ".join(map(spelled, items[1:]))) != "right"
    if len(items) == 2 and items == sorted(items):
        kinds = [f"{left}{one}{right}" for left, right in itertools.product("([", ")]")]
        for left, right in itertools.product(kinds, kinds):
            assert verdict(pool, left, right) in ("right" if left == right else "wrong", *UNDECIDED), (left, right)


UNITS = [
    "cm",
    "m",
    "km",
    "inches",
    "feet",
    "kg",
    "grams",
    "seconds",
    "minutes",
    "hours",
    "dollars",
    "students",
    "apples",
]


@tried(60)
@example(number=Fraction(1, 2), units=["m", "cm"], text=False)
@example(number=Fraction(-5, 2), units=["m", "cm"], text=False)
@given(number=VALUES, units=st.lists(st.sampled_from(UNITS), min_size=2, max_size=2, unique=True), text=st.booleans())
def test_a_unit_may_be_left_out_and_two_are_never_both_dropped(number, units: list[str], text: bool, pools) -> None:
    one, other = (rf"{spelled(number)} \text{{ {unit}}}" if text else f"{spelled(number)} {unit}" for unit in units)
    assert verdict(pools[0], one, spelled(number)) in ("right", *UNDECIDED)
    assert verdict(pools[0], one, other) == "wrong"
    assert verdict(pools[0], one, one) in ("right", *UNDECIDED)


WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=4, max_size=9)


@tried(60)
@given(word=WORDS, order=st.randoms(use_true_random=False))
def test_a_word_is_itself_whatever_its_case_and_no_other_order_of_its_letters(word: str, order, pools) -> None:
    assume(problem_with_truth(word) is None)  # the name of a function, such as ceil, is no answer
    letters = list(word)
    order.shuffle(letters)
    other = "".join(letters)
    for form in ("{}", r"\text{{{}}}", r"\textbf{{{}}}"):
        assert verdict(pools[0], form.format(word.upper()), word) in ("right", *UNDECIDED)
        assert other == word or verdict(pools[0], form.format(other), word) != "right"


# Wrappings ------------------------------------------------------------------------------------------------------------

# Those of which every digit, sign, bracket and word counts; 0 times 1 does not change with the 1.
TELLING = st.one_of(
    st.sampled_from(MATH),
    VALUES.map(spelled),
    st.lists(VALUES, min_size=2, max_size=3, unique=True).map(lambda items: f"({','.join(map(spelled, items))})"),
    st.builds(lambda a, b: rf"{a}\sqrt{{{b}}}", st.integers(2, 99), st.sampled_from([2, 3, 5, 6, 7, 10, 11, 13])),
    st.builds(lambda a, b, c: f"{a}x^2+{b}x-{c}", st.integers(2, 99), st.integers(2, 99), st.integers(2, 99)),
)
TRUTHS = st.one_of(TELLING, ARITHMETIC.map(lambda made: made[0]))


@tried(80, share=3)
@given(truth=TRUTHS, wrapping=st.sampled_from(WRAPPINGS))
def test_a_truth_equals_itself_in_every_wrapping(truth: str, wrapping: str) -> None:
    assume(len(truth_text(truth)) <= 2000)
    result = compute_score("any", wrapping.format(truth), truth)
    assert result["failure"] in ("none", "timeout"), (wrapping, truth)


@tried(80, share=3)
@given(truth=TELLING, place=st.integers(0, 200))
def test_a_truth_is_not_itself_with_one_digit_sign_bracket_or_word_changed(truth: str, place: int, pools) -> None:
    changed = list(changes(truth))
    assume(changed)
    other = changed[place % len(changed)]
    assume(other != truth)
    assert verdict(pools[0], other, truth) != "right", (truth, other)


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
    (r"\int\vec{v}\log_2\max(1,2)\sqrt[3]{8}f(x)", "-256"),
]


@pytest.mark.parametrize(("one", "other"), FOUND)
def test_what_was_found(one: str, other: str, pools) -> None:
    assert_equality_is_one(one, other, pools)
    assert_equality_is_one(one, one, pools)
