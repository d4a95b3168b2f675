"""Equality of answers as they were read: structure here, values by `algebra`. Runs in the worker processes only."""

from __future__ import annotations

from collections.abc import Sequence as List
from functools import reduce
from typing import Any

import sympy

from gtpo_verl.rewards import algebra
from gtpo_verl.rewards.exact import percent_scales, same_text, same_unit, same_without_algebra
from gtpo_verl.rewards.magnitude import TooLarge
from gtpo_verl.rewards.notation import Undefined, Unreadable, rewrite
from gtpo_verl.rewards.number_sets import as_set, is_set, name_of, unknowns
from gtpo_verl.rewards.reading import read, spellings
from gtpo_verl.rewards.readings import Combination, Reading, Relation, Sequence, Value, Words

RIGHT = "right"
WRONG = "wrong"
UNPARSABLE = "unparsable"
UNDEFINED = "undefined"
TOO_LARGE = "too_large"

_ORDERED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def grade(answer: str, truth: str) -> str:
    """Compares an answer with the ground truth.

    Returns:
        `RIGHT`, `WRONG`, `UNPARSABLE` (the answer, or the ground truth, is no mathematics that is understood, and they
        are not written alike), `UNDEFINED` (it has no value), or `TOO_LARGE` (a number in it has more than a million
        bits).
    """
    verdicts = [_grade(one, other) for one in spellings(answer) for other in spellings(truth)]
    return RIGHT if RIGHT in verdicts else verdicts[0]


def _grade(answer: str, truth: str) -> str:
    verdicts = set()
    readings = []
    for text in (answer, truth):
        try:
            readings.append(read(text))
            _evaluate(readings[-1])
        except TooLarge:
            verdicts.add(TOO_LARGE)
        except Undefined:
            verdicts.add(UNDEFINED)
        except (Unreadable, RecursionError):
            verdicts.add(UNPARSABLE)
    if UNDEFINED in verdicts:
        return UNDEFINED
    if verdicts:
        return RIGHT if same_text(answer, truth) else max(verdicts)
    try:
        return RIGHT if equal(*readings) else WRONG
    except MemoryError:
        raise
    except Exception as error:  # sympy raises anything on odd input; none of it makes an answer right
        if same_text(answer, truth):
            return RIGHT
        return TOO_LARGE if isinstance(error, TooLarge) else WRONG


def equal(one: Reading, other: Reading) -> bool:
    """Whether two readings are equal; the same whichever comes first.

    Raises:
        Unreadable, Undefined, TooLarge: an expression in one of them cannot be compared.
    """
    one, other = _result(one, other), _result(other, one)
    if isinstance(one, Relation) != isinstance(other, Relation):
        one, other = _interval(one) or one, _interval(other) or other
    if isinstance(one, Relation) and isinstance(other, Relation) and _same_relation(one, other):
        return True
    one, other = _only_item(one), _only_item(other)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and _same_sequence(*_without_names(one, other)):
        return True
    if is_set(one) and is_set(other):
        return _same_set(one, other)
    known = same_without_algebra(one, other)
    if known is not None:
        return known
    one, other = _symbols(one, other), _symbols(other, one)
    return isinstance(one, Value) and isinstance(other, Value) and _same_value(one, other)


def _only_item(reading: Reading) -> Reading:
    """The set of all solutions, where there is one, is the solution: {13} is 13."""
    if isinstance(reading, Sequence) and reading.opening == "{" and len(reading.items) == 1:
        item = reading.items[0]
        return reading if (is_set(item) and not isinstance(item, Sequence)) or item == Sequence("{", (), "}") else item
    return reading


def _evaluate(reading: Reading) -> None:
    """Computes every expression, so that none without a value is compared."""
    if isinstance(reading, Value):
        algebra.evaluate(reading)
    for part in (*getattr(reading, "items", ()), *getattr(reading, "sides", ()), *getattr(reading, "parts", ())):
        if not isinstance(part, int):
            _evaluate(part)


def _is_decimal(value: Value) -> bool:
    return value.decimal or (value.expression is not None and value.expression.decimal)


