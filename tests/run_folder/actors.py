"""Files of an actor as verl's FSDP strategies name them, without the engine."""

import json
from pathlib import Path

import torch

KINDS = ("model", "optim", "extra_state")
DESCRIPTION = {"config.json": {"hidden_size": 32}, "tokenizer_config.json": {}, "tokenizer.json": {"model": {}}}


def write_actor(actor: Path, ranks: int = 1, mark: str = "") -> None:
    """A whole actor; `mark` is what tells it from others."""
    (actor / "huggingface").mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for rank in range(ranks):
            torch.save({"mark": mark, "weight": torch.zeros(1000)}, actor / f"{kind}_world_size_{ranks}_rank_{rank}.pt")
    for name, content in DESCRIPTION.items():
        (actor / "huggingface" / name).write_text(json.dumps(content))
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))


def mark_of(actor: Path) -> str:
    return torch.load(actor / "model_world_size_1_rank_0.pt")["mark"]
