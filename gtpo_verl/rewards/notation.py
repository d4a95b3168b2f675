r"""One expression in LaTeX that latex2sympy2 reads in one way only, or a refusal.

latex2sympy2's grammar is kept for what it is good at. This file decides before it what it would read wrongly or drop:
two numbers side by side (it adds them), ``e`` in a number (Euler's), words (products of their letters), degrees in an
angle, primes, transposes, braces left out after ``\frac`` (by ``\frac12`` it needs help, and its own helper takes
``\frac123`` for 1/23). Decimals become fractions, so that exact values stay exact.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from gtpo_verl.rewards.decimals import decimal, repeating_decimal


class Unreadable(ValueError):
    """Not an expression, or one that could be read in two ways."""


class Undefined(ValueError):
    """An expression without a value, which equals nothing, not even itself."""


class Expression(NamedTuple):
    """An expression for latex2sympy2."""

    latex: str
    decimal: bool
    """Some number in it was written with a decimal point and is therefore rounded."""


_FUNCTION_NAMES = "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln exp max min gcd lcm det"
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
# What people write without a backslash.
PLAIN_COMMANDS = {
    **{name: "\\" + name for name in FUNCTIONS - {"lcm"}},
    "lg": r"\log",
    **{"asin": r"\arcsin", "acos": r"\arccos", "atan": r"\arctan", "lcm": r"\operatorname{lcm}", "sqrt": r"\sqrt"},
    **{"pi": r"\pi", "Pi": r"\pi", "theta": r"\theta", "alpha": r"\alpha", "beta": r"\beta", "phi": r"\phi"},
    **{"infinity": r"\infty", "infty": r"\infty", "inf": r"\infty", "oo": r"\infty"},
}
BRACKETS = {"abs": ("|", "|"), "floor": (r"\lfloor", r"\rfloor"), "ceil": (r"\lceil", r"\rceil")}
MAX_LETTERS = 3  # side by side without a space: 2ab, xyz; longer is a word
_GREEK = """
alpha beta delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi
varphi chi psi omega Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar
"""
_SYMBOLS = frozenset("\\" + name for name in (*_GREEK.split(), "infty"))
_OPERATORS = frozenset((r"\cdot", r"\times", r"\div", "+", "-", "*", "/"))
_BIG = frozenset((r"\sum", r"\prod", r"\int", r"\lim"))
_PASSED = frozenset((r"\to", r"\rightarrow", r"\mathrm", r"\vec", r"\hat", r"\bar", r"\mathbf"))
_OPENING = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", r"\{": r"\}"}
_CLOSING = frozenset(_OPENING.values())

_SCIENTIFIC = r"(?:\d+(?:\.\d*)?[eE][+-]?\d{1,4})(?![\d.^]|(?!i(?![A-Za-z]))[A-Za-z])"
_TOKEN = re.compile(
    rf"(?P<scientific>{_SCIENTIFIC})"
    r"|(?P<repeating>\d*\.\d*(?:\\overline|\\bar|\\dot)\s*\{?\s*\d+\s*\}?(?:\d*\\dot\s*\{?\d\}?)?|\d*\.\d*\(\d+\)(?![\d^!])"
    r"|\d*\.\d*?(?P<period>\d{1,6}?)(?P=period)(?:(?P=period))?(?:\s*(?:\.\.\.|\\[lc]?dots)))"
    r"|(?P<decimal>\d+\.\d+|\.\d+|\d+\.(?!\d))(?:\s*(?:\.\.\.|\\[lc]?dots))?"
    r"|(?P<integer>\d+)"
    r"|(?P<environment>\\begin\s*\{(?:[pbvBV]?matrix|array)\})"
    r"|(?P<accent>\\(?:mathrm|vec|hat|bar|overline|mathbf|tilde|text|operatorname|boldsymbol)\s*\{[^{}]*\})"
    r"|(?P<command>\\[A-Za-z]+|\\.)"
    r"|(?P<letters>[A-Za-z]+)"
    r"|(?P<space>\s+)"
    r"|(?P<sign>[^\sA-Za-z0-9])"
)
_MIXED = re.compile(
    r"(\d+)(?:\s*\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))|\s+(\d+)\s*/\s*(\d+))(?!\s*[\d/^!(])"
)
# 4/3 \pi is four thirds of pi; latex2sympy2 would divide by 3 \pi.
_COEFFICIENT = re.compile(
    r"(\d+)\s*/\s*(\d+)(?=\s*(?:\\(?:pi|sqrt|[a-z]{2,8}(?![a-z]))|[A-Za-z(]))(?!\s*\\(?:cdot|times|div))"
)
_ENVIRONMENT_END = re.compile(r"\\end\s*\{(?:[pbvBV]?matrix|array)\}")


def rewrite(text: str) -> Expression:
    """The expression in the spelling that latex2sympy2 reads in one way.

    Args:
        text: one expression, without commas outside brackets, units and relations; normalised.

    Raises:
        Unreadable: it is none, or could be read in two ways.
        Undefined: it computes with infinity.
    """
    if re.search(r"(?<!\^)(?<!\^\{)\s*\\infty", text) and not re.fullmatch(r"[+-]?\s*\\infty\s*", text):
        raise Undefined("infinity is no number to compute with")
    writer = _Writer(text)
    try:
        writer.write_all()
    except (Unreadable, Undefined):
        raise
    except ValueError as error:  # Python converts no more than 4,300 digits
        raise Unreadable(str(error)) from error
    return Expression(" ".join(writer.written), writer.decimal)


class _Writer:
    """Reads the text from left to right, and remembers what stands to the left."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.written: list[str] = []
        self.decimal = False
        self.trigonometric = bool(re.search(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])", text))
        # What the factor to the left is: a "number", a "bracket", a "factor" of another kind, None if there is none.
        self.left: str | None = None
        self.brackets: list[tuple[str, str | None, int]] = []  # sign, what stood before, where it was written
        self.bars: list[int] = []

    def write_all(self) -> None:
        while self.place < len(self.text):
            self._write_next()
        if self.brackets or self.bars:
            raise Unreadable("a bracket is never closed")
        if not self.written:
            raise Unreadable("nothing")

    def _write_next(self) -> None:
        if (mixed := _MIXED.match(self.text, self.place)) and self.left != "number":
            above, below = int(mixed[2] or mixed[3] or mixed[6]), int(mixed[4] or mixed[5] or mixed[7])
            if 0 < above < below:
                self.place = mixed.end()
                return self._number(Fraction(int(mixed[1])) + Fraction(above, below))
        fraction = _COEFFICIENT.match(self.text, self.place)
        if fraction and self.left is None and int(fraction[2]) and self.written[-1:] != ["/"]:
            self.place = fraction.end()
            return self._number(Fraction(int(fraction[1]), int(fraction[2])))
        token = _TOKEN.match(self.text, self.place)
        if token is None:
            raise Unreadable(self.text[self.place])
        self.place = token.end()
        kind, text = token.lastgroup, token[0]
        if kind == "space":
            return None
        if kind == "integer":
            if text[0] == "0" and len(text) > 1:
                raise Unreadable(f"{text}, as in a date")
            return self._number(Fraction(int(text)), text)
        if kind in ("decimal", "scientific"):
            self.decimal = True
            digits = token["decimal"] or text
            return self._number(decimal(digits))
        if kind in ("repeating", "period"):
            return self._number(repeating_decimal(text))
        if kind == "letters":
            return self._letters(text)
        if kind == "environment":
            return self._environment(text)
        if kind == "accent":
            return self._accent(text)
        return self._command(text) if kind == "command" else self._sign(text)

    def _number(self, value: Fraction, text: str | None = None) -> None:
        if self.left == "bracket":
            self.written.append(r"\cdot")  # 1 (3) and (1) 3 multiply; latex2sympy2 would add
        elif self.left is not None:
            raise Unreadable("a number right after a number or a letter")
        if value.denominator == 1:
            written = text or str(value)
        else:
            written = rf"(\frac{{{value.numerator}}}{{{value.denominator}}})"
        if degrees := re.compile(r"\s*\^\s*\\circ(?![A-Za-z])").match(self.text, self.place):
            self.place = degrees.end()
            written = rf"({written} \cdot \frac{{\pi}}{{180}})" if self.trigonometric else written
        self.written.append(written)
        self.left = "number"

    def _letters(self, text: str) -> None:
        if text in PLAIN_COMMANDS:
            return self._command(PLAIN_COMMANDS[text]) if text != "lcm" else self._function(r"\operatorname{lcm}")
        if text in BRACKETS and (end := _matching(self.text, self.place, "()")) is not None:
            begin, self.place = self.place + 1, end + 1
            self._times()
            opening, closing = BRACKETS[text]
            self.written.append(f"{opening} {self._inner(self.text[begin:end])} {closing}")
            self.left = "bracket"
            return None
        for name in ("arcsin", "arccos", "arctan", "sin", "cos", "tan", "log", "ln", "sqrt"):
            if text.startswith(name) and len(text) == len(name) + 1:  # sinx
                self._letters(name)
                return self._letters(text[-1])
        if len(text) > MAX_LETTERS:
            raise Unreadable(f"{text} is a word")
        self.written.append(text.replace("I", r"\mathrm{I}"))  # latex2sympy2 takes I for the root of -1, and i for none
        self.left = "factor"
        return None

    def _accent(self, text: str) -> None:
        name, _, content = text[1:-1].partition("{")
        name, content = name.strip(), content.strip()
        if name in ("mathrm", "text", "operatorname"):
            if content in PLAIN_COMMANDS or (len(content) == 1 and content.isalpha()):
                return self._letters(content)
            raise Unreadable(f"{content} is a word")
        self.written.append(f"\\{name}{{{content}}}")
        self.left = "factor"
        return None

    def _environment(self, begin: str) -> None:
        end = _ENVIRONMENT_END.search(self.text, self.place)
        if end is None:
            raise Unreadable("a matrix is never closed")
        inside = re.sub(r"\\hline|^\s*\{[lcr| ]*\}", "", self.text[self.place : end.start()])
        rows = [row.split("&") for row in re.sub(r"\\\\\s*$", "", inside.strip()).split(r"\\")]
        written = []
        for row in rows:
            entries = []
            for entry in row:
                one = rewrite(entry)
                self.decimal |= one.decimal
                entries.append(one.latex)
            written.append(" & ".join(entries))
        name = "vmatrix" if "vmatrix" in begin else "pmatrix"
        self._times()
        self.written.append(rf"\begin{{{name}}}" + r" \\ ".join(written) + rf"\end{{{name}}}")
        self.place = end.end()
        self.left = "bracket"

    def _times(self) -> None:
        if self.left is not None:
            self.written.append(r"\cdot")

    def _command(self, text: str) -> None:
        if text == r"\frac":
            above, below = self._argument(), self._argument()
            numeric = all(re.fullmatch(r"[\d.() \\frac{}]+", part) for part in (above, below))
            if numeric and self.left == "number":
                raise Unreadable("a number right after a number")
            if self.left == "bracket" or (self.left == "factor" and numeric):
                self.written.append(r"\cdot")
            self.written.append(rf"\frac{{{above}}}{{{below}}}")
            self.left = "number" if numeric else "factor"
        elif text == r"\sqrt":
            root = ""
            if index := re.compile(r"\s*\[([^\[\]]*)\]").match(self.text, self.place):
                self.place = index.end()
                root = f"[{rewrite(index[1]).latex}]"
            self.written.append(rf"\sqrt{root}{{{self._argument(parentheses=True)}}}")
            self.left = "factor"
        elif text == r"\binom":
            self._times()  # latex2sympy2 computes it at once, and would add it to the number before
            self.written.append(rf"\binom{{{self._argument()}}}{{{self._argument()}}}")
            self.left = "bracket"
        elif text[1:] in FUNCTIONS or text == r"\operatorname{lcm}":
            self._function(text)
        elif text in _BIG:
            self._big(text)
        elif text in _SYMBOLS:
            self.written.append(text)
            self.left = "factor"
        elif text == r"\gamma":
            self.written.append(r"\mathrm{gamma}")  # latex2sympy2 takes it for the function
            self.left = "factor"
        elif text in _OPERATORS:
            self._operator(text)
        elif text in _PASSED:
            self.written.append(text)
            self.left = None
        elif text in _OPENING:
            self._open(text)
        elif text in _CLOSING:
            self._close(text)
        elif text == r"\ ":
            return
        else:
            raise Unreadable(text)

    def _function(self, name: str) -> None:
        """A function with what belongs to its name; what follows is its argument."""
        self.written.append(name)
        self._scripts(digits_are_one=name == r"\log")
        if name == r"\log" and self.written[-1] == "_{0}":
            raise Undefined("a logarithm to base 0")
        if not self.text[self.place :].strip():
            raise Unreadable(f"{name} of nothing")
        self.left = None

    def _big(self, name: str) -> None:
        self.written.append(name)
        self._scripts(raw=True)
        self.left = None

    def _scripts(self, digits_are_one: bool = False, raw: bool = False) -> None:
        while script := re.compile(r"\s*([_^])\s*").match(self.text, self.place):
            self.place = script.end()
            digits = re.compile(r"\d(\d+)\s*$").match(self.text, self.place)
            if digits_are_one and digits:  # \log_28 is the logarithm of 8
                argument, self.place = self.text[self.place], self.place + 1
            elif raw:
                argument = self._raw_argument()
            else:
                argument = self._argument(letters_are_one=True)
            self.written.append(f"{script[1]}{{{argument}}}")

    def _sign(self, sign: str) -> None:
        if sign in _OPERATORS:
            self._operator(sign)
        elif sign in "^_":
            if self.left is None:
                raise Unreadable(f"{sign} after nothing")
            left = self.left
            argument = self._argument(letters_are_one=True)
            # latex2sympy2 takes T in an exponent for a transpose, and drops it.
            if sign == "^" and argument.strip() in ("T", r"\top", r"\prime"):
                raise Unreadable("a transpose or a prime")
            if sign == "^" and self.written[-1].startswith("^"):
                raise Unreadable("a power of a power without brackets")
            if sign == "_" and left == "number":
                raise Unreadable("a number in a base")
            self.written.append(f"{sign}{{{argument}}}")
            self.left = left if left == "number" else "factor"
        elif sign == "!":
            if self.left is None or self.text[self.place :].lstrip().startswith("!"):
                raise Unreadable("! after nothing, or twice")
            self.written.append("!")
        elif sign in _OPENING:
            self._open(sign)
        elif sign in _CLOSING:
            self._close(sign)
        elif sign == "|":
            self._bar()
        elif sign == ",":
            if not self.brackets:
                raise Unreadable("a comma outside brackets")
            self._operand_needed()
            self.written.append(",")
            self.left = None
        else:
            raise Unreadable(sign)

    def _operator(self, sign: str) -> None:
        if sign not in "+-":
            self._operand_needed()
        following = self.text[self.place :].lstrip()
        if not following or (following[0] in "*/^_!)]},|" and following[0] != "|"):
            raise Unreadable(f"nothing after {sign}")
        self.written.append({"*": r"\cdot", r"\times": r"\cdot", r"\div": "/"}.get(sign, sign))
        self.left = None

    def _operand_needed(self) -> None:
        if self.left is None:
            raise Unreadable("an operator after nothing")

    def _open(self, sign: str) -> None:
        if sign == r"\{":
            raise Unreadable("a set within an expression")
        # latex2sympy2 adds numbers side by side, and takes a name before one number or symbol for a function.
        if sign in "([" and (self.left in ("number", "bracket") or (self.left == "factor" and self._is_no_call())):
            self.written.append(r"\cdot")
        self.brackets.append((sign, self.left, len(self.written)))
        self.written.append({"[": "("}.get(sign, sign))
        self.left = None

    def _is_no_call(self) -> bool:
        alone = re.compile(r"\s*\\?\w+\s*[)\]]").match(self.text, self.place)
        return alone is not None and not re.fullmatch(r"[fghpqFGHPQ]", self.written[-1])

    def _close(self, sign: str) -> None:
        if not self.brackets or _OPENING[self.brackets[-1][0]] != sign:
            raise Unreadable("brackets that do not match")
        if self.left is None:
            raise Unreadable("empty brackets")
        opening, before, begin = self.brackets.pop()
        inside = self.left
        self.written.append({"]": ")"}.get(sign, sign))
        if opening == "{":
            if before == "number" and inside == "number":
                raise Unreadable("a number right after a number")
            if before is not None and inside == "number":
                self.written.insert(begin, r"\cdot")
            self.left = inside
        else:
            self.left = "bracket"

    def _bar(self) -> None:
        if self.bars and self.bars[-1] == len(self.brackets) and self.left is not None:
            self.bars.pop()
            self.written.append("|")
            self.left = "bracket"
        else:
            self._times()
            self.bars.append(len(self.brackets))
            self.written.append("|")
            self.left = None

    def _raw_argument(self) -> str:
        """The argument of a sum's bounds, as it stands."""
        if (end := _matching(self.text, self.place)) is not None:
            begin, self.place = self.place + 1, end + 1
            return self.text[begin:end]
        token = _TOKEN.match(self.text, self.place)
        if token is None:
            raise Unreadable("nothing after a sum")
        self.place = token.end()
        return token[0]

    def _argument(self, letters_are_one: bool = False, parentheses: bool = False) -> str:
        r"""The next argument of a command, rewritten: a group, else one token: a digit, a letter or a command.

        Args:
            letters_are_one: digits in a row belong together, as in x^10 (TeX would take one).
            parentheses: they are a group too, as in sqrt(2).
        """
        while self.place < len(self.text) and self.text[self.place] == " ":
            self.place += 1
        for pair in ("{}", "()") if parentheses else ("{}",):
            if (end := _matching(self.text, self.place, pair)) is not None:
                begin, self.place = self.place + 1, end + 1
                return self._inner(self.text[begin:end])
        rest = self.text[self.place :]
        if letters_are_one and (found := re.match(r"-?\s*\d+(?:\.\d+)?|\([^()]*\)|-\s*[A-Za-z](?![A-Za-z])", rest)):
            self.place += found.end()
            return self._inner(found[0])
        if letters_are_one and (found := re.match(r"(?:\\[a-z]+)\s*\{[^{}]*\}(?:\s*\{[^{}]*\})?", rest)):
            self.place += found.end()
            return self._inner(found[0])
        found = re.match(r"\d|[A-Za-z]|\\[A-Za-z]+", rest)
        if found is None:
            raise Unreadable("nothing where an argument is needed")
        self.place += found.end()
        return self._inner(found[0])

    def _inner(self, text: str) -> str:
        inner = rewrite(text) if not re.fullmatch(r"\s*\\(?:infty|top|prime)\s*", text) else Expression(text, False)
        self.decimal |= inner.decimal
        return inner.latex


def _matching(text: str, place: int, pair: str = "{}") -> int | None:
    """Where the group ends that begins here, if one does."""
    if not text.startswith(pair[0], place):
        return None
    depth = 0
    for token in re.finditer(rf"\\.|[{re.escape(pair)}]", text[place:]):
        depth += {pair[0]: 1, pair[1]: -1}.get(token[0], 0)
        if depth == 0:
            return place + token.start()
    raise Unreadable("a bracket is never closed")
