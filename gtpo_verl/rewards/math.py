"""The reward of mathematical problems with a short answer, for every data source, in the form verl calls.

Point verl at it with ``reward.custom_reward_function.path=pkg://gtpo_verl.rewards.math`` and ``.name=compute_score``.
What counts as the answer is decided in `gtpo_verl.rewards.extraction`; equal is what `gtpo_verl.rewards.exact` or, with
math-verify in a process under limits, `gtpo_verl.rewards.grading` finds equal. docs/reward.md is the whole story.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gtpo_verl.rewards.exact import compare
from gtpo_verl.rewards.extraction import extract_answer
from gtpo_verl.rewards.normalization import normalize_answer
from gtpo_verl.rewards.pool import shared_pool
from gtpo_verl.rewards.truth import MAX_ANSWER_CHARS, MAX_NESTING, nesting, truth_text
from gtpo_verl.tasks.rewards import NO_ANSWER

_PREDICTION_CHARS = 256


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | int | float,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float | str]:
    """Score one response; every response returns the same keys, of the same types.

    May be called from any thread, any number at a time.

    Args:
        data_source: the row's ``data_source``; any, it changes nothing but error messages.
        solution_str: the decoded response, any text at all.
        ground_truth: the row's ``reward_model["ground_truth"]``, as LaTeX, text or a number.
        extra_info: the row's ``extra_info``; unused.
        **kwargs: whatever else verl passes; unused.

    Returns:
        ``score``, 1.0 if right, else -1.0; ``acc``, 1.0 or 0.0 (what dynamic sampling and GTPO read); ``answered``, 1.0
        if an answer was found in the required form; ``pred``, that answer as normalised text of at most 256 characters
        that UTF-8 can hold; ``failure``, why it is not right: ``no_answer``, ``empty_answer``, ``answer_too_long``,
        ``too_deep``, ``wrong``, ``unparsable``, ``too_large``, ``timeout``, ``out_of_memory``, ``worker_died``, and
        ``none`` if it is right.

    Raises:
        ValueError: the row's ground truth is missing, empty or too long.
        ImportError: math-verify is not installed.
        RuntimeError: no process that grades answers can be started.
    """
    truth = _truth(data_source, ground_truth)
    extracted = extract_answer(solution_str)
    if extracted is None:
        return _result("no_answer", None)
    if len(extracted) > MAX_ANSWER_CHARS:
        return _result("answer_too_long", extracted)
    answer = normalize_answer(extracted)
    if not answer:
        return _result("empty_answer", None)
    return _result(_failure(answer, truth), answer)


def _failure(answer: str, truth: str) -> str:
    if nesting(answer) > MAX_NESTING:
        return "too_deep"
    equal = compare(answer, truth)
    if equal is not None:
        return "none" if equal else "wrong"
    verdict = shared_pool().grade(answer, truth)
    return "none" if verdict == "right" else verdict


def _truth(data_source: str, ground_truth: Any) -> str:
    try:
        return truth_text(ground_truth)
    except ValueError as error:
        raise ValueError(f"data_source {data_source!r}: {error}") from None


def _result(failure: str, prediction: str | None) -> dict[str, float | str]:
    right = failure == "none"
    if prediction is not None:
        # A lone surrogate would end the job where verl writes its generations to a file.
        prediction = prediction[:_PREDICTION_CHARS].encode("utf-8", "replace").decode("utf-8")
    return {
        "score": 1.0 if right else -1.0,
        "acc": float(right),
        "answered": float(prediction is not None),
        "pred": prediction or NO_ANSWER,
        "failure": failure,
    }
