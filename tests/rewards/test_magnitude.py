from __future__ import annotations

import pytest
import sympy
from sympy.core.parameters import evaluate

from gtpo_verl.rewards.magnitude import TooLarge, check_magnitude


def power(base: object, exponent: object) -> sympy.Expr:
    return sympy.Pow(base, exponent, evaluate=False)


LARGE = [
    power(9, power(9, 9)),
    power(sympy.Rational(1, 9), power(9, 9)),
    power(9, sympy.Mul(-1, power(9, 9), evaluate=False)),
    power(power(power(10, 9), 9), 10**9),
    sympy.factorial(power(10, 10), evaluate=False),
    sympy.gamma(10**9, evaluate=False),
    sympy.exp(power(10, 10), evaluate=False),
    sympy.sin(power(10, power(10, 7)), evaluate=False),
    sympy.Tuple(1, power(9, power(9, 9))),
    sympy.Eq(sympy.Symbol("x"), power(9, power(9, 9)), evaluate=False),
    power(sympy.Add(sympy.Symbol("x"), power(2, 10**9), evaluate=False), 2),
    sympy.Float((0, 1, 10**9, 1)),
]


@pytest.mark.parametrize("index", range(len(LARGE)))
def test_numbers_too_large_to_compute_are_refused_without_computing_them(index: int) -> None:
    with pytest.raises(TooLarge):
        check_magnitude(LARGE[index])


def test_a_matrix_is_looked_into() -> None:
    with evaluate(False):
        matrix = sympy.Matrix([[1, power(9, power(9, 9))]])
    with pytest.raises(TooLarge):
        check_magnitude(matrix)


@pytest.mark.parametrize(
    "expression",
    [
        power(2, 2024),
        power(10, 100) + 1,
        sympy.factorial(2024, evaluate=False),
        power(sympy.Symbol("x"), 2024),
        power(2, sympy.Symbol("n")),
        sympy.exp(sympy.Symbol("x")),
        sympy.pi / 2,
        sympy.Interval(-sympy.oo, 2),
        sympy.FiniteSet(1, sympy.sqrt(2)),
        sympy.Float("1e300"),
        sympy.Float("-1e-300"),
        sympy.zoo,
        sympy.nan,
        sympy.EmptySet,
        sympy.true,
        None,
    ],
    ids=str,
)
def test_answers_to_problems_pass(expression: object) -> None:
    check_magnitude(expression)
