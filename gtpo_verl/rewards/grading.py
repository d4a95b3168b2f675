"""Equality of mathematical answers by algebra, with math-verify. Runs in the worker processes only.

Of math-verify's two parsers only the one for LaTeX is used; the other, for plain expressions, evaluates text as Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy

# simplify() imports it at its first use, and its import has sympy evaluate text, which a contained worker refuses.
import sympy.physics.units
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import verify
from math_verify.grader import should_treat_as_complex

from gtpo_verl.rewards.magnitude import TooLarge, check_magnitude
from gtpo_verl.rewards.normalization import Answer

RIGHT = "right"
WRONG = "wrong"
UNPARSABLE = "unparsable"
TOO_LARGE = "too_large"

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none", equations=False
)


def grade(answer: Answer, truth: Answer) -> str:
    """Compares an answer with the ground truth.

    Floating-point numbers are equal if they agree to 6 decimals, where one of them is written as a decimal.

    Returns:
        `RIGHT`, `WRONG`, `UNPARSABLE` (the answer, or the ground truth, is no mathematics that is understood), or
        `TOO_LARGE` (a number in it has more than a million bits).
    """
    try:
        parsed_truth = _parse_truth(truth.text)
        parsed_answer = _parse(answer.text)
    except TooLarge:
        return TOO_LARGE
    if parsed_answer is None or parsed_truth is None:
        return UNPARSABLE
    candidates = [(parsed_truth, parsed_answer)]
    if answer.percent != truth.percent:
        scale = sympy.Rational(1, 100)
        if answer.percent:
            candidates.append((parsed_truth, _times(scale, parsed_answer)))
        else:
            candidates.append((_times(scale, parsed_truth), parsed_answer))
    right = any(verify(one, other, timeout_seconds=None) for one, other in candidates)
    return RIGHT if right else WRONG


def _times(factor: Any, value: Any) -> Any:
    return factor * value if isinstance(value, sympy.Expr) else value


@lru_cache(maxsize=1024)
def _parse_truth(text: str) -> Any:
    return _parse(text)


def _parse(text: str) -> Any:
    """A sympy object, or None for what the grammar does not know."""
    latex = normalize_latex(text, _NORMALIZATION)
    try:
        parsed = latex2sympy(
            latex, is_real=not should_treat_as_complex(latex), convert_degrees=False, normalization_config=None
        )
    except MemoryError:
        raise
    except Exception:  # the parser raises whatever its generated code runs into, RecursionError included
        return None
    check_magnitude(parsed)
    return parsed
