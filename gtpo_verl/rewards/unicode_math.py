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
    "÷": "/",
    "∕": "/",
    "⁄": "/",
    "π": r"\pi ",
    "√": r"\sqrt",
    "∞": r"\infty ",
    "≤": r" \le ",
    "≥": r" \ge ",
    "≠": r" \neq ",
    "±": r"\pm ",
    "∪": r" \cup ",
    "∩": r" \cap ",
    "∅": r"\emptyset ",
    "∈": r" \in ",
    "∉": r" \notin ",
    "°": r"^\circ ",
    "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}",
    "ℚ": r"\mathbb{Q}",
    "ℕ": r"\mathbb{N}",
    "ℂ": r"\mathbb{C}",
    "α": r"\alpha ",
    "β": r"\beta ",
    "γ": r"\gamma ",
    "θ": r"\theta ",
    "λ": r"\lambda ",
    "。": ".",
    "′": "'",
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
}
_NON_ASCII = re.compile(r"[⁰¹²³⁴-⁹⁺⁻]+|[₀-₉]+|[^\x00-\x7f]")
_VULGAR_FRACTION = re.compile(r"(\d+)⁄(\d+)")


def to_latex(text: str) -> str:
    """Replaces every character outside ASCII by LaTeX or by its compatibility form, one at a time.

    Characters are taken one at a time because normalising long runs of combining marks takes quadratic time.
    """
    return text if text.isascii() else _NON_ASCII.sub(lambda match: _character(match[0]), text)


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
    if unicodedata.category(text) == "Cf":  # zero width
        return ""
    return "".join(_SYMBOLS.get(character, character) for character in plain)
