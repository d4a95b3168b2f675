"""One spelling for answers that mean the same: decoration and units away, percent set apart."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from gtpo_verl.rewards.unicode_math import to_latex

# Tokens that end a turn, in the spellings of the model families people train.
_SPECIAL_TOKENS = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?s>|<(?:eos|bos|pad|end_of_turn|eot_id)>|\[/?INST\]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PAIRS = (("**", "**"), ("__", "__"), ("`", "`"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))

_REPLACEMENTS = [
    (re.compile(pattern), by)
    for pattern, by in (
        # A thin space, a group in braces or a space between groups of three digits is a thousands separator.
        (r"(?<=\d)(?:\{,\}|\\,|\\ |\\!,|,\\!|~| )(?=\d{3}(?!\d))", ","),
        (r"\\(?:left|right|big|Big|bigg|Bigg)(?=[^a-zA-Z])\.?", ""),
        (r"\\(?:displaystyle|limits)(?![a-zA-Z])", ""),
        (r"\\[!;:,> ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])", r"\\le"),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])", r"\\ge"),
        (r"\\(?:varnothing)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)(?=\s*\{)", r"\\text"),
        (r"\\?\$", ""),
        (r"\*\*", "^"),
        (r"(?<![\\a-zA-Z])(?:pi)(?![a-zA-Z])", r"\\pi "),
        (r"(?<![\\a-zA-Z])(?:infinity|infty|oo)(?![a-zA-Z])", r"\\infty "),
        (r"\\?(?<![a-zA-Z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\s+", " "),
    )
]
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|percent)\s*\}|(?<![a-zA-Z])percent)$")
_DEGREES = re.compile(r"\s*(?:\^\s*\\circ|\^\s*\{\s*\\circ\s*\}|(?<![a-zA-Z\\])degrees?)$")
_UNIT_TEXT = re.compile(r"(?<=[\d}\s)a-z])\s*\\text\s*\{([^{}]*)\}\s*(?:\^\s*\{?\d\}?)?$")
_UNIT_WORDS = re.compile(r"^([+-]?[\d.,]*\d)\s+([a-zA-Z]{3,}(?: [a-zA-Z]{2,})*)\.?$")
# Words that change the value, so that they are no units.
_NUMBER_WORDS = frozenset(
    """
    and or hundred hundreds thousand thousands million millions billion billions trillion dozen dozens
    times mod to over half halves third thirds quarter quarters fourths fifths sixths plus minus cos sin
    tan log exp not
    """.split()  # noqa: SIM905 - a list of strings is four times as long
)
_TEXT = re.compile(r"^\\text\s*\{([^{}]*)\}$")
_PLAIN_SET = re.compile(r"^\{([^{}]*,[^{}]*)\}$")
_LETTER_IN_PARENTHESES = re.compile(r"^\(([a-zA-Z])\)$")


class Answer(NamedTuple):
    """An answer in the spelling that is compared and parsed."""

    text: str
    """LaTeX on one line without decoration, unit or percent sign."""
    percent: bool
    """A percent sign followed."""


def strip_decoration(text: str) -> str:
    """Takes special tokens, control characters, math delimiters, bold, and the final full stop off an answer."""
    text = _CONTROL.sub("", _SPECIAL_TOKENS.sub("", text)).strip()
    while True:
        before = text
        for opening, closing in _PAIRS:
            # One of the two may be missing: the other was taken for the end of "Answer:", or never written.
            text = text.removeprefix(opening).removesuffix(closing).strip()
        if text.endswith(".") and not text.endswith(("..", r"\.")):
            text = text[:-1].rstrip()
        if text == before:
            return text


def normalize_answer(text: str) -> Answer:
    """The spelling of an answer that is compared and parsed.

    Args:
        text: an answer, at most a few thousand characters: the time is quadratic in runs of combining marks.
    """
    text = strip_decoration(unicodedata.normalize("NFC", to_latex(text)))
    for pattern, by in _REPLACEMENTS:
        text = pattern.sub(by, text)
    text = _PLAIN_SET.sub(r"\\{\1\\}", text.strip())
    without_percent = _PERCENT.sub("", text)
    percent = without_percent != text and without_percent != ""
    if percent:
        text = without_percent
    text = _without_unit(text)
    if letter := _LETTER_IN_PARENTHESES.match(text):
        text = letter[1]
    return Answer(text, percent)


def words(text: str) -> str | None:
    r"""The words of an answer that is text (``\text{...}``, or a word of four letters or more), else None."""
    inside = _TEXT.match(text)
    plain = (inside[1] if inside else text).strip()
    plain = letter[1] if (letter := _LETTER_IN_PARENTHESES.match(plain)) else plain
    is_text = all(part.isalpha() for part in re.split(r"[\s'-]+", plain) if part) and any(map(str.isalpha, plain))
    if is_text and (inside or len(max(plain.split(), key=len)) >= 4):
        return " ".join(plain.casefold().split())
    return None


def _without_unit(text: str) -> str:
    shorter = _DEGREES.sub("", text)
    text = shorter or text
    unit = _UNIT_TEXT.search(text)
    if unit and not _NUMBER_WORDS.intersection(unit[1].lower().split()):
        text = text[: unit.start()].strip() or text
    unit = _UNIT_WORDS.match(text)
    if unit and not _NUMBER_WORDS.intersection(unit[2].lower().split()):
        text = unit[1]
    return text