def _same_value(one: Value, other: Value) -> bool:
    if not same_unit(one, other):
        return False
    decimals = (_is_decimal(one), _is_decimal(other))
    left, right = algebra.evaluate(one), algebra.evaluate(other)
    return any(
        algebra.same(_scaled(left, factor), _scaled(right, divisor), decimals)
        for factor, divisor in percent_scales(one, other)
    )


def _scaled(value: Any, factor: Any) -> Any:
    return value if factor == 1 else value * sympy.Rational(factor.numerator, factor.denominator)


def _symbols(one: Reading, other: Reading) -> Reading:
    """A bare word of few letters is a product of symbols beside an expression: xy beside x times y."""
    if isinstance(one, Words) and one.letters and isinstance(other, Value) and other.expression is not None:
        product = " ".join(one.letters)
        return Value(product, expression=rewrite(product))
    return one


# Relations ------------------------------------------------------------------------------------------------------------


def _assignment(relation: Reading) -> tuple[str, Reading] | None:
    """The name and the value of ``x = 2``, ``2 = x``, ``x = 1 + 1 = 2`` or ``x in S``."""
    if not isinstance(relation, Relation) or set(relation.operators) - {"=", "~", "in"}:
        return None
    sides = relation.sides
    name = name_of(sides[0])
    if name is None and relation.operators == ("=",):
        sides = (sides[1], sides[0])
        name = name_of(sides[0])
    value = sides[1] if len(sides) == 2 else _consistent(Relation(relation.operators[1:], sides[1:]))
    return None if name is None or value is None else (name, value)


def _consistent(relation: Relation) -> Reading | None:
    """The value of ``1 + 1 = 2`` or ``1/3 ~ 0.33``, if its sides are equal as they say; else None."""
    if set(relation.operators) - {"=", "~"}:
        return None
    sides = relation.sides
    for operator, left, right in zip(relation.operators, sides, sides[1:], strict=False):
        if operator == "~" and isinstance(left, Value) and isinstance(right, Value):
            if not algebra.close(algebra.evaluate(left), algebra.evaluate(right)):
                return None
        elif not equal(left, right):
            return None
    # What stands before the first approximation is exact.
    return sides[relation.operators.index("~") if "~" in relation.operators else -1]


def _result(reading: Reading, beside: Reading) -> Reading:
    """What a relation amounts to beside something that is none: 13 for ``x = 13``."""
    if not isinstance(reading, Relation):
        return reading
    named = _assignment(reading)
    if isinstance(beside, Relation):
        return named[1] if named and reading.operators == ("in",) and _assignment(beside) is None else reading
    return named[1] if named else _consistent(reading) or reading


def _same_relation(one: Relation, other: Relation) -> bool:
    named = _assignment(one), _assignment(other)
    if named[0] and named[1]:
        return named[0][0] == named[1][0] and equal(named[0][1], named[1][1])
    if len(one.operators) != len(other.operators):
        return False
    for candidate in (one, _turned(one)):
        if candidate.operators == other.operators:
            if all(equal(left, right) for left, right in zip(candidate.sides, other.sides, strict=True)):
                return True
            if len(candidate.operators) == 1 and _proportional(candidate, other):
                return True
    return False


def _interval(reading: Reading) -> Reading | None:
    """``a < x <= b`` and ``x > a`` as intervals; None for what is no interval of a symbol."""
    if not isinstance(reading, Relation):
        return None
    if len(reading.sides) == 2 and name_of(reading.sides[0]) is None:
        reading = _turned(reading)
    sides, operators = reading.sides, reading.operators
    if len(sides) == 2:  # of two names the first is the symbol
        if operators[0] in ("<", "<="):
            sides, operators = (read(r"-\infty"), *sides), ("<", *operators)
        else:
            sides, operators = (sides[1], sides[0], read(r"\infty")), (_ORDERED.get(operators[0], ""), "<")
    elif set(operators) <= {">", ">="}:
        turned = _turned(reading)
        sides, operators = turned.sides, turned.operators
    if not set(operators) <= {"<", "<="}:
        return None
    if len(sides) != 3 or name_of(sides[1]) is None or not all(isinstance(side, Value) for side in sides):
        return None
    first, symbol, last = (algebra.evaluate(side) for side in sides if isinstance(side, Value))
    if symbol in first.free_symbols | last.free_symbols:
        return None
    return Sequence("(" if operators[0] == "<" else "[", (sides[0], sides[2]), ")" if operators[1] == "<" else "]")


