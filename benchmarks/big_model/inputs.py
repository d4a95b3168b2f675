"""What a run reads, without a download: a Qwen2 or Llama of any shape with random weights, prompts, and a reward.

No model is built: shapes come from transformers' model on the meta device, and each shard is filled and written by a
thread of its own, so that memory holds a few shards, never the model.
"""

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

# Rows of the published embeddings; the tokenizer below has as many words.
VOCABULARY = 152_064
# The sizes of the published config.json files; any field of transformers' `Qwen2Config` may take another value.
_QWEN = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 131_072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
SHAPES: dict[str, dict[str, Any]] = {
    "32b": {
        **_QWEN,
        "hidden_size": 5_120,
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    "7b": {
        **_QWEN,
        "hidden_size": 3_584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
# Standard deviation of the logits: entropies of about 5 nats (ln V - spread^2 / 2), where a trained model's tokens also
# are. A default initialisation would leave them flat.
SPREAD = 3.6
_STD = 0.02  # `initializer_range` of Qwen2 and Llama
_SHARD_BYTES = 2 * 10**9
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Pure chance: half of all texts are right after a prompt, and any text is right after half of the prompts, so that
# nothing is to be learnt. A group is uniform where all its responses are the same, else almost never.
_REWARD = """
import zlib


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **unused):
    acc = float(zlib.crc32((ground_truth + solution_str).encode()) % 2 == 0)
    return {"score": acc, "acc": acc}
"""


def save_model(
    folder: Path,
    fields: Mapping[str, Any],
    family: str = "qwen2",
    seed: int = 1,
    shard_bytes: int = _SHARD_BYTES,
    threads: int = 8,
) -> None:
    """Writes configuration, tokenizer with chat template, and bf16 weights in safetensors shards with their index.

    Matrices and embeddings are normal with a standard deviation of 0.02, norms are 1, biases 0, and the LM head is such
    that logits have the standard deviation `SPREAD`: it reads hidden states of root mean square 1. Where it is tied to
    the embedding, the last norm makes the spread instead: larger embeddings would outweigh what the layers add, and
    responses would soon repeat one token.

    Args:
        folder: does not exist yet, and appears when it is whole.
        fields: of the family's configuration in transformers; a vocabulary of 259 words at least.
        family: transformers' `model_type`, "qwen2" or "llama".
        seed: of the weights; the same on the same kind of device give the same ones.
        shard_bytes: most bytes of a shard, but for a tensor that is larger by itself.
        threads: shards that are made at the same time.

    Raises:
        FileExistsError: `folder` exists.
        OSError: the disk has too little space; nothing is left.
        ValueError: sizes that make no model, in transformers' words.
    """
    from huggingface_hub import split_state_dict_into_shards_factory
    from transformers import AutoConfig, AutoModelForCausalLM

    if folder.exists():
        raise FileExistsError(f"{folder} exists already; name a folder that does not")
    default = AutoConfig.for_model(family)
    for name in fields:
        if not hasattr(default, name):
            raise ValueError(f"{name} is no field of {type(default).__name__}")
    tokenizer = _tokenizer(fields["vocab_size"])
    config = AutoConfig.for_model(family, **fields, bos_token_id=0, eos_token_id=2, pad_token_id=0, dtype="bfloat16")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    shapes = {name: tensor.shape for name, tensor in model.named_parameters()}  # a tied one once
    split = split_state_dict_into_shards_factory(
        dict(shapes),
        get_storage_size=lambda shape: 2 * shape.numel(),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    partial = folder.absolute().with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)  # of an earlier start that was killed
    partial.mkdir(parents=True)
    try:
        size, free = split.metadata["total_size"], shutil.disk_usage(partial).free
        if size > free:
            raise OSError(f"{folder}: the weights take {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
        numbers = {name: number for number, name in enumerate(shapes)}

        def write(shard: str) -> None:
            _write_shard(
                partial / shard,
                {name: shapes[name] for name in split.filename_to_tensors[shard]},
                {name: seed + 1_000_003 * numbers[name] for name in split.filename_to_tensors[shard]},
                config.tie_word_embeddings,
            )

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(write, split.filename_to_tensors))
        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            (partial / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
        config.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_shard(path: Path, shapes: Mapping[str, torch.Size], seeds: Mapping[str, int], tied: bool) -> None:
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = {}
    for name, shape in shapes.items():
        if name == "model.norm.weight" and tied:
            tensors[name] = torch.full(shape, SPREAD / shape[0] ** 0.5 / _STD, dtype=torch.bfloat16)
        elif name.endswith("norm.weight"):
            tensors[name] = torch.ones(shape, dtype=torch.bfloat16)
        elif name.endswith(".bias"):
            tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)
        else:
            std = SPREAD / shape[1] ** 0.5 if name == "lm_head.weight" else _STD
            generator = torch.Generator(device).manual_seed(seeds[name])
            tensor = torch.empty(shape, dtype=torch.bfloat16, device=device)
            tensors[name] = tensor.normal_(0, std, generator=generator).cpu()
    save_file(tensors, path, metadata={"format": "pt"})


def _tokenizer(vocabulary: int) -> Any:
    """Prompts are written in single bytes; the model also samples the other words, `w<id>`."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words = [*special, *sorted(ByteLevel.alphabet())]
    if vocabulary < len(words):
        raise ValueError(f"vocab_size={vocabulary}: the tokenizer's bytes and special words are {len(words)}")
    words += [f"w{number}" for number in range(len(words), vocabulary)]
    tokenizer = Qwen2Tokenizer(
        vocab={word: number for number, word in enumerate(words)},
        merges=[],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def save_data(folder: Path, prompts: int = 256) -> None:
    """Writes `train.parquet` (prompts of some 40 characters), `test.parquet` (8 of them) and `reward.py`."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"number {i}" + "?" * (i % 20) for i in range(prompts)]
    rows = [
        {
            "data_source": "words",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": text},
            "extra_info": {"index": i},
        }
        for i, text in enumerate(texts)
    ]
    pd.DataFrame(rows).to_parquet(folder / "train.parquet")
    pd.DataFrame(rows[:8]).to_parquet(folder / "test.parquet")
    (folder / "reward.py").write_text(_REWARD, encoding="utf-8")
