"""Mathematics in Unicode as LaTeX in ASCII, so that both spellings of an answer compare equal."""

# ruff: noqa: RUF001 - the ambiguous characters are what this file is about
from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Symbols whose compatibility form loses the meaning (x² would become x2) or that a LaTeX parser does not know.
_SYMBOLS = {
    **dict.fromkeys("−‐‑‒–—―﹣－", "-"),
    **dict.fromkeys("×✕✖", r" \times "),
    **dict.fromkeys("·⋅∙", r" \cdot "),
    **dict.fromkeys("≈≃≅", r" \approx "),
    **dict.fromkeys("→⇒⟹⟶∴", r" \to "),
    **dict.fromkeys("∗⁎", "*"),
    **dict.fromkeys("«»", '"'),
    "∎": "",
    "ℓ": r"\ell ",
    "ℏ": r"\hbar ",
    "÷": "/",
    "∕": "/",
    "⁄": "/",
    "∶": ":",
    "√": r"\sqrt",
    "∛": r"\sqrt[3]",
    "∞": r"\infty ",
    "≤": r" \le ",
    "⩽": r" \le ",
    "≥": r" \ge ",
    "⩾": r" \ge ",
    "≠": r" \neq ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∪": r" \cup ",
    "∩": r" \cap ",
    "∖": r" \setminus ",
    "∅": r"\emptyset ",
    "∈": r" \in ",
    "∉": r" \notin ",
    "°": r"^\circ ",
    "⌊": r"\lfloor ",
    "⌋": r"\rfloor ",
    "⌈": r"\lceil ",
    "⌉": r"\rceil ",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "∠": r"\angle ",
    "△": r"\triangle ",
    "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}",
    "ℚ": r"\mathbb{Q}",
    "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}",
    "。": ".",
    "，": ",",
    "′": "'",
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
}
_NON_ASCII = re.compile(r"[⁰¹²³⁴-⁹⁺⁻]+|[₀-₉]+|[^\x00-\x7f]")
_VULGAR_FRACTION = re.compile(r"(\d+)⁄(\d+)")
_ROOT_OF_DIGITS = re.compile(r"([√∛])\s?(\d+(?:\.\d+)?)")  # √12 is the root of 12, \sqrt12 that of 1
_BARRED_DIGITS = re.compile(r"(?:\d[\u0304\u0305])+")


def to_latex(text: str) -> str:
    """Replaces every character outside ASCII by LaTeX or by its compatibility form, one at a time.

    Characters are taken one at a time because normalising long runs of combining marks takes quadratic time.
    """
    if text.isascii():
        return text
    text = _ROOT_OF_DIGITS.sub(r"\1{\2}", text)
    text = _BARRED_DIGITS.sub(lambda match: rf"\overline{{{match[0][::2]}}}", text)
    return _NON_ASCII.sub(lambda match: _character(match[0]), text)


@lru_cache(maxsize=4096)
def _character(text: str) -> str:
    if text in _SYMBOLS:
        return _SYMBOLS[text]
    plain = unicodedata.normalize("NFKC", text)
    if text[0] in "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻":
        return "^{" + plain.replace("−", "-") + "}"
    if text[0] in "₀₁₂₃₄₅₆₇₈₉":
        return "_{" + plain + "}"
    if fraction := _VULGAR_FRACTION.fullmatch(plain):
        return rf"\frac{{{fraction[1]}}}{{{fraction[2]}}}"
    if unicodedata.category(text) in ("Cf", "So"):  # zero width; a tick or a star beside an answer
        return ""
    return "".join(_SYMBOLS.get(character) or _greek(character) or character for character in plain)


def _greek(character: str) -> str | None:
    """Small letters only, and the capitals that Latin has not: the other capitals look like Latin ones."""
    name = unicodedata.name(character, "")
    if name.startswith("GREEK SMALL LETTER ") and " WITH " not in name:
        return "\\" + name.removeprefix("GREEK SMALL LETTER ").lower().replace("lamda", "lambda") + " "
    if character in "ΓΔΘΛΞΠΣΦΨΩ":
        return "\\" + name.removeprefix("GREEK CAPITAL LETTER ").capitalize().replace("Lamda", "Lambda") + " "
    return None
