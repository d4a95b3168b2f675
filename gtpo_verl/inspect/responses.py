"""Responses with what was computed for each of their tokens: what a dump holds, and what the page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Quantities of a token, in the order that the page offers them; the last two are made when the page is.
ADVANTAGES, SHAPED, ENTROPY = "advantages", "shaped_rewards", "entropy"
LOG_PROB, ROLLOUT_LOG_PROB = "old_log_probs", "rollout_log_probs"
DAPO, DIFFERENCE = "dapo", "difference"


class InspectError(ValueError):
    """What was asked for cannot be shown; names the file, step, key or argument."""


@dataclass(frozen=True)
class Response:
    """One response.

    Attributes:
        uid: of its prompt, equal for the responses of a group.
        prompt: its text.
        right: right or wrong, by the raw task metric.
        score: the reward of the whole response, DAPO's penalty on overlong ones in it; what `dapo` standardises.
        length_penalty: what the algorithm added to each of its shaped rewards; None where it has no such penalty.
        tokens: (n,) int32, indices into `Step.pieces`.
        mask: (n,) bool, false at what the model did not write.
        values: (n,) float32 of each quantity that there is; what stands where `mask` is false is not shown.
        reward: the raw metrics that the reward function gave.
        ids: (n,) int32, the tokenizer's; empty where none were given.
        prompt_ids: (m,) int32, the same of the prompt.
    """

    uid: str
    prompt: str
    right: bool
    score: float
    length_penalty: float | None
    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    values: Mapping[str, NDArray[np.float32]]
    reward: Mapping[str, Any] = field(default_factory=dict)
    ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass(frozen=True)
class Step:
    """Groups of responses of one step.

    Attributes:
        step: its number.
        algorithm: `algorithm.adv_estimator`, or a preset's name.
        settings: the algorithm's, as they held for the step.
        pieces: the vocabulary: texts of tokens.
        responses: whole groups, in any order.
    """

    step: int
    algorithm: str
    settings: Mapping[str, Any]
    pieces: Sequence[str]
    responses: Sequence[Response]

    def groups(self) -> list[list[Response]]:
        """Return the responses by prompt, prompts in order of appearance."""
        found: dict[str, list[Response]] = {}
        for response in self.responses:
            found.setdefault(response.uid, []).append(response)
        return list(found.values())
