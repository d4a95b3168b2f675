"""Which ground truths the reward can grade, for checks of data before a run."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

from gtpo_verl.rewards.extraction import extract_answer
from gtpo_verl.rewards.normalization import normalize_answer
from gtpo_verl.rewards.notation import Undefined, Unreadable
from gtpo_verl.rewards.reading import read
from gtpo_verl.rewards.readings import Reading, Words

MAX_ANSWER_CHARS = 2000
# The parser's time doubles with every pair of braces around the same: 16 take 6 s.
MAX_NESTING = 16
_MOST_WORDS = 10
_NO_WORDS = re.compile(r"[#<>\[\]|=]|https?:|//")
# Where a data set has nothing to say, or says it elsewhere.
_NO_ANSWER = re.compile(
    r"(?:please )?(?:see|refer|consult)\b.*|(?:the )?(?:proof|solution|explanation)\b.*"
    r"|answers? (?:(?:may|will|can) )?var(?:y|ies)\b.*|(?:the )?(?:final )?answer (?:is|key|in|on|above|below)\b.*"
    r"|to be (?:determined|announced)|(?:as )?above|tba"
    r"|(?:prove|show) .*|proved|proven|qed|n/?a|nan|null|tbd|todo|not (?:available|given|provided|found)"
    r"|no answer.*|unknown|omitted|(?:open[- ]ended|free response).*|\\?boxed"
)


def truth_text(ground_truth: Any) -> str:
    """A ground truth in the spelling that is compared.

    Args:
        ground_truth: text or a number.

    Raises:
        ValueError: it is missing, of another type, empty, too long or too deeply nested.
    """
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, str | int | float):
        raise ValueError(f"ground_truth must be text or a number, not {type(ground_truth).__name__}")
    if isinstance(ground_truth, float) and not math.isfinite(ground_truth):
        raise ValueError(f"ground_truth is {ground_truth}")
    text = str(ground_truth)
    if len(text) > MAX_ANSWER_CHARS:
        raise ValueError(f"ground_truth has {len(text)} characters, more than {MAX_ANSWER_CHARS}")
    truth = normalize_answer(_answer_of(text))
    if not truth:
        raise ValueError(f"ground_truth is empty: {text!r}")
    if nesting(truth) > MAX_NESTING:
        raise ValueError(f"ground_truth has brackets nested more than {MAX_NESTING} deep")
    return truth


def problem_with_truth(ground_truth: Any) -> str | None:
    r"""Why the reward cannot grade responses against a ground truth; None if it can.

    Needs neither math-verify nor a worker process and takes microseconds, so that a check can ask it of every row. What
    it passes is text, a number, a time, or an expression in the notation that is read; whether latex2sympy2 knows every
    command in it is not tried, and responses that repeat it are right all the same.

    Args:
        ground_truth: a row's ``reward_model["ground_truth"]``.

    Returns:
        The reason in a few words, such as "a text of 31 words is no short answer", or None.
    """
    # The rows of a file repeat each other.
    return _problem_with_text(ground_truth) if isinstance(ground_truth, str) else _problem(ground_truth)


@lru_cache(maxsize=65_536)
def _problem_with_text(ground_truth: str) -> str | None:
    return _problem(ground_truth)


def _problem(ground_truth: Any) -> str | None:
    try:
        truth = truth_text(ground_truth)
        texts = _texts(read(truth))
    except Undefined as error:
        return f"{_shown(ground_truth)} has no value: {error}"
    except Unreadable as error:
        return f"{_shown(ground_truth)} is no answer that can be graded: {error}"
    except (ValueError, RecursionError) as error:
        return str(error) or "brackets nested too deep"
    count = sum(len(text.split()) for text in texts)
    if count > _MOST_WORDS:
        return f"a text of {count} words is no short answer"
    if _NO_ANSWER.fullmatch(truth.casefold()) or any(_NO_ANSWER.fullmatch(text) for text in texts):
        return f"{_shown(ground_truth)} says that there is no answer"
    if any(not text or _NO_WORDS.search(text) for text in texts) or re.search(r"\{\s*['\"]", truth):
        return f"{_shown(ground_truth)} is neither words nor mathematics"
    return None


def nesting(text: str) -> int:
    """How deep the brackets of a text are nested."""
    deepest = depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _answer_of(text: str) -> str:
    r"""The answer of a truth that is written as a response, with ``\boxed{}`` or ``Answer:``; else the whole truth."""
    answer = extract_answer(text)
    return text if answer is None else answer


def _texts(reading: Reading) -> list[str]:
    if isinstance(reading, Words):
        return [reading.text]
    parts = (*getattr(reading, "items", ()), *getattr(reading, "sides", ()))
    return [text for part in parts for text in _texts(part)]


def _shown(ground_truth: Any) -> str:
    text = str(ground_truth)
    return repr(text if len(text) <= 60 else text[:57] + "...")
