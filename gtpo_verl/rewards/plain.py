"""What needs no structure to be read: numbers, times, digits in a base, words."""

from __future__ import annotations

import re
from fractions import Fraction
from math import gcd

from gtpo_verl.rewards.notation import BRACKETS, MAX_LETTERS, PLAIN_COMMANDS, Undefined
from gtpo_verl.rewards.readings import Clock, Numeral, Value, Words

_NUMBER = re.compile(r"([+-]*)\s*(?:([1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+)(?:\.(\d*))?|\.(\d+))")
_RATIO = re.compile(
    r"([+-]*)\s*(?:\\frac\s*\{\s*([+-]?)\s*(\d{1,99})\s*\}\s*\{\s*(\d{1,99})\s*\}|(\d{1,99})\s*/\s*(\d{1,99})"
    r"|\\frac\s*(\d)\s*(\d))"
)
_DIGITS = 1000  # Python converts no more than 4,300, in quadratic time
_NUMERAL = re.compile(
    r"(-?(?:[0-9A-Z]+(?:\.[0-9A-Z]+)?|[0-9a-f]+(?=\s*_\s*\{?\s*16\b)))\s*_\s*(?:\{\s*(\d{1,2})\s*\}|(\d{1,2}))"
)
_NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {name: f"{{{base}}}" for base, name in enumerate(_NUMBER_WORDS, start=2)} | {"sixteen": "{16}"}
_CLOCK = re.compile(r"(\d{1,4})\s*:\s*(\d{1,4})(?:\s*:\s*(\d{1,4}))?\s*([ap]\.?\s?m\b\.?)?", re.IGNORECASE)
_NAMED_HOURS = {"noon": "12:00 pm", "12 noon": "12:00 pm", "midnight": "12:00 am", "12 midnight": "12:00 am"}
_HOUR = re.compile(r"(\d{1,2})\s*([ap]\.?\s?m\b\.?)", re.IGNORECASE)
# A sign or a point within a number is none; a hyphen within a word is.
_PUNCTUATION = re.compile(r"[\"'`;!?~$]|[.,:](?!\d)|(?<=[a-z])-(?=[a-z])")
_UPRIGHT = re.compile(r"\\text\s*\{\s*([^{}]*?)\s*\}")
_ENUMERATED = re.compile(r"^\(\s*([A-Za-z])\s*\)$")


def plain_number(text: str) -> Value | None:
    found = _NUMBER.fullmatch(text)
    if found and (found[2] or found[4]) and len(text) <= _DIGITS:
        digits = f"{re.sub(r'[ ,]', '', found[2] or '0')}.{found[3] or found[4] or '0'}"
        negative = found[1].count("-") % 2
        decimal = bool(found[3] or found[4])
        return Value(text, -Fraction(digits) if negative else Fraction(digits), decimal)
    ratio = _RATIO.fullmatch(text)
    if ratio:
        above, below = int(ratio[3] or ratio[5] or ratio[7]), int(ratio[4] or ratio[6] or ratio[8])
        negative = (ratio[1] + (ratio[2] or "")).count("-") % 2
        if not below:
            raise Undefined("a division by zero")
        return Value(text, Fraction(-above if negative else above, below))
    return None


def clock(text: str) -> Clock | None:
    plain = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r" \1 ", text).strip()
    plain = _NAMED_HOURS.get(plain.casefold(), plain)
    if found := _CLOCK.fullmatch(plain):
        parts = tuple(int(part) for part in found.groups()[:3] if part is not None)
        is_time = all(len(part) == 2 and int(part) < 60 for part in found.groups()[1:3] if part is not None)
        return Clock(parts if is_time else _lowest(parts), _half(found[4]), is_time)
    if (found := _HOUR.fullmatch(plain)) and int(found[1]) <= 12:
        return Clock((int(found[1]), 0), _half(found[2]), True)
    return None


def _lowest(parts: tuple[int, ...]) -> tuple[int, ...]:
    divisor = gcd(*parts)
    return tuple(part // divisor for part in parts) if all(parts) else parts  # 1:0 is not 2:0


def _half(text: str | None) -> str:
    return re.sub(r"[^apm]", "", (text or "").lower())


def numeral(text: str) -> Numeral | None:
    text = re.sub(r"\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=_)\s*\{?\s*([a-z]{3,11})\s*\}?$", lambda match: _BASES.get(match[1], match[0]), text)
    found = _NUMERAL.fullmatch(re.sub(r"^\((-?\d+)\)(?=\s*_)", r"\1", text))
    if found is None or not any(map(str.isdigit, found[1])):
        return None
    sign, digits = ("-", found[1][1:]) if found[1].startswith("-") else ("", found[1])
    return Numeral(sign + (digits.lstrip("0") or "0"), int(found[2] or found[3]))


def words(text: str, quoted: bool = False) -> Words:
    r"""Text in the spelling that is compared.

    Args:
        text: as normalised.
        quoted: it stood in ``\text{}``, so that it is no product of symbols.
    """
    plain = re.sub(r"\\(?:text|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}", r" \1 ", text.casefold())
    plain = re.sub(r"\\([a-z]+)|[{}]", r" \1 ", _PUNCTUATION.sub(" ", plain))
    if letter := _ENUMERATED.match(plain.strip()):
        plain = letter[1]
    letters = text if not quoted and re.fullmatch(rf"[A-Za-z]{{1,{MAX_LETTERS}}}", text) else ""
    return Words(" ".join(plain.split()), letters)


def is_words(text: str, quoted: bool = False) -> bool:
    r"""Whether an answer is text: a bare word that is no symbol or function, whatever its length, or several words.

    Args:
        quoted: it stood in ``\text{}``, so that a single letter is text too.
    """
    plain = _UPRIGHT.sub(lambda match: match[1] if _is_symbol(match[1]) else " word ", text)
    # Names of what is drawn: \triangle ABC, \overline{AB}, \angle A.
    plain = re.sub(r"\\(?:triangle|angle|odot|square)(?![A-Za-z])", " name ", plain)
    plain = re.sub(r"\\(?:overline|overrightarrow|widehat|overarc)\s*\{[A-Z\s]*\}", " name ", plain)
    plain = re.sub(r"\\(?:mathrm|operatorname)\s*\{\s*([A-Za-z ]*)\s*\}", r" \1 ", plain)
    plain = re.sub(r"\\(?:begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", plain)
    runs = re.findall(r"[A-Za-z]+", plain)
    known = [run for run in runs if run in (*PLAIN_COMMANDS, *BRACKETS, "and", "or", "am", "pm")]
    if quoted and runs and re.fullmatch(r"[(\s]*[A-Za-z]+(?:[\s'-]+[A-Za-z]+)*[)\s]*", plain):
        return not known or len(known) < len(runs)
    if re.fullmatch(r"\s*[A-Za-z]{2,}\s*", plain) and plain.strip() == text.strip():
        return not known
    if any(len(run) > 3 and not _is_function_of_letter(run) for run in runs if run not in known):
        return True
    # Two words of two letters or more, side by side: "no one", not "2ab + cd".
    return bool(re.search(r"(?<![A-Za-z])[A-Za-z]{2,} +[A-Za-z]{2,}(?![A-Za-z])", plain)) and not known


def _is_symbol(text: str) -> bool:
    return len(text) == 1 or text in PLAIN_COMMANDS


def _is_function_of_letter(run: str) -> bool:
    return run[:-1] in PLAIN_COMMANDS
