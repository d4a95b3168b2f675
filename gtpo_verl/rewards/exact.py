"""Equality that needs no algebra: the same text, plain numbers by their exact value, words, times, digits in a base."""

from __future__ import annotations

import re
from fractions import Fraction

from gtpo_verl.rewards.notation import Undefined, Unreadable
from gtpo_verl.rewards.reading import read, spellings
from gtpo_verl.rewards.readings import Clock, Numeral, Reading, Value, Words

# Text that has a value whatever it says: nothing in it divides, takes a logarithm or goes to infinity.
_HAS_A_VALUE = re.compile(
    r"(?!.*(?:inf|oo|l[no]|tan|cot|sec|csc|!|\\sqrt\s*\[))"
    r"(?:[^\\/^:]|\\(?:sqrt|pi|cdot|times|text|cup|circ|[{}%$ ,;!])(?![A-Za-z])|\^\s*\{?\d)*"
)
_PLAIN = (Words, Clock, Numeral)


def compare(answer: str, truth: str) -> bool | None:
    """Whether two answers are equal, if that can be told without algebra; None if it cannot.

    Args:
        answer, truth: as `gtpo_verl.rewards.normalization.normalize_answer` gives them.
    """
    if not answer or not truth:
        return False
    if len(spellings(answer)) > 1 or len(spellings(truth)) > 1:
        return None
    try:
        read_answer, read_truth = read(answer), read(truth)
    except Undefined:
        return None
    except (Unreadable, RecursionError):
        return same_text(answer, truth) or None
    if _is_plain(read_answer) and _is_plain(read_truth):
        return same_without_algebra(read_answer, read_truth)
    if same_text(answer, truth) and _HAS_A_VALUE.fullmatch(answer):
        return True
    return None


def same_text(one: str, other: str) -> bool:
    """Whether two answers are written with the same characters, spaces and what sets text apart left out."""
    return _squeezed(one) == _squeezed(other)


def same_without_algebra(one: Reading, other: Reading) -> bool | None:
    """Whether two readings are equal where one is words, a time or digits in a base, or both are numbers; else None."""
    if isinstance(other, _PLAIN) and not isinstance(one, _PLAIN):
        one, other = other, one
    if isinstance(one, Words):
        if isinstance(other, Value) and one.letters and not other.expression_is_letter:
            return None if other.number is None else False
        return one.text == (other.text.casefold() if isinstance(other, Value) else getattr(other, "text", None))
    if isinstance(one, Clock):
        return _same_time(one, other)
    if isinstance(one, Numeral):
        return _same_numeral(one, other)
    if not isinstance(one, Value) or not isinstance(other, Value):
        return None
    if one.expression_is_letter and other.expression_is_letter:  # the letter of a choice has no case
        return one.text.casefold() == other.text.casefold() and same_unit(one, other)
    if one.number is None or other.number is None:
        return None
    if not same_unit(one, other):
        return False
    scales = percent_scales(one, other)
    if any(one.number * left == other.number * right for left, right in scales):
        return True
    # A decimal that rounds a fraction is judged with tolerance, by the grader.
    exact = one.number if other.decimal else other.number
    rounds = one.decimal != other.decimal and (exact * 10**6).denominator != 1
    return None if rounds else False


def same_unit(one: Value, other: Value) -> bool:
    """A unit may be left out, but two that are said must be the same, and a percent sign is none."""
    if one.unit and other.unit:
        return one.unit == other.unit
    return not (one.percent and other.unit) and not (other.percent and one.unit)


def percent_scales(one: Value, other: Value) -> list[tuple[Fraction, Fraction]]:
    """Factors under which the two may be equal: 50 % is 0.5, and also 50, because ground truths leave the sign out."""
    scales = [(Fraction(1), Fraction(1))]
    if one.percent != other.percent:
        scales.append((Fraction(1, 100), Fraction(1)) if one.percent else (Fraction(1), Fraction(1, 100)))
    return scales


def _is_plain(reading: Reading) -> bool:
    return isinstance(reading, _PLAIN) or (
        isinstance(reading, Value) and (reading.number is not None or reading.expression_is_letter)
    )


def _squeezed(text: str) -> str:
    text = re.sub(r"\\(?:text|mathrm|operatorname)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=[_^])\{(\w)\}", r"\1", text)
    # 1 3 is not 13, and 1, 234 not 1,234.
    return re.sub(r"(?<![\d.,])\s+|\s+(?![\d.])", "", text)


def _same_time(one: Clock, other: Reading) -> bool:
    if isinstance(other, Value):
        if other.number is None or other.unit or other.percent:
            return False
        if one.half and not any(one.parts[1:]):  # 9 a.m. where 9 is asked for
            return other.number == one.parts[0]
        return not one.is_time and len(one.parts) == 2 and other.number * one.parts[1] == one.parts[0]
    if not isinstance(other, Clock) or one.is_time != other.is_time:
        return False
    if one.half == other.half:
        return one.parts == other.parts
    if one.half and other.half:
        return False
    return one.parts == other.parts or one.on_24_hours == other.on_24_hours


def _same_numeral(one: Numeral, other: Reading) -> bool:
    if isinstance(other, Numeral):
        return (one.digits.casefold(), one.base) == (other.digits.casefold(), other.base)
    if isinstance(other, Value) and other.number is not None and not other.unit and not other.percent:
        return other.text.replace(",", "").lstrip("0") == one.digits  # a base may be left out
    return isinstance(other, Words) and other.text == one.digits.casefold()
