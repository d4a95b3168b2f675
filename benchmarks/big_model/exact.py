"""A model's log-probabilities and entropies in fp32, a layer on the device at a time: 32 billion parameters on one GPU.

And the two places that weights come from: a Hugging Face folder, and the shards of a run's checkpoint.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# Rows of logits at a time: 1,024 of 152,064 words are 0.6 GiB in fp32, of which three are alive.
_ROWS = 1024
Weights = Callable[[str], Tensor]


class ModelFolder:
    """Tensors of a Hugging Face folder by their names, read when they are asked for."""

    def __init__(self, folder: Path):
        from safetensors import safe_open

        index = folder / "model.safetensors.index.json"
        self._open = {}
        if index.exists():
            files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            opened = {name: safe_open(folder / name, "pt") for name in set(files.values())}
            self._open = {name: opened[file] for name, file in files.items()}
        else:
            opened_file = safe_open(folder / "model.safetensors", "pt")
            self._open = dict.fromkeys(opened_file.keys(), opened_file)

    def __call__(self, name: str) -> Tensor:
        return self._open[name].get_tensor(name)

    def names(self) -> list[str]:
        return list(self._open)


class Checkpoint:
    """Whole tensors of an actor that FSDP2 ranks have saved (`global_step_N/actor`), one put together at a time.

    Raises:
        FileNotFoundError, ValueError: a file is missing or damaged; names it.
    """

    def __init__(self, actor: Path):
        from gtpo_verl.run_folder.adapters import load_shard
        from gtpo_verl.run_folder.wholeness import ranks_of

        ranks = ranks_of(actor)
        names = [f"model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
        self._parts = [load_shard(actor / name, mmap=True) for name in names]

    def __call__(self, name: str) -> Tensor:
        from torch.distributed.tensor import DTensor, Shard

        first = self._parts[0][name]
        if not isinstance(first, DTensor):
            return first
        local = [part[name].to_local() for part in self._parts]
        placement = first.placements[-1]
        return torch.cat(local, placement.dim) if isinstance(placement, Shard) else local[0]

    def names(self) -> list[str]:
        return list(self._parts[0])


def share_changed(before: ModelFolder, after: Checkpoint, device: str = "cpu") -> float:
    """Share of a model's weights that differ in a checkpoint, compared in the checkpoint's dtype. A tied LM head, which
    only the checkpoint names, is counted once."""
    changed = total = 0
    for name in before.names():
        new = after(name).to(device)
        changed += int((before(name).to(device).to(new.dtype) != new).sum())
        total += new.numel()
    return changed / total


@torch.no_grad()
def log_probs_and_entropies(
    config: Any, weights: Weights, sequences: Sequence[tuple[Tensor, Tensor]], device: str = "cpu"
) -> list[tuple[Tensor, Tensor]]:
    """Float32 log p and entropy (nats) of every token of each response, (tokens,) each, on the CPU.

    Sequences pass one by one, unpadded, through transformers' own layers with its sdpa attention. No tensor of the
    model is on the device for longer than its layer is used.

    Args:
        config: the model's, of transformers; a decoder such as Qwen2 or Llama.
        weights: gives the tensor of a name.
        sequences: prompt and response ids, (n,) each.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    decoder = model.model
    with torch.device(device):
        rotary = type(decoder.rotary_emb)(config)  # holds buffers alone, which no file has
    ids = [torch.cat(sequence).long().to(device)[None] for sequence in sequences]

    def load(module: nn.Module, prefix: str) -> nn.Module:
        # Converted there: in 16 bits it is half as much to move.
        state = {name: weights(f"{prefix}.{name}").to(device).float() for name, _ in module.named_parameters()}
        module.load_state_dict(state, assign=True)
        return module

    embedding = load(decoder.embed_tokens, "model.embed_tokens")
    hidden = [embedding(row) for row in ids]
    embedding.to("meta")
    for depth, layer in enumerate(decoder.layers):
        load(layer, f"model.layers.{depth}")
        for number, states in enumerate(hidden):
            positions = torch.arange(states.shape[1], device=device)[None]
            result = layer(
                states,
                attention_mask=None,  # sdpa's own causal one
                position_ids=positions,
                position_embeddings=rotary(states, positions),
                use_cache=False,
            )
            hidden[number] = result[0] if isinstance(result, tuple) else result
        layer.to("meta")
    norm = load(decoder.norm, "model.norm")
    head = load(model.lm_head, "model.embed_tokens" if config.tie_word_embeddings else "lm_head")
    results = []
    for (prompt, response), row, states in zip(sequences, ids, hidden, strict=True):
        last, labels = norm(states[0, len(prompt) - 1 : -1]), row[0, len(prompt) :]
        parts = []
        for start in range(0, len(response), _ROWS):
            log_p = torch.log_softmax(head(last[start : start + _ROWS]), -1)
            chosen = log_p.gather(-1, labels[start : start + _ROWS, None])[:, 0]
            parts.append((chosen.cpu(), -(log_p.exp() * log_p).sum(-1).cpu()))
        results.append((torch.cat([chosen for chosen, _ in parts]), torch.cat([entropy for _, entropy in parts])))
    return results
