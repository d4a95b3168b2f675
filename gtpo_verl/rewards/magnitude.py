"""An upper bound on the size of a number before anything computes it: ``9^{9^9}`` has 1.2 billion bits."""

from __future__ import annotations

from typing import Any

import sympy

MAX_BITS = 1_000_000
# Arguments of factorials and their like: 16,384! has 200,000 bits.
_MAX_ARGUMENT_BITS = 14
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


def check_magnitude(expression: Any) -> None:
    """Refuses an unevaluated expression in which some number is too large to compute.

    Args:
        expression: a sympy object; matrices and sets are looked into. Anything else passes.

    Raises:
        TooLarge: a bound on the bits of a sub-expression exceeds `MAX_BITS`.
    """
    _bits(expression)


def _bits(node: Any) -> int:
    if isinstance(node, sympy.Rational):
        return max(int(node.p).bit_length(), int(node.q).bit_length())
    if isinstance(node, sympy.Float):
        if not node.is_finite or abs(node._mpf_[2]) > MAX_BITS:
            _refuse()
        return max(1, int(sympy.Abs(node)).bit_length())
    if isinstance(node, sympy.MatrixBase):
        return max((_bits(entry) for entry in node.flat()), default=1)
    arguments = getattr(node, "args", ())
    if not arguments:
        return 2  # symbols, pi, e
    sizes = [_bits(argument) for argument in arguments]
    if isinstance(node, sympy.Pow):
        # A power of something with symbols is expanded in as many terms as the exponent says.
        bits = sizes[0] * _value_bound(sizes[1]) if node.exp.is_number else max(sizes)
    elif isinstance(node, sympy.exp):
        bits = 2 * _value_bound(sizes[0]) if node.args[0].is_number else sizes[0]
    elif isinstance(node, _GROWS_LIKE_FACTORIAL):
        if sizes[0] > _MAX_ARGUMENT_BITS and node.args[0].is_number:
            _refuse()
        bits = sizes[0] * _value_bound(min(sizes[0], _MAX_ARGUMENT_BITS))
    elif isinstance(node, sympy.Mul):
        bits = sum(sizes)
    else:
        bits = max(sizes) + len(sizes).bit_length()
    return bits if bits <= MAX_BITS else _refuse()


def _value_bound(bits: int) -> int:
    return 2**bits if bits <= MAX_BITS.bit_length() else _refuse()


def _refuse() -> int:
    raise TooLarge
