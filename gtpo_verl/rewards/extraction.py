r"""What counts as the answer of a response: the last line that says ``Answer:``, else the last ``\boxed{}``."""

from __future__ import annotations

import re

from gtpo_verl.rewards.normalization import strip_decoration
from gtpo_verl.rewards.unicode_math import to_latex

# What is read of a response, from its end; more than 60,000 tokens of English.
READ_CHARS = 262_144

_ANSWER = re.compile(r"(?<![A-Za-z])answer[ \t*_]{0,8}:", re.IGNORECASE)
# A doubled backslash before "boxed" comes from text that was escaped twice; an escaped brace groups nothing.
_BRACES = re.compile(r"(\\+f?box(?:ed)?\s{0,8}\{)|\\\\|\\[{}]|([{}])")
_BOX = re.compile(r"\\f?box(?:ed)?\s{0,8}\{")
_ONLY_DECORATION = re.compile(r"[\s*_`$]*(?:\\\[|\\\()?[\s*_`$]*")


def extract_answer(response: str) -> str | None:
    r"""The answer of a response, without decoration.

    The last line that says ``Answer:`` decides, whatever its case, with or without bold. Where nothing follows on that
    line, the next line that says something is the answer (the prompt can be read so); where nothing follows at all,
    the response was cut off and its answer is empty: an earlier answer has been taken back. A box in the answer is
    opened. Without such a line, the content of the last ``\boxed{}`` or ``\fbox{}`` with balanced braces counts.

    Args:
        response: any text; only its last `READ_CHARS` characters are read.

    Returns:
        The answer; an empty string if it was announced and never given; None if there is none.
    """
    text = to_latex(response[-READ_CHARS:])
    last = None
    for last in _ANSWER.finditer(text):  # noqa: B007 - the last one is meant
        pass
    if last is None:
        box = _last_box(text)
        return None if box is None else strip_decoration(box)
    rest = text[last.end() :]
    line = _first_line_with_content(rest)
    if _BOX.search(line):
        box = _last_box(line)
        if box is None:  # its braces close on a later line
            box = _last_box(rest)
        return "" if box is None else strip_decoration(box)
    return strip_decoration(line)


def _first_line_with_content(text: str) -> str:
    for line in text.splitlines():
        if strip_decoration(line) and not _ONLY_DECORATION.fullmatch(line):
            return line
    return ""


def _last_box(text: str) -> str | None:
    """Content of the box that begins last among those that end. One pass, whatever the nesting."""
    if "box" not in text:
        return None
    found: tuple[int, int] | None = None
    open_boxes: list[int | None] = []  # where the content of a box begins; None for a plain brace
    for token in _BRACES.finditer(text):
        if token[1]:
            open_boxes.append(token.end())
        elif token[2] == "{":
            open_boxes.append(None)
        elif token[2] == "}" and open_boxes:
            begin = open_boxes.pop()
            if begin is not None and (found is None or begin > found[0]):
                found = (begin, token.start())
    return None if found is None else text[found[0] : found[1]]
