"""Upper bounds on what a computation would need, before anything computes it: ``9^{9^9}`` has 1.2 billion bits.

Bounds are on values, not on spellings: ``2^{2^{10}}`` has 1025 bits, as 2^1024 has, and the exponent of
``10^{(\\sqrt{13}-5)/6}`` is small, however long it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn

import sympy

MAX_BITS = 1_000_000
_GROWS_LIKE_FACTORIAL = (
    sympy.factorial,
    sympy.factorial2,
    sympy.subfactorial,
    sympy.gamma,
    sympy.binomial,
    sympy.fibonacci,
)


class TooLarge(Exception):
    """A number in an expression has more than `MAX_BITS` bits, as far as can be told without computing it."""


class Bound(NamedTuple):
    """What is known of a number that has not been computed."""

    log2: float
    """Upper bound on the logarithm of its absolute value."""
    bits: float
    """Upper bound on the bits of its numerator and denominator, or what they would be were it rational."""


def check_magnitude(expression: Any) -> float:
    """Refuses an unevaluated expression in which some number is too large to compute.

    Args:
        expression: a sympy object; matrices and sets are looked into. Anything else passes.

    Returns:
        Upper bound on the bits of the largest number in it.

    Raises:
        TooLarge: a bound on the bits of a sub-expression exceeds `MAX_BITS`.
    """
    return _bound(expression).bits


def _bound(node: Any) -> Bound:
    if isinstance(node, sympy.Rational):
        above, below = abs(int(node.p)), int(node.q)
        log2 = _log2(above) - _log2(below) if above else 0.0
        return _checked(log2, max(above.bit_length(), below.bit_length()))
    if isinstance(node, sympy.Float):
        if not node.is_finite or abs(node._mpf_[2]) > MAX_BITS:
            _refuse()
        return _checked(max(1, int(sympy.Abs(node)).bit_length()), 64)
    if isinstance(node, sympy.MatrixBase):
        return max((_bound(entry) for entry in node.flat()), key=lambda bound: bound.bits, default=Bound(1, 1))
    arguments = getattr(node, "args", ())
    if not arguments:
        return Bound(2, 2)  # symbols, pi, e
    bounds = [_bound(argument) for argument in arguments]
    largest = max(bound.log2 for bound in bounds) + math.log2(len(bounds))
    total = sum(bound.bits for bound in bounds)
    if isinstance(node, sympy.Pow):
        return _power(node, *bounds)
    if isinstance(node, sympy.exp):
        bits = 1.45 * _value(bounds[0]) if node.args[0].is_number else bounds[0].bits
        return _checked(bits, bits)
    if isinstance(node, sympy.log):
        return _checked(math.log2(max(2.0, bounds[0].bits)), total)
    if isinstance(node, _GROWS_LIKE_FACTORIAL) and node.args[0].is_number:
        value = _value(bounds[0])
        bits = value * max(1.0, bounds[0].log2)
        return _checked(bits, bits)
    if isinstance(node, sympy.Mul):
        return _checked(sum(bound.log2 for bound in bounds), total)
    return _checked(largest, total)


def _power(node: sympy.Pow, base: Bound, exponent: Bound) -> Bound:
    if isinstance(node.base, sympy.Integer) and abs(node.base) <= 1:
        return Bound(0, 1)  # (-1)^{10^{100}}
    if isinstance(node.base, sympy.Symbol) and node.exp.is_number:
        return _checked(base.log2, base.bits + exponent.bits)  # nothing is expanded
    if isinstance(node.base, sympy.Rational) and isinstance(node.exp, sympy.Rational) and abs(node.exp) < MAX_BITS:
        size = _log2(abs(int(node.base.p))) - _log2(int(node.base.q))
        return _checked(size * float(node.exp), base.bits * max(1.0, abs(float(node.exp))))
    if not node.exp.is_number:
        return _checked(max(base.log2, exponent.log2), base.bits + exponent.bits)
    # A power of something with symbols is expanded in as many terms as the exponent says.
    times = _value(exponent)
    # A small number in a negative power is a large one.
    log2 = max(base.log2, base.bits if node.exp.is_negative else 0)
    return _checked(log2 * times, base.bits * max(1.0, times))


def _value(bound: Bound) -> float:
    """Upper bound on an absolute value that is to be a count."""
    return 2.0**bound.log2 if bound.log2 <= MAX_BITS.bit_length() + 1 else _refuse()


def _log2(number: int) -> float:
    return math.log2(number) if number.bit_length() < 1000 else float(number.bit_length())


def _checked(log2: float, bits: float) -> Bound:
    return Bound(log2, bits) if bits <= MAX_BITS and log2 <= MAX_BITS else _refuse()


def _refuse() -> NoReturn:
    raise TooLarge
