"""What an answer can be. `gtpo_verl.rewards.reading` decides which."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gtpo_verl.rewards.notation import Expression
from gtpo_verl.rewards.units import Unit


@dataclass(frozen=True)
class Words:
    """Text: it equals the same words, whatever their case.

    Attributes:
        text: in the spelling that is compared.
        letters: the letters, if it is a bare word that could be a product of symbols, such as xy.
    """

    text: str
    letters: str = ""


@dataclass(frozen=True)
class Value:
    """One expression or number.

    Attributes:
        text: as normalised, without unit and percent sign.
        number: its value, where it is plain number.
        decimal: the number is written with a decimal point.
        expression: what latex2sympy2 is to read, where it is no plain number.
        unit: empty if none is said.
        percent: a percent sign followed.
    """

    text: str
    number: Fraction | None = None
    decimal: bool = False
    expression: Expression | None = None
    unit: Unit = ()
    percent: bool = False

    @property
    def expression_is_letter(self) -> bool:
        """Whether it is one letter: a symbol, or the letter of a choice."""
        return self.number is None and len(self.text) == 1 and self.text.isalpha()


@dataclass(frozen=True)
class Clock:
    """Numbers with colons between: a time of the day, a duration, or a ratio.

    Attributes:
        parts: of a ratio in lowest terms.
        half: ``am``, ``pm`` or empty.
        is_time: all parts but the first have two digits and are below 60.
    """

    parts: tuple[int, ...]
    half: str
    is_time: bool

    @property
    def on_24_hours(self) -> tuple[int, ...]:
        """The parts, in hours since midnight where the half of the day is known."""
        hour = self.parts[0] % 12 + (12 if self.half == "pm" else 0) if self.half else self.parts[0]
        return (hour, *self.parts[1:])


@dataclass(frozen=True)
class Numeral:
    """Digits in a base; their value is not what is asked for."""

    digits: str
    base: int


@dataclass(frozen=True)
class Domain:
    r"""A set with a letter of its own, such as ``\mathbb{R}``."""

    letter: str


@dataclass(frozen=True)
class Sequence:
    """Items in brackets: a tuple or an interval in ``(`` or ``[``, a set in ``{``, a list without any.

    Attributes:
        joint: ``and`` or ``or`` if such a word stands between its items.
    """

    opening: str
    items: tuple[Reading, ...]
    closing: str
    joint: str = ""


@dataclass(frozen=True)
class Combination:
    r"""Sets joined by ``\\cup``, ``\\cap`` or ``\\setminus``."""

    operators: tuple[str, ...]
    parts: tuple[Reading, ...]


@dataclass(frozen=True)
class Relation:
    """A chain such as ``x = 2`` or ``-2 < x < 7``, or a member of a set."""

    operators: tuple[str, ...]
    sides: tuple[Reading, ...]


Reading = Words | Value | Clock | Numeral | Domain | Sequence | Combination | Relation
