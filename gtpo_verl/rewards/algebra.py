"""Single expressions: parsed by latex2sympy2, compared by value. Runs in the worker processes only.

math-verify's ``verify`` decides where values cannot be computed (unknown functions, sums over symbols). It is not asked
first: it compares expressions with an absolute tolerance of 15 digits, numbers with one of 6 decimals, and symbols by
the letters of their product, so that 10^{-20} is 10^{-30} and ``cat`` is ``act``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import sympy

# simplify() imports it at its first use, and its import has sympy evaluate text, which a contained worker refuses.
import sympy.physics.units
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from sympy.core.function import AppliedUndef

from gtpo_verl.rewards.magnitude import TooLarge, check_magnitude
from gtpo_verl.rewards.notation import Undefined, Unreadable
from gtpo_verl.rewards.readings import Value

# X and x are different symbols: where both occur, as in R - r, one letter for both makes the answer 0.
_CONVERSION = ConversionConfig(lowercase_symbols=False)
# A decimal rounds an exact value if it agrees to six decimals and to four to five significant digits.
_DECIMALS = sympy.Rational(5, 10**7)
_RELATIVE = sympy.Rational(1, 20_000)
_MOST_DIGITS = 20_000
_WITHOUT_VALUES = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit)
_POINTS = 12
_POINTS_NEEDED = 4
# Values of symbols, of both signs, around 1 and apart from what often occurs in answers. Each symbol begins elsewhere.
_SAMPLES = [
    sympy.Rational(above, 97) for above in (131, -59, 263, 41, -173, 89, 317, -109, 211, -23, 149, 383, -311, 67, 229)
]


@lru_cache(maxsize=2048)
def parse(latex: str) -> Any:
    """The value of an expression as `gtpo_verl.rewards.notation.rewrite` gives it: a sympy expression or matrix.

    Raises:
        Unreadable: the grammar does not know it.
        Undefined: it has no value, as 1/0 has none.
        TooLarge: a number in it is too large to compute.
    """
    try:
        value = _computed(latex2sympy(latex, is_real=True, normalization_config=None, conversion_config=_CONVERSION))
    except (MemoryError, TooLarge):
        raise
    except Exception as error:  # the parser raises whatever its generated code runs into, RecursionError included
        raise Unreadable("no mathematics that latex2sympy2 and sympy know") from error
    if not isinstance(value, sympy.Expr | sympy.MatrixBase):
        raise Unreadable("not an expression")
    if value.has(sympy.nan, sympy.zoo):
        raise Undefined("an expression without a value")
    return value


def evaluate(value: Value) -> Any:
    """The sympy object of a value; raises what `parse` raises."""
    if value.expression is None:
        assert value.number is not None
        return sympy.Rational(value.number.numerator, value.number.denominator)
    return parse(value.expression.latex)


def _computed(parsed: Any) -> Any:
    check_magnitude(parsed)
    bound = [limits[0] for part in parsed.atoms(sympy.Sum, sympy.Product, sympy.Integral) for limits in part.limits]
    imaginary = [symbol for symbol in parsed.free_symbols if symbol.name == "i" and symbol not in bound]
    value = parsed.xreplace(dict.fromkeys(imaginary, sympy.I)).doit()
    return value.replace(_is_real_root, _real_root)


def same(one: Any, other: Any, decimals: Sequence[bool] = (False, False)) -> bool:
    """Whether two values are equal: exactly, but for the rounding of decimals.

    Args:
        one, other: from `parse`, or sympy numbers.
        decimals: which of them was written with a decimal point.
    """
    if isinstance(one, sympy.MatrixBase) or isinstance(other, sympy.MatrixBase):
        return (
            isinstance(one, sympy.MatrixBase)
            and isinstance(other, sympy.MatrixBase)
            and one.shape == other.shape
            and all(same(left, right, decimals) for left, right in zip(one.flat(), other.flat(), strict=True))
        )
    if one == other:
        return True
    if one.is_infinite or other.is_infinite:
        return False
    if one.free_symbols or other.free_symbols or one.has(AppliedUndef) or other.has(AppliedUndef):
        return _same_function(one, other, any(decimals))
    if _is_zero(one, other):
        return True
    rounds = any(
        decimal and not (exact.is_Rational and (other_decimal or _terminates(exact)))
        for decimal, exact, other_decimal in ((decimals[0], other, decimals[1]), (decimals[1], one, decimals[0]))
    )
    return rounds and all(_close(part(one), part(other)) for part in (sympy.re, sympy.im))


def close(one: Any, other: Any) -> bool:
    """Whether two numbers are equal to a hundredth, as the two sides of an approximation are."""
    try:
        return bool(abs((one - other).evalf(20)) <= sympy.Rational(1, 100) * abs(other.evalf(20)))
    except TypeError:
        return False


def _is_real_root(node: Any) -> bool:
    """The cube root of -8 is -2 at school; sympy takes the root with an imaginary part."""
    return bool(
        node.is_Pow
        and node.base.is_number
        and node.base.is_negative
        and node.exp.is_Rational
        and node.exp.q % 2 == 1
        and node.exp.q > 1
    )


def _real_root(node: Any) -> Any:
    return (-1) ** (node.exp.p % 2) * sympy.Pow(-node.base, node.exp)


def _terminates(value: Any) -> bool:
    """Whether a rational can be written exactly with six decimals, so that no other decimal is its rounding."""
    return bool((value * 10**6).is_Integer)


def _close(one: Any, other: Any) -> bool:
    distance = abs((one - other).evalf(30, maxn=200))
    return bool(distance <= _DECIMALS and distance <= _RELATIVE * abs(other.evalf(30)))


def _digits_needed(*values: Any) -> int:
    """Decimal digits after which two different numbers of this size and spelling differ."""
    bits = sum(check_magnitude(value) for value in values)
    return min(_MOST_DIGITS, 60 + int(bits * 0.7))


def _is_zero(one: Any, other: Any) -> bool:
    """Whether two numbers are equal: as rationals, else to more digits than algebraic numbers of their size share."""
    difference = one - other
    if difference.is_Rational:
        return bool(difference == 0)
    # Most differ in the first digits.
    rough = difference.evalf(10, maxn=50)
    if rough.is_Number and rough._prec > 1 and abs(rough) > 1e-3:
        return False
    difference = sympy.expand(difference)
    if difference.is_Rational:
        return bool(difference == 0)
    try:
        value = difference.evalf(5, maxn=_digits_needed(one, other), strict=True)
    except sympy.core.evalf.PrecisionExhausted:
        return True
    return (
        bool(value == 0)
        if value.is_number and not value.has(sympy.nan)
        else bool(verify(other, one, timeout_seconds=None))
    )


def _same_function(one: Any, other: Any, rounded: bool) -> bool:
    # f(x) is a symbol as good as any.
    calls = sorted(one.atoms(AppliedUndef) | other.atoms(AppliedUndef), key=str)
    names = {call: sympy.Dummy(str(call), real=True) for call in calls}
    one, other = one.xreplace(names), other.xreplace(names)
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    digits = _digits_needed(one, other)
    tolerance = sympy.Rational(1, 10**6) if rounded else sympy.Rational(1, 10) ** (digits - 15)
    agreed = 0
    for left, right in _values(one, other, symbols, digits):
        if abs(left - right) > tolerance * max(abs(left), abs(right)):
            return False
        agreed += 1
    if agreed or not (one.has(*_WITHOUT_VALUES) or other.has(*_WITHOUT_VALUES)):
        return agreed >= _POINTS_NEEDED
    return bool(verify(other, one, timeout_seconds=None))


def _values(one: Any, other: Any, symbols: Sequence[Any], digits: int) -> Iterator[tuple[Any, Any]]:
    """Values of both where both are real; where they never are, complex ones."""
    complex_values = []
    found = False
    for point in range(_POINTS):
        place = {symbol: _SAMPLES[(point + 4 * index) % len(_SAMPLES)] for index, symbol in enumerate(symbols)}
        left, right = (value.evalf(digits, subs=place) for value in (one, other))
        if (
            not (left.is_number and right.is_number)
            or left.has(sympy.nan, sympy.zoo)
            or right.has(sympy.nan, sympy.zoo)
        ):
            continue
        if left.is_real and right.is_real:
            found = True
            yield left, right
        elif left.is_real == right.is_real or not found:
            complex_values.append((left, right))
    if not found:
        yield from complex_values
