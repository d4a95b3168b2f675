"""One spelling for answers that mean the same: decoration away, LaTeX without what only changes its looks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from gtpo_verl.rewards.thoughts import without_tags
from gtpo_verl.rewards.unicode_math import to_latex

_LONG = 20_000  # no answer whatever stands around it, and each round of taking a sign off copies it
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PAIRS = (
    ("**", "**"),
    ("__", "__"),
    ("`", "`"),
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ('"', '"'),
)
# Both or none of them: one alone may belong to the answer.
_WHOLE_PAIRS = (("*", "*"), ("_", "_"), ("'", "'"))
_LEADING = re.compile(
    r"^(?:[-=]+>|=(?!>)|:(?!\d)|~|\\(?:approx|simeq|sim|cong|implies|Rightarrow|rightarrow|to|therefore|quad|qquad)(?![A-Za-z]))\s*"
)
_TRAILING = re.compile(
    r"(?:[,;:?]|(?<!\\)\\\\|(?<!\\)\\[,;!: .]|\\q?quad|\\(?:blacksquare|square|Box|qed|checkmark)(?:\{\})?)$"
)
_PLAIN = r"([+-]?\s*(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
_PLAIN_NUMBER_IN_BRACKET = re.compile(rf"[(\[{{]*{_PLAIN}[)\]}}]+|[(\[{{]+{_PLAIN}")
_DISPLAY = re.compile(r"\\(?:begin|end)\{(?:align|aligned|equation|gather|gathered|center|split|math)\*?\}")

_THOUSANDS_MARK = (
    r"(?:\s*(?:\{,(?:\\!)?\}|\\(?:text|mbox|mathord|mathpunct)\s*\{,\}|,\\!|\\,|(?<!\\)\\ |\\!,|\\!|\\;|~)\s*)"
)
_MARKED_THOUSANDS = re.compile(rf"(?<![\d.])([1-9]\d{{0,2}}(?:{_THOUSANDS_MARK}\d{{3}})+)(?!\d|{_THOUSANDS_MARK}\d)")


def _primes(found: re.Match[str]) -> str:
    return "'" * found[0].count("prime")


_REPLACEMENTS: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|[bB]ig{1,2}[lrm]?)(?=[^a-zA-Z])\.?", ""),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:lbrack)(?![a-zA-Z])", "["),
        (r"\\(?:rbrack)(?![a-zA-Z])", "]"),
        (r"\\langle(?![a-zA-Z])", "("),
        (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\\(?:lvert|rvert|vert)(?![a-zA-Z])", "|"),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|tiny|small|large|Large)(?![a-zA-Z])", ""),
        (r"\\lg(?![a-zA-Z])", r"\\log"),
        (r"\\colon(?![a-zA-Z])", ":"),
        (r"\\not\s*=", r"\\neq "),
        (r"\\not\s*\\in(?![a-zA-Z])", r"\\notin "),
        (r"\\big(?=cup|cap)(cup|cap)(?![a-zA-Z_])", r"\\\1"),
        (r"(?<=[)\]])\s*U\s*(?=[(\[]|\\\{)", r" \\cup "),
        (r"(\\mathbb\s*(?:\{\s*[RQZNC]\s*\}|[RQZNC]))\s*-\s*(?=\\\{)", r"\1 \\setminus "),
        # What only paints or underlines; the switches \rm and \bf as the commands with braces.
        (r"\\(?:textcolor|colorbox|color)\s*\{[^{}]*\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1"),
        (r"\\color\s*\{[^{}]*\}", ""),
        (r"\\(?:underline|ensuremath)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1"),
        (r"\\emph(?=\s*\{)", r"\\text"),
        (r"\\mathtt(?=\s*\{)", r"\\mathrm"),
        (r"\{\s*\\(rm|bf|it|sf|tt)(?![a-zA-Z])\s*([^{}]*)\}", r"\\mathrm{\2}"),
        (r"^\\(?:rm|bf|it|sf|tt)(?![a-zA-Z])\s*", ""),
        (r"\\rm(?![a-zA-Z])\s*([A-Za-z]+)$", r"\\mathrm{\1}"),
        (r"\\(?:text|mathrm)\s*\{\s*(\\?[$€£¥₹₩₽¢])\s*\}", r"\1"),
        (r"(?<=\d)\\(?:mathrm|text)\s*\{\s*[eE]\s*\}(?=\d)", "e"),
        (r"\\(vec|hat|bar|tilde|mathbf|mathrm|overline)\s+([A-Za-z])(?![A-Za-z])", r"\\\1{\2}"),
        (r"(\\(?:begin|end)\s*\{[pbvBV]?)smallmatrix(?=\})", r"\1matrix"),
        (r"(\\(?:max|min|gcd))\s*\\\{([^{}\\]*)\\\}", r"\1(\2)"),
        (r"\^\s*\{?\s*\\(?:top|intercal|mathsf\s*\{T\}|mathrm\s*\{T\}|text\s*\{T\})(?![a-zA-Z])\s*\}?", "^T"),
        (r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|(\\prime)(?![a-zA-Z]))", _primes),
        (r"(?:\{\}\s*)?[_^]\s*\{?(\d{1,3})\}?\s*C\s*_\s*\{?(\d{1,3})\}?", r"\\binom{\1}{\2}"),
        (r"^\{(\d+)\}(?=\s*\\[dt]?frac)", r"\1"),
        (r"^(-?\d+)\s*\{\s*(\\[dt]?frac\s*(?:\{\d+\}|\d)\s*(?:\{\d+\}|\d))\s*\}$", r"\1\2"),
        (r"^([^{}\\]+)\\over(?![a-zA-Z])\s*([^{}\\]+)$", r"\\frac{\1}{\2}"),
        (r"\\phantom\s*(?:\{[^{}]*\}|[-+])", ""),
        (r"\\hspace\*?\s*\{[^{}]*\}", " "),
        # TeX puts no space after \!, and the others are spaces.
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[;:,> ]|(?<!\\)~|\\q?quad(?![a-zA-Z])|\\(?:thin|med|thick)space(?![a-zA-Z])", " "),
        (r"\\(?:[dtcs]|nice)frac(?![a-zA-Z])", r"\\frac"),
        (r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"(?<![\\a-zA-Z])sqrt\s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])", r"\\le"),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])", r"\\ge"),
        (r"\\ne(?![a-zA-Z])", r"\\neq"),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:varnothing|emptyset)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:smallsetminus|backslash)(?![a-zA-Z])", r"\\setminus"),
        (r"\\(?:text(?:bf|it|sf|tt|md|rm|normal|up)|mbox)(?=\s*\{)", r"\\text"),
        (r"\\degree(?![a-zA-Z])", r"^\\circ "),
        (r"\^\s*\{\s*(?:\\circ|\\(?:text|mathrm)\s*\{\s*o\s*\})\s*\}", r"^\\circ "),
        (r"\\(?:cdotp|ast|star)(?![a-zA-Z])", r"\\cdot"),
        (r"(?<!\\)\\\*", r"\\cdot "),
        (r"(?<!\\)\$", ""),
        (r"(?<![a-zA-Z])\{:\}", ":"),
        (r"\((\s*\\(?:bmod|pmod|mod)(?![a-z])[^()]*)\)", r"\1"),
        (r"\s*(?<!\\)\\(?:bmod|pmod|mod)\s*(?:\{\s*(\w+)\s*\}|(\d+))", r" \\pmod{\1\2} "),
        (r"\*\*", "^"),
        (r"<=|=<", r"\\le "),
        (r">=|=>", r"\\ge "),
        (r"!=", r"\\neq "),
        (r"(?<=\d) ?[xX] ?(?=10 ?\^)", r" \\times "),
        (r"\s+", " "),
    )
]
_ENUMERATED = re.compile(r"^\(?\s*([a-zA-Z])\s*\)$")
_ALL_TEXT = re.compile(
    r"^\\(?:text|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname)\s*\{((?:[^{}]|\{[^{}]*\})*)\}$"
)


def strip_decoration(text: str) -> str:
    """Takes tags, control characters, math delimiters, bold, quotes and the signs around an answer off."""
    text = _CONTROL.sub("", without_tags(text)).strip()
    while len(text) <= _LONG:
        before = text
        for opening, closing in _PAIRS:
            # One of the two may be missing: the other was taken for the end of "Answer:", or never written.
            text = text.removeprefix(opening).strip()
            if not (closing == "$" and text.endswith(r"\$")):
                text = text.removesuffix(closing).strip()
        for opening, closing in _WHOLE_PAIRS:
            if len(text) > 2 and text.startswith(opening) and text.endswith(closing):
                text = text[1:-1].strip()
        if text.endswith(".") and not text.endswith(("..", r"\.")):
            text = text[:-1].rstrip()
        text = _TRAILING.sub("", _LEADING.sub("", text)).strip()
        if text == before:
            break
    return text


def normalize_answer(text: str) -> str:
    """The spelling of an answer that is compared and parsed: LaTeX on one line; empty if nothing is left.

    Args:
        text: an answer, at most a few thousand characters: the time is quadratic in runs of combining marks.
    """
    text = strip_decoration(unicodedata.normalize("NFC", to_latex(text)))
    text = _MARKED_THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    if r"\begin" in text:
        without_display = _DISPLAY.sub("", text)
        if without_display != text and r"\\" not in without_display:
            text = without_display.replace("&", "")
    # Escaped twice; in a matrix it would be the beginning of a row.
    if r"\begin" not in text and re.search(r"\\\\[A-Za-z]", text):
        text = re.sub(r"\\{2,}", r"\\", text)
    for pattern, by in _REPLACEMENTS:
        text = pattern.sub(by, text)
    text = strip_decoration(text)
    if number := _PLAIN_NUMBER_IN_BRACKET.fullmatch(text):
        text = _number_without_stray_bracket(text, number[1] or number[2])
    if letter := _ENUMERATED.match(text):
        text = letter[1]
    return text


def all_text(text: str) -> str | None:
    r"""What stands in the braces of an answer that is one ``\text{...}``."""
    found = _ALL_TEXT.match(text)
    return None if found is None else found[1].strip()


def _number_without_stray_bracket(text: str, number: str) -> str:
    """``13]`` is 13: half of ``\\[13\\]`` was taken for decoration, or a bracket of the sentence is left."""
    opened = sum(map(text.count, "([{"))
    closed = sum(map(text.count, ")]}"))
    return number if opened != closed else text
