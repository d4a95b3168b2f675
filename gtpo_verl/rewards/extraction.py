r"""What counts as the answer of a response: the last line that says ``Answer:``, else the last ``\boxed{}``."""

from __future__ import annotations

import re

from gtpo_verl.rewards.normalization import strip_decoration
from gtpo_verl.rewards.thoughts import without_tags, without_thoughts
from gtpo_verl.rewards.unicode_math import to_latex

# What is read of a response, from its end; more than 60,000 tokens of English.
READ_CHARS = 262_144

_ANSWER = re.compile(r"(?<![A-Za-z])answer[ \t*_}]{0,8}:(?:[*_]{1,3}(?=\s))?", re.IGNORECASE)
_BOX_WITHOUT_BRACES = re.compile(r"(\\boxed)\s{0,8}(-?\d[\d.,]{0,99}\d|-?\d|[A-Za-z](?![A-Za-z]))")
_LABEL = re.compile(
    r"^(?:\\(?:text|textbf|mathrm|mathbf)\s{0,8}\{\s{0,8})?(?:final )?answer\s{0,8}(\}?)\s{0,8}:\s{0,8}", re.IGNORECASE
)
# A doubled backslash before "boxed" comes from text that was escaped twice; an escaped brace groups nothing.
_BRACES = re.compile(r"(\\+f?box(?:ed)?\s{0,8}\{)|\\\\|\\[{}]|([{}])")
_BOX = re.compile(r"\\f?box(?:ed)?\s{0,8}\{")
# A line that a reader would not take for the answer: rules, fences, the beginning of a display.
_ONLY_DECORATION = re.compile(
    r"[\s*_`$=~#|-]*(?:\\\[|\\\(|\\begin\{(?:align|aligned|equation|gather|center)\*?\}|`{3}\w*)?[\s*_`$]*"
)
_BULLET = re.compile(r"^\s*(?:[-*+]|>|\u2022)\s+(?=\S)")


def extract_answer(response: str) -> str | None:
    r"""The answer of a response, without decoration.

    Thoughts hold no answer (`gtpo_verl.rewards.thoughts`). The last line that says ``Answer:`` decides, whatever its
    case, with or without bold. Where nothing follows on that line, the next line that says something is the answer
    (the prompt can be read so); where nothing follows at all, the response was cut off and its answer is empty: an
    earlier answer has been taken back. A box in the answer is opened. Without such a line, the content of the last
    ``\boxed{}`` or ``\fbox{}`` with balanced braces counts; an ``Answer:`` within a box is a label.

    Args:
        response: any text; only its last `READ_CHARS` characters, thoughts left out, are read.

    Returns:
        The answer; an empty string if it was announced and never given; None if there is none.
    """
    text = to_latex(without_tags(without_thoughts(response)[-READ_CHARS:]))
    text = _BOX_WITHOUT_BRACES.sub(r"\1{\2}", text)
    boxes = _boxes(text)
    last = _last_announcement(text, boxes)
    if last is None:
        return _content(text, boxes) if boxes else None
    rest = text[last.end() :]
    line = _first_line_with_content(rest)
    if _BOX.search(line):
        # Its braces may close on a later line.
        found = _boxes(line)
        return _content(line, found) if found else _content(rest, _boxes(rest))
    return strip_decoration(_without_closing(line, text[: last.start()]))


def _first_line_with_content(text: str) -> str:
    displayed = False  # in a formula, a minus sign is one
    for number, line in enumerate(text.splitlines()):
        if strip_decoration(line) and not _ONLY_DECORATION.fullmatch(line):
            return _BULLET.sub("", line) if number and not displayed else line
        displayed |= any(mark in line for mark in ("$$", r"\[", r"\begin"))
    return ""


def _without_closing(line: str, before: str) -> str:
    r"""Takes the brace of ``\textbf{Answer:} 13`` or ``\textbf{Answer: 13}`` off."""
    begun = before[before.rfind("\n") + 1 :]
    if begun.count("{") > begun.count("}") and line.count("}") > line.count("{"):
        head, _, tail = line.rpartition("}")
        return head + tail if not line.lstrip(" *").startswith("}") else line.lstrip(" *")[1:]
    return line


def _content(text: str, boxes: list[tuple[int, int]]) -> str:
    """What stands in the box that begins last, without a label."""
    if not boxes:
        return ""
    begin, end = max(boxes)
    content = text[begin:end].strip().removeprefix("$").strip()
    if label := _LABEL.match(content):
        inside = content[label.end() :]
        return strip_decoration(inside.replace("}", "", 1) if "{" in label[0] and not label[1] else inside)
    return strip_decoration(text[begin:end])


def _last_announcement(text: str, boxes: list[tuple[int, int]]) -> re.Match[str] | None:
    """The last ``Answer:`` outside every box."""
    last = None
    waiting = sorted(boxes, reverse=True)
    covered = 0  # up to here reach the boxes that began
    for match in _ANSWER.finditer(text):
        while waiting and waiting[-1][0] <= match.start():
            covered = max(covered, waiting.pop()[1])
        if match.start() >= covered:
            last = match
    return last


def _boxes(text: str) -> list[tuple[int, int]]:
    """Where the contents of the boxes begin and end, of those that end. One pass, whatever the nesting."""
    if "box" not in text:
        return []
    found: list[tuple[int, int]] = []
    open_boxes: list[int | None] = []  # where the content of a box begins; None for a plain brace
    for token in _BRACES.finditer(text):
        if token[1]:
            open_boxes.append(token.end())
        elif token[2] == "{":
            open_boxes.append(None)
        elif token[2] == "}" and open_boxes:
            begin = open_boxes.pop()
            if begin is not None:
                found.append((begin, token.start()))
    return found