def _turned(relation: Relation) -> Relation:
    operators = tuple(_ORDERED.get(operator, operator) for operator in reversed(relation.operators))
    return Relation(operators, tuple(reversed(relation.sides)))


def _proportional(one: Relation, other: Relation) -> bool:
    """Whether ``y = 2x+3`` is ``2x - y + 3 = 0``: what remains when all is on one side differs by a factor."""
    if not all(isinstance(side, Value) for side in (*one.sides, *other.sides)):
        return False
    differences = []
    for relation in (one, other):
        left, right = (algebra.evaluate(side) for side in relation.sides if isinstance(side, Value))
        if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
            return False
        differences.append(sympy.together(left - right))
    if any(difference == 0 or not difference.free_symbols for difference in differences):
        return False
    factor = sympy.cancel(differences[0] / differences[1])
    if factor.free_symbols:
        factor = sympy.simplify(factor)
    if factor.free_symbols or not factor.is_finite or factor.is_zero:
        return False
    return one.operators[0] in ("=", "!=") or factor.is_positive is True


# Sequences ------------------------------------------------------------------------------------------------------------


def _without_names(one: Sequence, other: Sequence) -> tuple[Sequence, Sequence]:
    """``x = 1, y = 2`` beside ``1, 2``: the names go where the other side has none."""
    for named, bare in ((one, other), (other, one)):
        if any(isinstance(item, Relation) for item in bare.items):
            continue
        items = [assigned[1] if (assigned := _assignment(item)) else item for item in named.items]
        stripped = Sequence(named.opening, tuple(items), named.closing, named.joint)
        one, other = (stripped, other) if named is one else (one, stripped)
    return one, other


def _same_sequence(one: Sequence, other: Sequence) -> bool:
    unordered = [sequence.opening in ("", "{") for sequence in (one, other)]
    if all(unordered):
        if one.joint != other.joint and "or" in (one.joint, other.joint) and any(map(_is_inequality, one.items)):
            return False  # they may be the same set all the same; that is decided by the numbers in it
        return _matched(_distinct(one), _distinct(other))
    if any(unordered) and "{" in (one.opening, other.opening):
        return False
    if len(one.items) != len(other.items):
        return False
    brackets = {one.opening + one.closing, other.opening + other.closing}
    # A pair may go without its brackets, an interval with its ends may not.
    if len(brackets) > 1 and brackets != {"", "()"}:
        return False
    return all(equal(left, right) for left, right in zip(one.items, other.items, strict=True))


def _is_inequality(reading: Reading) -> bool:
    return isinstance(reading, Relation) and not {*_ORDERED}.isdisjoint(reading.operators)


def _distinct(sequence: Sequence) -> list[Reading]:
    if sequence.opening != "{":
        return list(sequence.items)
    return reduce(
        lambda kept, item: kept if any(equal(item, other) for other in kept) else [*kept, item], sequence.items, []
    )


def _matched(one: List[Reading], other: List[Reading]) -> bool:
    left = list(other)
    if len(one) != len(left):
        return False
    for item in one:
        place = next((place for place, candidate in enumerate(left) if equal(item, candidate)), None)
        if place is None:
            return False
        del left[place]
    return True


def _same_set(one: Reading, other: Reading) -> bool:
    symbols = unknowns(one), unknowns(other)
    if all(symbols) and symbols[0] != symbols[1]:
        return False
    left, right = as_set(one), as_set(other)
    if left is None or right is None:
        return (
            isinstance(one, Combination)
            and isinstance(other, Combination)
            and one.operators == other.operators
            and _matched(one.parts, other.parts)
        )
    return bool(left == right) or bool(left.symmetric_difference(right).is_empty)
