"""The picture of credit for tensors that someone has, from `gtpo_verl.algorithms` alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gtpo_verl.algorithms import GtpoConfig, compute_advantages, shaped_rewards
from gtpo_verl.algorithms.estimators import lookup
from gtpo_verl.inspect.page import Page, build, encode
from gtpo_verl.inspect.responses import (
    ADVANTAGES,
    ENTROPY,
    LOG_PROB,
    ROLLOUT_LOG_PROB,
    SHAPED,
    InspectError,
    Response,
    Step,
)


def credit(
    estimator: str,
    entropy: Tensor,
    response_mask: Tensor,
    index: Sequence[Any],
    success: Any,
    tokens: Sequence[Sequence[str]],
    config: Any = None,
    *,
    prompts: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    old_log_probs: Tensor | None = None,
    rollout_log_probs: Tensor | None = None,
    title: str = "Where the credit goes",
) -> Page:
    """Draw which advantage an estimator gives to each token, and DAPO to the same responses.

    Args:
        estimator, entropy, response_mask, index, success, config: as `gtpo_verl.algorithms.compute_padded_advantages`
            takes them; `entropy` is (batch, response_length), nats.
        tokens: the text of each token, a sequence a response: as many as `response_mask` has columns, or as it has
            tokens up to the last one that is not 0. For example
            `[[tokenizer.decode([i]) for i in row] for row in responses]`.
        prompts: (batch,) texts; without them the uids of `index` stand in their place.
        scores: (batch,) rewards that DAPO would standardise; without them 1 for right and 0 for wrong.
        old_log_probs, rollout_log_probs: (batch, response_length), nats, of the actor and of what sampled.
        title: of the page.
    Returns:
        A page that Jupyter shows, with `save(path)`.

    Raises:
        ValueError: as `compute_padded_advantages` does, and for arguments that do not fit, by their names.
    """
    given = {ENTROPY: entropy, LOG_PROB: old_log_probs, ROLLOUT_LOG_PROB: rollout_log_probs}
    tensors = {name: _tensor(name, given[name]).float() for name in given if name == ENTROPY or given[name] is not None}
    mask = _tensor("response_mask", response_mask).bool()
    right = _tensor("success", success)
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape or tensor.dim() != 2:
            raise InspectError(f"{name} {tuple(tensor.shape)} and response_mask {tuple(mask.shape)} must be (batch, n)")
    batch = len(mask)
    if batch == 0:
        raise InspectError("entropy has no rows: there is nothing to draw")
    rows = {"index": index, "success": right, "tokens": tokens, "prompts": prompts, "scores": scores}
    for name, value in rows.items():
        if value is None and name in ("prompts", "scores"):
            continue
        rows_of = _length(value)
        if rows_of != batch:
            raise InspectError(f"{name} has {'no' if rows_of is None else rows_of} rows, and entropy {batch}")
    uids = [str(uid) for uid in index]

    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(uids))}
    flat = {
        "entropy": tensors[ENTROPY].masked_select(mask),
        "offsets": torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)),
        "group": torch.tensor([numbers[uid] for uid in uids], dtype=torch.int64),
        "success": right,
        "config": config,
    }
    shaped = shaped_rewards(estimator, **flat)
    for name, values in (
        (ADVANTAGES, compute_advantages(estimator, **flat).advantages),
        (SHAPED, shaped.rewards),
    ):
        tensors[name] = torch.zeros(mask.shape).masked_scatter_(mask, values)

    settings = asdict(lookup(estimator).resolve(GtpoConfig.from_any(config)))
    penalised = settings["length_penalty"]["enable"]
    vocabulary: dict[str, int] = {}
    responses = []
    for row in range(batch):
        width = _width(tokens[row], mask[row], row)
        pieces = [vocabulary.setdefault(str(text), len(vocabulary)) for text in list(tokens[row])[:width]]
        responses.append(
            Response(
                uid=uids[row],
                prompt=uids[row] if prompts is None else str(prompts[row]),
                right=bool(right[row]),
                score=float(right[row] if scores is None else scores[row]),
                length_penalty=float(shaped.length_penalty[row]) if penalised else None,
                tokens=np.array(pieces, np.int32),
                mask=mask[row, :width].numpy(),
                values={name: tensor[row, :width].numpy() for name, tensor in tensors.items()},
            )
        )
    return build([encode(Step(0, estimator, settings, list(vocabulary), responses))], title)


def _tensor(name: str, value: Any) -> Tensor:
    """A copy without gradient on the CPU, of a tensor, an array or nested lists."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InspectError(f"{name} is no tensor, but {type(value).__name__}: {error}") from error


def _length(value: Any) -> int | None:
    """How many elements a value has; None for what has none, such as a number."""
    try:
        return len(value)
    except TypeError:
        return None


def _width(tokens: Sequence[str], mask: Tensor, row: int) -> int:
    """How many tokens of a row there are to be seen: padding at its end is not."""
    own = mask.nonzero().flatten()
    width = int(own[-1]) + 1 if len(own) else 0
    if (texts := _length(tokens)) not in (len(mask), width):
        raise InspectError(
            f"tokens[{row}] has {'no' if texts is None else texts} texts, and response_mask {len(mask)} columns, "
            f"{width} of them up to the last token"
        )
    return width
