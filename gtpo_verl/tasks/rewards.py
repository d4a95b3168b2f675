"""The rewards of all tasks, in the form verl calls.

Point verl at it with ``reward.custom_reward_function.path=pkg://gtpo_verl.tasks.rewards`` and ``.name=compute_score``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gtpo_verl.tasks import arithmetic, reasoning

# What a response without a readable answer is said to predict; not empty, so that majority votes can count it.
NO_ANSWER = "<none>"
_PREDICTION_CHARS = 64


def knows(data_source: str) -> bool:
    """Return whether a data source is one of the tasks'."""
    return data_source == arithmetic.DATA_SOURCE or data_source.startswith(reasoning.DATA_SOURCE_PREFIX)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float | str]:
    """Score one response; every data source returns the same keys.

    Args:
        data_source: the row's ``data_source``; decides the rule.
        solution_str: the decoded response, any text.
        ground_truth: the row's ``reward_model["ground_truth"]``.
        extra_info: the row's ``extra_info``.
        **kwargs: whatever else verl passes; unused.

    Returns:
        ``score``, the reward; ``acc``, 1.0 if right, else 0.0 (what dynamic sampling and GTPO read); ``answered``, 1.0
        if an answer was found in the required form; ``pred``, that answer as text.

    Raises:
        ValueError: no rule is known for ``data_source``, or the row lacks what the rule needs.
    """
    if data_source == arithmetic.DATA_SOURCE:
        answer = arithmetic.extract_answer(solution_str)
        right = answer is not None and answer == ground_truth
        return _result(float(right), float(right), answer)
    if data_source.startswith(reasoning.DATA_SOURCE_PREFIX):
        score, answer = reasoning.score(data_source, solution_str, extra_info)
        # Verifiers give a little for a wrong answer in the right form, and 1 for nothing but a right one.
        return _result(score, float(score >= 1.0), answer)
    raise ValueError(
        f"no reward is known for data_source {data_source!r}; known are {arithmetic.DATA_SOURCE} and "
        f"{reasoning.DATA_SOURCE_PREFIX}<task>"
    )


def _result(score: float, acc: float, answer: str | None) -> dict[str, float | str]:
    return {
        "score": score,
        "acc": acc,
        "answered": float(answer is not None),
        "pred": NO_ANSWER if answer is None else answer[:_PREDICTION_CHARS],
    }
