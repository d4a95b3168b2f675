from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_verl.rewards.exact import compare
from gtpo_verl.rewards.normalization import normalize_answer

DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9)


def equal(answer: str, truth: str) -> bool | None:
    return compare(normalize_answer(answer), normalize_answer(truth))


@given(DECIMALS, DECIMALS)
@settings(deadline=None)
def test_plain_numbers_are_equal_exactly_if_their_values_are(one: object, other: object) -> None:
    assert equal(f"{one:f}", f"{other:f}") is (Fraction(str(one)) == Fraction(str(other)))
    assert equal(f"${one:,f}$", f"{one:f}") is True


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(1, 9))
@settings(deadline=None)
def test_a_fraction_equals_itself_expanded(above: int, below: int, factor: int) -> None:
    for answer in (rf"\dfrac{{{above * factor}}}{{{below * factor}}}", f"{above * factor}/{below * factor}"):
        assert equal(answer, rf"\frac{{{above}}}{{{below}}}") is True


@given(st.integers(0, 10**6))
@settings(deadline=None)
def test_percent_is_a_hundredth_or_left_out(number: int) -> None:
    assert equal(rf"{number}\%", str(number)) is True
    assert equal(f"{number}%", str(Fraction(number, 100))) is True
    assert equal(f"{number}%", f"{number + 1}%") is False


@pytest.mark.parametrize(("answer", "truth"), [("x+1", "1+x"), ("0.333333", r"\frac{1}{3}"), (r"\sqrt{4}", "2")])
def test_what_needs_algebra_is_left_to_the_grader(answer: str, truth: str) -> None:
    assert equal(answer, truth) is None


@pytest.mark.parametrize("digits", [999, 1000, 2000, 4000, 5000])
def test_numbers_of_any_length_raise_nothing(digits: int) -> None:
    assert equal("9" * digits, "13") in (False, None)
    assert equal("9" * digits, "9" * digits) is True
