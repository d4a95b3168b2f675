"""What an answer is, decided before anything parses it: words, a number, a time, an expression, or a list of such.

math-verify tells ``(1,2)`` from ``[1,2]``, but not from ``1,2`` or, in places, from ``\\{1,2\\}``, and multiplies the
letters of a word; so structure and words are read here, and only single expressions go to its parser.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

from gtpo_verl.rewards.normalization import all_text, normalize_answer
from gtpo_verl.rewards.notation import Unreadable, rewrite
from gtpo_verl.rewards.plain import clock, is_words, numeral, plain_number, words
from gtpo_verl.rewards.readings import Combination, Domain, Reading, Relation, Sequence, Value, Words
from gtpo_verl.rewards.units import Unit, split_unit

_MAX_AMBIGUOUS_SIGNS = 3
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|per ?cent)\s*\}|(?<![a-zA-Z])per ?cent)$")
_ALL_REALS = ("all real numbers", "all reals", "real numbers", "the real numbers", "all real numbers x")
_NAMED_RATIO = re.compile(r"[A-Za-z]+(?:\s*:\s*[A-Za-z]+)+")
_RATIO = re.compile(r"\s*([^:|]+?)\s*:\s*([^:|]+?)\s*")
_DOMAIN = re.compile(r"\\(?:mathbb|mathbf|Bbb)\s*(?:\{\s*([RZQNC])\s*\}|([RZQNC]))")
_AMBIGUOUS_POWER = re.compile(r"(?<![\d.])(\d+)e([+-])(\d)(?![\d.])")
_AND = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*,?\s*(?:and|or|und|et)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:lor|vee|land)(?![a-zA-Z]))"
    r"\s*,?\s*"
)
_TOKENS = re.compile(r"\\begin\s*\{\w+\*?\}|\\end\s*\{\w+\*?\}|\\[A-Za-z]+|\\.|[()\[\]{}]|[^\\()\[\]{}]", re.DOTALL)
_RELATIONS = {
    **{"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\neq": "!=", r"\in": "in", r"\approx": "~"},
    **{r"\simeq": "~", r"\sim": "~", r"\cong": "~", r"\equiv": "==", r"\notin": "notin"},
}
_SET_OPERATORS = (r"\cup", r"\cap", r"\setminus")
_DERIVATIVE = re.compile(r"\s*[A-Za-z]'{1,3}\s*(?:\(\s*[a-z]\s*\))?\s*")
_BUILDER = re.compile(r"^\\\{\s*(?:(?:[^|:{}]|\{[A-Z]\})*?)\s*(?:\||:|\\mid(?![a-z]))\s*([^|]*)\\\}$")
_FRENCH = re.compile(r"^([\[\]])([^\[\](){}]*[,;][^\[\](){}]*)([\[\]])$")
_PLAIN_SET = re.compile(r"^\{([^{}]*,.*)\}$")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """What an answer is.

    Args:
        text: an answer as `normalize_answer` gives it, not empty.

    Raises:
        Unreadable: nothing that is compared otherwise than as it stands.
        Undefined: a number divided by zero, or infinity computed with.
        RecursionError: brackets nested hundreds deep.
    """
    text = text.strip()
    inside = all_text(text)
    if inside is not None:
        inside = normalize_answer(inside)
        if words(inside).text in _ALL_REALS:
            return Domain("R")
        if is_words(inside, quoted=True):
            return words(inside, quoted=True)
        return read(inside) if inside else words(text)
    if words(text).text in _ALL_REALS:
        return Domain("R")
    for reader in (clock, numeral, plain_number, _domain):
        found = reader(text)
        if found is not None:
            return found
    return _list(text)


def spellings(text: str) -> tuple[str, ...]:
    """The answer, and once more where ``2e-1`` in it may also say 2 e - 1."""
    other = _AMBIGUOUS_POWER.sub(r"\1 e \2 \3", text)
    return (text,) if other == text else (text, other)


def _domain(text: str) -> Domain | None:
    found = _DOMAIN.fullmatch(text)
    return Domain(found[1] or found[2]) if found else None


def _list(text: str) -> Reading:
    if set_ := _PLAIN_SET.match(text):
        text = rf"\{{{set_[1]}\}}"
    if builder := _BUILDER.match(text):
        return read(builder[1])
    if french := _FRENCH.match(text):
        text = f"{'(' if french[1] == ']' else '['}{french[2]}{')' if french[3] == '[' else ']'}"
    joined = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text) if _depth_zero_only(text) else text
    items, joint = _split(joined, words_between=True)
    if len(items) > 1:
        return Sequence("", tuple(read(item) for item in items), "", joint)
    return _relation(joined)


def _depth_zero_only(text: str) -> bool:
    """Commas within brackets are thousands separators only beside commas that separate by a space."""
    return re.search(r"[(\[]|\\\{", text) is None or re.search(r", |;", text) is not None


def _relation(text: str) -> Reading:
    parts, joints = _split_at(text, dict.fromkeys(_SET_OPERATORS, ""))
    if joints and all(set(_split_at(part, _RELATIONS)[1]) - {r"\in"} for part in parts):  # x < 1 \cup x > 2
        return Combination(tuple(joints), tuple(map(read, parts)))
    pieces, operators = _split_at(text, _RELATIONS)
    if operators:
        if operators[0] in ("=", "~") and not pieces[0].strip():
            pieces, operators = pieces[1:], operators[1:]
        if any(not piece.strip() for piece in pieces):
            raise Unreadable("a relation without a side")
        if operators:
            return Relation(tuple(_RELATIONS[operator] for operator in operators), tuple(map(_side, pieces)))
        return read(pieces[0])
    if joints:
        return Combination(tuple(joints), tuple(map(read, parts)))
    return _bracketed(text)


def _side(text: str) -> Reading:
    """A side of a relation, which may be the name of a derivative: f'(x)."""
    return Words("".join(text.split())) if _DERIVATIVE.fullmatch(text) else read(text)


