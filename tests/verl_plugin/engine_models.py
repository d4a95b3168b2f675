"""Small Qwen2 models with random weights, for processes that run verl's engine."""

from pathlib import Path

import torch

VOCABULARY = 131


def save_models(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(1)
    for name in ("untied", "tied", "tokenwise"):
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                tie_word_embeddings=name == "tied",
                initializer_range=0.3,
            )
        )
        if name == "tokenwise":
            for layer in model.model.layers:
                torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        model.save_pretrained(folder / name)
