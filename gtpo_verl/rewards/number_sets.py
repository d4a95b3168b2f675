"""Intervals, unions and inequalities as sets of numbers, by sympy. Runs in the worker processes only."""

from __future__ import annotations

from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from gtpo_verl.rewards import algebra
from gtpo_verl.rewards.readings import Combination, Domain, Reading, Relation, Sequence, Value, Words

_NAME_CHARS = 24
_SYMPY_RELATIONS = {"<": sympy.Lt, ">": sympy.Gt, "<=": sympy.Le, ">=": sympy.Ge, "!=": sympy.Ne}
_DOMAINS = {
    "R": sympy.S.Reals,
    "Z": sympy.S.Integers,
    "Q": sympy.S.Rationals,
    "N": sympy.S.Naturals,
    "C": sympy.S.Complexes,
}


def name_of(side: Reading) -> str | None:
    """The name that a relation gives to a value: a symbol, f(x), a pair of symbols, a word."""
    if isinstance(side, Words):
        return side.text if len(side.text) <= _NAME_CHARS else None
    if isinstance(side, Value) and side.expression is not None and not side.unit and not side.percent:
        value = algebra.evaluate(side)
        return str(value) if isinstance(value, sympy.Symbol | AppliedUndef) else None
    if isinstance(side, Sequence) and side.opening == "(" and side.items:
        names = [name_of(item) for item in side.items]
        return ",".join(name for name in names if name) if all(names) else None
    return None


def is_set(reading: Reading) -> bool:
    """Whether a reading may be a set of numbers."""
    if isinstance(reading, Sequence) and reading.opening == "":
        return any(is_set(item) for item in reading.items)
    return (
        isinstance(reading, Combination | Domain)
        or (isinstance(reading, Sequence) and (reading.opening == "{" or len(reading.items) == 2))
        or (isinstance(reading, Relation) and bool(set(reading.operators) & {*_SYMPY_RELATIONS, "in"}))
    )


def unknowns(reading: Reading) -> set[str]:
    """The names of what the relations in a reading are about."""
    if isinstance(reading, Sequence):
        return set().union(*(unknowns(item) for item in reading.items)) if reading.opening == "" else set()
    if not isinstance(reading, Relation):
        return set()
    if reading.operators == ("in",):
        return {name} if (name := name_of(reading.sides[0])) else set()
    return {
        str(symbol)
        for side in reading.sides
        if isinstance(side, Value)
        for symbol in algebra.evaluate(side).free_symbols
    }


def as_set(reading: Reading) -> Any:
    """A set of numbers as sympy's, or None where it is none."""
    if isinstance(reading, Domain):
        return _DOMAINS[reading.letter]
    if isinstance(reading, Combination):
        sets = [as_set(part) for part in reading.parts]
        if any(part is None for part in sets):
            return None
        joined = sets[0]
        for operator, part in zip(reading.operators, sets[1:], strict=True):
            joined = {r"\cup": joined.union, r"\cap": joined.intersect}.get(operator, joined.__sub__)(part)
        return joined
    if isinstance(reading, Relation):
        return _solutions(reading)
    if isinstance(reading, Sequence) and reading.opening == "":
        return _joint_solutions(reading)
    if not isinstance(reading, Sequence) or not all(isinstance(item, Value) for item in reading.items):
        return None
    values = [algebra.evaluate(item) for item in reading.items if isinstance(item, Value)]
    if reading.opening == "{":
        return sympy.FiniteSet(*values)
    if len(values) != 2 or not all(value.is_extended_real for value in values) or (values[0] < values[1]) != True:  # noqa: E712 - sympy's
        return None
    closed = [
        value for value, bracket in zip(values, (reading.opening, reading.closing), strict=True) if bracket in "[]"
    ]
    if any(value.is_infinite for value in closed):
        return None
    return sympy.Interval(*values, reading.opening == "(", reading.closing == ")")


def _joint_solutions(sequence: Sequence) -> Any:
    """``x < 1 or x > 2`` joins, ``x > 1 and x < 2`` cuts; a comma does what leaves something.

    Intervals with a comma between are a list, and no set.
    """
    if sequence.joint != "or" and not all(isinstance(item, Relation) for item in sequence.items):
        return None
    sets = [as_set(item) for item in sequence.items]
    if any(part is None for part in sets):
        return None
    joined, cut = sympy.Union(*sets), sympy.Intersection(*sets)
    return joined if sequence.joint == "or" or (not sequence.joint and cut.is_empty) else cut


def _solutions(relation: Relation) -> Any:
    """The numbers for which a chain of relations in one symbol holds."""
    if relation.operators == ("in",):
        return as_set(relation.sides[1]) if name_of(relation.sides[0]) else None
    if not all(isinstance(side, Value) for side in relation.sides) or set(relation.operators) - set(_SYMPY_RELATIONS):
        return None
    values = [algebra.evaluate(side) for side in relation.sides if isinstance(side, Value)]
    symbols = set().union(*(value.free_symbols for value in values))
    if len(symbols) != 1 or any(isinstance(value, sympy.MatrixBase) for value in values):
        return None
    solutions = sympy.S.Reals
    for operator, left, right in zip(relation.operators, values, values[1:], strict=False):
        solved = _SYMPY_RELATIONS[operator](left, right)
        solutions = solutions.intersect(solved.as_set() if solved not in (True, False) else solved)
    return solutions
