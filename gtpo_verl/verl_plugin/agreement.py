"""Whether the responses of a step were sampled from the policy that trains on them."""

import logging

import torch
from tensordict import TensorDict

logger = logging.getLogger(__name__)

# Mean difference of a token, nats. Rounding to bf16 leaves some 0.04 (docs/performance.md); a vLLM whose CUDA graphs
# were wrong left 3 to 6 in a step and up to 12 in a response.
FAR_STEP = 0.3
FAR_RESPONSE = 1.0
_SHORT = 8  # tokens; a shorter response counts as one of these, as a single rare token may be rounded far


def check_log_probs(data: TensorDict) -> None:
    """Looks at a step's log-probabilities before it is trained on. verl logs how far they differ and goes on.

    Warns where those of the rollouts and the actor's are further apart than rounding leaves them.

    Args:
        data: `response_mask`, `old_log_probs` and, where the rollouts gave them, `rollout_log_probs`: jagged
            (responses, *), floats in nats. A row of the rollouts may be shorter than its response, where an agent loop
            has none for what a tool said.

    Raises:
        ValueError: log-probabilities of tokens that are trained on are no finite numbers; says whose and how many.
    """
    mask = data["response_mask"]
    offsets: torch.Tensor = mask.offsets()
    kept = mask.values() != 0
    tokens = _sums(kept.float(), offsets)
    responses = int((tokens > 0).sum())  # without the rows that verl adds
    actor = data["old_log_probs"].values().float()
    given = data.get("rollout_log_probs", None)
    if given is not None:
        rollout = _at_places_of(given, offsets)
        _check_finite(
            kept & ~rollout.isfinite(),
            offsets,
            responses,
            "The rollouts came with",
            "They were not sampled from this policy; with vLLM, actor_rollout_ref.rollout.enforce_eager=true does "
            "without CUDA graphs",
        )
    _check_finite(
        kept & ~actor.isfinite(),
        offsets,
        responses,
        "The actor gave",
        "Its weights or what it computes with them are broken",
    )
    if given is None:
        return
    apart = torch.where(kept, (rollout - actor).abs(), 0.0)
    sums = _sums(apart, offsets)
    far = sums / tokens.clamp(min=_SHORT) > FAR_RESPONSE
    mean = (sums.double().sum() / tokens.double().sum()).item()
    if far.any() or mean > FAR_STEP:
        logger.warning(
            "The log-probabilities of this step's tokens, the rollouts' and the actor's, lie %.3g nat apart on "
            "average, and more than %g in %d of %d responses: rounding to bf16 leaves 0.04. What sampled them "
            "computes something else than the actor, or another policy of the same weights (temperature, top_k, top_p, "
            "logprobs_mode)",
            mean,
            FAR_RESPONSE,
            int(far.sum()),
            responses,
        )


def _at_places_of(given: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Values of jagged rows at the tokens of responses that may be longer, where they are 0, as verl pads them.

    Args:
        given: jagged (responses, *).
        offsets: (responses + 1,) int64, of the responses.

    Returns:
        (tokens,) float32.
    """
    own: torch.Tensor = given.offsets()  # type: ignore[attr-defined]  # of jagged tensors
    if torch.equal(own, offsets):
        return given.values().float()
    values = torch.zeros(int(offsets[-1]))
    for row, (start, place) in enumerate(zip(own[:-1].tolist(), offsets[:-1].tolist(), strict=True)):
        length = int(min(own[row + 1] - start, offsets[row + 1] - place))
        values[place : place + length] = given.values()[start : start + length]
    return values


def _check_finite(broken: torch.Tensor, offsets: torch.Tensor, responses: int, who: str, why: str) -> None:
    if broken.any():
        rows = int((_sums(broken.float(), offsets) > 0).sum())
        raise ValueError(
            f"{who} log-probabilities that are no finite numbers, in {rows} of the step's {responses} "
            f"responses; nothing was trained on them. {why}"
        )


def _sums(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Of each response: (tokens,) float32 -> (responses,)."""
    return torch.segment_reduce(values, "sum", offsets=offsets, initial=0.0)
