"""Equality that needs no algebra: the same text, and plain numbers by their exact value."""

from __future__ import annotations

import re
from fractions import Fraction

from gtpo_verl.rewards.normalization import Answer, words

_NUMBER = re.compile(r"([+-]?)\s*(\d{1,3}(?:,\d{3})+|\d+)?(?:\.(\d+))?\.?")
_DIGITS = 1000  # Python converts no more than 4,300, in quadratic time
_RATIO = re.compile(r"([+-]?)\s*(?:\\frac\s*\{\s*(-?\d{1,99})\s*\}\s*\{\s*(\d{1,99})\s*\}|(\d{1,99})\s*/\s*(\d{1,99}))")
_BASE = re.compile(r"(?:\d+)_\{?(\d+)\}?")
_OPENING = {"(": "tuple", "[": "tuple", r"\{": "set"}


def compare(answer: Answer, truth: Answer) -> bool | None:
    """Whether two answers are equal, if that can be told without parsing; None if it cannot.

    A percent sign is no unit: 50 % equals 0.5, and also 50, because ground truths leave the sign out.
    """
    if not answer.text or not truth.text:
        return False
    if _squeezed(answer.text) == _squeezed(truth.text) and answer.percent == truth.percent:
        return True
    true_words = words(truth.text)
    if true_words is not None:
        return true_words == (words(answer.text) or " ".join(answer.text.casefold().split()))
    bases = _BASE.fullmatch(answer.text), _BASE.fullmatch(truth.text)
    if bases[0] and bases[1] and bases[0][1] != bases[1][1]:
        return False  # math-verify drops the base of a number
    if _different_brackets(answer.text, truth.text):
        return False
    left, right = _rational(answer.text), _rational(truth.text)
    if left is None or right is None:
        return None
    if _equal(left, right, answer.percent, truth.percent):
        return True
    # A decimal that rounds a fraction is judged with tolerance, by the grader.
    return False if _NUMBER.fullmatch(answer.text) and _NUMBER.fullmatch(truth.text) else None


def _equal(left: Fraction, right: Fraction, left_percent: bool, right_percent: bool) -> bool:
    if left == right:
        return True
    if left_percent == right_percent:
        return False
    return left / 100 == right if left_percent else left == right / 100


def _squeezed(text: str) -> str:
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # 1 3 is not 13


def _rational(text: str) -> Fraction | None:
    number = _NUMBER.fullmatch(text)
    if number and (number[2] or number[3]):
        if len(text) > _DIGITS:
            return None
        digits = f"{(number[2] or '0').replace(',', '')}.{number[3] or '0'}"
        return -Fraction(digits) if number[1] == "-" else Fraction(digits)
    ratio = _RATIO.fullmatch(text)
    if ratio:
        above, below = int(ratio[2] or ratio[4]), int(ratio[3] or ratio[5])
        if below:
            return Fraction(-above if ratio[1] == "-" else above, below)
    return None


def _different_brackets(left: str, right: str) -> bool:
    """A set in braces against a tuple or an interval: math-verify takes them for the same."""
    kinds = [next((kind for mark, kind in _OPENING.items() if text.startswith(mark)), None) for text in (left, right)]
    closed = left.endswith((")", "]", "}")) and right.endswith((")", "]", "}"))
    return closed and "," in left and "," in right and None not in kinds and kinds[0] != kinds[1]
