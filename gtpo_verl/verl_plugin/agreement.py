"""Whether the responses of a step were sampled from the policy that trains on them."""

import logging

import torch
from tensordict import TensorDict

logger = logging.getLogger(__name__)

# Nats a token, a response's mean. Rounding to bf16 leaves a hundredth of it; a vLLM whose CUDA graphs were wrong showed
# up to 11 (docs/performance.md).
FAR = 1.0


def check_log_probs(data: TensorDict) -> None:
    """Looks at a step's log-probabilities before it is trained on. verl logs how far they differ and goes on.

    Warns where vLLM and the actor are `FAR` apart.

    Args:
        data: `response_mask`, `old_log_probs` and, where vLLM gave them, `rollout_log_probs`: jagged (responses, *),
            float32, nats.

    Raises:
        ValueError: log-probabilities of tokens that are trained on are no finite numbers; says whose and how many.
    """
    mask = data["response_mask"]
    offsets: torch.Tensor = mask.offsets()
    kept = mask.values() != 0
    actor = data["old_log_probs"].values()
    rollout = data.get("rollout_log_probs", None)
    if rollout is not None:
        rollout = rollout.values()
        _check_finite(
            kept & ~rollout.isfinite(),
            offsets,
            "vLLM gave",
            "What it samples is not from this policy; actor_rollout_ref.rollout.enforce_eager=true lets it compute "
            "without CUDA graphs",
        )
    _check_finite(
        kept & ~actor.isfinite(), offsets, "The actor gave", "Its weights or what it computes with them are broken"
    )
    if rollout is None:
        return
    apart = torch.where(kept, (rollout - actor).abs(), 0.0)
    means = _sums(apart, offsets) / _sums(kept, offsets).clamp(min=1)
    if (far := means > FAR).any():
        logger.warning(
            "In %d of %d responses of this step, tokens have log-probabilities in vLLM and in the actor that lie more "
            "than %g nat apart on average (most: %.3g): rounding does not do that, they were sampled from another "
            "policy than the one that trains on them",
            int(far.sum()),
            len(means),
            FAR,
            means.max().item(),
        )


def _check_finite(broken: torch.Tensor, offsets: torch.Tensor, who: str, why: str) -> None:
    rows = (_sums(broken, offsets) > 0).nonzero().flatten().tolist()
    if rows:
        raise ValueError(
            f"{who} log-probabilities that are no finite numbers, in {len(rows)} of the step's {len(offsets) - 1} "
            f"responses (the first is number {rows[0]}); nothing was trained on them. {why}"
        )


def _sums(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Of each response: (tokens,) -> (responses,) float64."""
    return torch.nn.functional.pad(values.double().cumsum(0), (1, 0))[offsets].diff()
