"""What the actor was trained on, token by token, in a file a step (`gtpo_verl.token_dump_dir`)."""

from pathlib import Path
from typing import Any

import torch

from gtpo_verl.verl_plugin import transfer

_TOKENS = ["prompts", "responses", "response_mask", "entropy", "advantages", "old_log_probs"]


def dump_tokens(batch: transfer.Batch, folder: Path, step: int, rollout_log_probs: bool) -> None:
    """Writes `step_<step>.pt`: {field: list of one tensor a response}, the uids, and the raw reward metrics.

    Args:
        batch: after the update.
        rollout_log_probs: whether the rollout left its own log-probabilities.
    """
    tokens = [*_TOKENS, "rollout_log_probs"] if rollout_log_probs else _TOKENS
    data = transfer.fetch(batch, ["uid", "extra_fields", *tokens])
    dump: dict[str, Any] = {
        "uid": list(data["uid"]),
        "reward": [fields.get("reward_extra_info", {}) for fields in list(data["extra_fields"])],
    }
    for name in tokens:
        dump[name] = [row.clone() for row in data[name].unbind()]
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(dump, folder / f"step_{step}.pt")
