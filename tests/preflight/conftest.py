import string
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from omegaconf import DictConfig, OmegaConf
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gtpo_verl.configuration.composition import compose_config

# `actors` lies where pytest's importlib mode does not look.
sys.path.insert(0, str(Path(__file__).parents[1] / "run_folder"))

Configured = Callable[..., DictConfig]


@cache
def _composed(groups: tuple[str, ...]) -> DictConfig:
    return compose_config(groups)


@pytest.fixture(scope="session")
def configured() -> Configured:
    """Resolved configurations; of the 32B scale where no `scale` is named. Composing takes half a second: once each."""

    def make(*overrides: str, scale: str = "32b_16x8", model: str = "dapo_math") -> DictConfig:
        base = _composed((f"model={model}", f"scale={scale}"))
        return OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides)))  # type: ignore[return-value]

    return make


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model of random weights: one token a character, a chat template that adds one token a message."""
    folder = tmp_path_factory.mktemp("model")
    specials = ["<eos>", "<pad>", "<user>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *string.ascii_lowercase, " "])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = Split(Regex("."), "isolated")  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<user>"]})
    tokenizer.chat_template = "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts of 6, 6 and 11 tokens under that template, the first twice."""
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
        }
        for text in ("abcde", "abcde", "abcdefghij")
    ]
    path = tmp_path_factory.mktemp("data") / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path
