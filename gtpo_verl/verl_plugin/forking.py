"""The advantages of a batch in TransferQueue, kept at its forking tokens alone (arXiv 2506.01939)."""

from typing import Any

import torch
from tensordict import TensorDict

from gtpo_verl.algorithms import ForkingConfig, forking_tokens
from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.advantages import check_entropies, offsets_of_kept


def keep_forking_tokens(batch: transfer.Batch, config: ForkingConfig, metrics: dict[str, Any]) -> transfer.Batch:
    """Puts 0 in place of the `advantages` of all other tokens.

    The loss stays a mean over all tokens: the mask is not touched.

    Args:
        batch: with `advantages`, and the `entropy` of the log-probability pass.
        metrics: of the step; `forking/entropy_threshold` is added, the least entropy that was kept, in nats.

    Raises:
        ValueError: no entropies.
    """
    data = transfer.fetch(batch, ["response_mask", "entropy", "advantages"])
    check_entropies(data)
    offsets = data["response_mask"].offsets()
    kept = data["response_mask"].values() != 0
    entropy = data["entropy"].values()[kept]
    forking = forking_tokens(entropy, offsets_of_kept(kept, offsets), config)
    metrics["forking/entropy_threshold"] = entropy[forking].min().item() if forking.any() else 0.0

    advantages = torch.zeros_like(data["advantages"].values())
    advantages[kept] = data["advantages"].values()[kept] * forking
    nested = torch.nested.nested_tensor_from_jagged(advantages, offsets)
    return transfer.put(batch, TensorDict({"advantages": nested}, batch_size=len(batch)))
