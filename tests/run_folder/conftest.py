"""Actors saved by verl's FSDP engine, for the tests of this folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# `actors` lies where pytest's importlib mode does not look.
sys.path.insert(0, str(Path(__file__).parent))


def save_models(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from gtpo_verl.tasks.tiny_model import build_tokenizer

    tokenizer = build_tokenizer()
    torch.manual_seed(1)
    for name in ("tied", "untied"):
        config = Qwen2Config(
            vocab_size=len(tokenizer) | 1,  # odd: the ranks hold parts of unlike sizes
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=name == "tied",
        )
        Qwen2ForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, and the actors of two ranks that loaded them."""
    folder = tmp_path_factory.mktemp("saved")
    save_models(folder)
    script = str(Path(__file__).with_name("checkpoint_process.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(folder), str(rank), "2"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][-4000:]
    return folder