def _bracketed(text: str) -> Reading:
    text = text.strip()
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return Sequence("{", (), "}")
    if text.startswith("{") and text.endswith("}") and _closes_at_end(text):
        return read(text[1:-1])
    opening = next((mark for mark in (r"\{", "(", "[") if text.startswith(mark)), None)
    closing = next((mark for mark in (r"\}", ")", "]") if text.endswith(mark)), None)
    if opening and closing and _closes_at_end(text):
        inside = text[len(opening) : -len(closing)]
        items, _ = _split(inside, words_between=opening == r"\{")
        if (opening == r"\{") != (closing == r"\}"):
            raise Unreadable("brackets that do not match")
        if len(items) > 1 or opening == r"\{":
            return Sequence(opening[-1], tuple(read(item) for item in items), closing[-1])
        if opening + closing in ("()", "[]"):
            inner = read(inside)
            if not isinstance(inner, Value) or inner.number is not None:
                return inner
    return _value(text)


def _value(text: str) -> Value | Words:
    whole = text
    without_percent = _PERCENT.sub("", text).strip()
    percent = without_percent != text and without_percent != ""
    unit: Unit = ()
    if percent:
        text = without_percent
    else:
        text, unit = split_unit(text)
    text = text.strip()
    if text != whole and (number := plain_number(text)):
        return Value(number.text, number.number, number.decimal, None, unit, percent)
    ratio = _RATIO.fullmatch(text)
    if ratio and not is_words(text) and not _NAMED_RATIO.fullmatch(text):
        above, below = (plain_number(part) for part in ratio.groups())
        if above and below and above.number is not None and below.number:
            return Value(text, above.number / below.number, False, None, unit, percent)
        text = rf"\frac{{{ratio[1]}}}{{{ratio[2]}}}"
    if is_words(text) or _NAMED_RATIO.fullmatch(text):
        return words(whole)
    expression = rewrite(text)
    return Value(text, None, expression.decimal, expression, unit, percent)


def _split(text: str, words_between: bool) -> tuple[list[str], str]:
    """The pieces between separators outside every bracket, each sign of a plus-or-minus for itself.

    Args:
        words_between: "and" and "or" separate too.

    Returns:
        The pieces, and which word stood between them, if one did.
    """
    joint = ""
    if words_between:
        place = 0
        written = []
        for found in _AND.finditer(text):
            if text[: found.start()].count("{") == text[: found.start()].count("}"):
                joint = "or" if "or" in found[0] or "vee" in found[0] or joint == "or" else "and"
                written.append(text[place : found.start()])
                place = found.end()
        text = ",".join((*written, text[place:]))
    pieces, separators = _split_at(text, dict.fromkeys((",", ";"), ""))
    pieces = [piece.strip() for piece in pieces]
    while len(pieces) > 1 and not pieces[-1]:
        pieces.pop()
    if separators and not all(pieces):
        raise Unreadable("a list with nothing between two separators")
    return [signed for piece in pieces for signed in _signs(piece)], joint


def _signs(text: str) -> list[str]:
    r"""What ``1 \pm 2`` stands for; a set in braces is left for later."""
    ambiguous = re.findall(r"\\(?:pm|mp)(?![A-Za-z])", text)
    if not ambiguous or text.startswith(r"\{"):
        return [text]
    if len(ambiguous) > _MAX_AMBIGUOUS_SIGNS:
        raise Unreadable("too many ambiguous signs")
    coupled = r"\mp" in ambiguous  # the signs are then opposite throughout
    written = []
    for signs in product("+-", repeat=1 if coupled else len(ambiguous)):
        pieces = re.split(r"\\(pm|mp)(?![A-Za-z])", text)
        for place in range(1, len(pieces), 2):
            sign = signs[0] if coupled else signs[place // 2]
            pieces[place] = {"+": "-", "-": "+"}[sign] if pieces[place] == "mp" else sign
        written.append("".join(pieces))
    return written


def _split_at(text: str, separators: dict[str, str]) -> tuple[list[str], list[str]]:
    pieces, found, depth = [""], [], 0
    for token in _TOKENS.findall(text):
        if token in separators and depth == 0:
            found.append(token)
            pieces.append("")
            continue
        if token in ("(", "[", "{", r"\{", r"\lfloor", r"\lceil") or token.startswith(r"\begin"):
            depth += 1
        elif token in (")", "]", "}", r"\}", r"\rfloor", r"\rceil") or token.startswith(r"\end"):
            depth -= 1
        pieces[-1] += token
    return pieces, found


def _closes_at_end(text: str) -> bool:
    """Whether the first bracket is closed by the last one."""
    depth = 0
    tokens = _TOKENS.findall(text)
    for number, token in enumerate(tokens):
        if token in ("(", "[", "{", r"\{"):
            depth += 1
        elif token in (")", "]", "}", r"\}"):
            depth -= 1
            if depth == 0:
                return number == len(tokens) - 1
    return False
