"""Decimals as exact fractions."""

from __future__ import annotations

import re
from fractions import Fraction


def decimal(text: str) -> Fraction:
    """The value of ``1.5`` or ``1.5e-3``."""
    mantissa, _, exponent = text.lower().partition("e")
    return Fraction(mantissa.rstrip(".") or "0") * Fraction(10) ** int(exponent or 0)


def repeating_decimal(text: str) -> Fraction:
    r"""The value of ``0.1\overline{6}``, ``0.1(6)`` or ``0.1666...``."""
    whole, _, fraction = text.partition(".")
    if found := re.fullmatch(r"(\d*)\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?", fraction):
        once, period = found[1], found[2] + found[3] + found[4]
    elif found := re.fullmatch(r"(\d*)(?:\\overline|\\bar|\\dot|\()\s*\{?\s*(\d+)\s*[})]?", fraction):
        once, period = found[1], found[2]
    else:
        digits = re.sub(r"\D", "", fraction)
        period = next(
            digits[-length:]
            for length in range(1, len(digits))
            if digits.endswith(digits[-length:] * (3 if length == 1 else 2))
        )
        once = digits[: -len(period)]
    value = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(once))
    return Fraction(int(whole or 0)) + Fraction(int(once or 0), 10 ** len(once)) + value
