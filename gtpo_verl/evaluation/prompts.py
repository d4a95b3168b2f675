"""Prompts as the model reads them, and what they leave for the response."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from gtpo_verl.evaluation.models import Model
from gtpo_verl.evaluation.problems import ProblemFile

# Those that make the context longer than `max_position_embeddings` says, in vLLM too.
_STRETCHED = ("linear", "dynamic", "yarn")


class Encoder:
    """Applies a model's chat template as verl's agent loops do.

    Args:
        chat_template: file with another template; None: the run's
            (`actor_rollout_ref.model.custom_chat_template`), else the tokenizer's own.

    Raises:
        ValueError: the tokenizer cannot be read or has no chat template.
    """

    def __init__(self, model: Model, chat_template: Path | None = None) -> None:
        from transformers import AutoTokenizer

        self._model = model
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(model.folder))
        except Exception as error:  # transformers raises whatever a damaged file leads to
            raise ValueError(f"{model.folder}: the tokenizer cannot be read: {error}") from error
        template = chat_template.read_text("utf-8") if chat_template else None
        template = template or model.setting("actor_rollout_ref.model.custom_chat_template")
        self._tokenizer.chat_template = template or self._tokenizer.chat_template
        if self._tokenizer.chat_template is None:
            raise ValueError(
                f"{model.label}: {model.folder} has no chat template; name a file with one: --chat-template"
            )
        kwargs = model.setting("data.apply_chat_template_kwargs")
        self._kwargs: Any = OmegaConf.to_container(kwargs) if kwargs else {}

    def encode(self, file: ProblemFile) -> list[list[int]]:
        """Token ids of each problem's prompt.

        Raises:
            ValueError: the template refuses one; names file and row.
        """
        found = []
        for problem in file.problems:
            try:
                ids = self._tokenizer.apply_chat_template(
                    problem.messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self._kwargs
                )
            except Exception as error:  # templates raise their own
                raise ValueError(
                    f"{file.path}: row {problem.row}: the chat template of {self._model.label} refuses it: {error}"
                ) from error
            found.append([int(one) for one in ids])
        return found


def fingerprint(token_ids: Sequence[Sequence[int]]) -> str:
    """32 hex digits of a data set's prompts."""
    return hashlib.blake2b(json.dumps(token_ids).encode(), digest_size=16).hexdigest()


def room(
    model: Model, files: Sequence[ProblemFile], token_ids: Mapping[str, Sequence[Sequence[int]]], max_tokens: int | None
) -> int:
    """Tokens that the longest prompt leaves for the response.

    Raises:
        ValueError: fewer than `max_tokens`, or none; names file and row.
    """
    longest, file, row = max(
        (
            (len(ids), file, problem.row)
            for file in files
            for problem, ids in zip(file.problems, token_ids[file.name], strict=True)
        ),
        key=lambda found: found[0],
    )
    length = context_length(model)
    if length is None:
        return max_tokens or 1 << 30
    left = length - longest
    if left < (max_tokens or 1):
        raise ValueError(
            f"--max-tokens {max_tokens or 1}: {model.label} has {length:,} tokens of context, and the prompt of "
            f"{file.path}, row {row}, takes {longest:,} of them"
        )
    return left


def context_length(model: Model) -> int | None:
    """Tokens of prompt and response that the model was made for; None where its configuration does not say.

    Raises:
        ValueError: the configuration cannot be read.
    """
    config = _text_config(model)
    positions = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if positions is not None and rope.get("rope_type", rope.get("type")) in _STRETCHED:
        return int(rope.get("original_max_position_embeddings", positions) * rope.get("factor", 1))
    return positions


def check_heads(model: Model, tensor_parallel: int) -> None:
    """Raises ValueError where the model's heads cannot be spread over so many GPUs."""
    heads = getattr(_text_config(model), "num_attention_heads", None)
    if heads is not None and heads % tensor_parallel:
        raise ValueError(f"--tensor-parallel {tensor_parallel}: {model.label} has {heads} attention heads")


def _text_config(model: Model) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(model.folder)).get_text_config()
    except Exception as error:  # transformers raises whatever a damaged file leads to
        raise ValueError(f"{model.folder}: config.json cannot be read: {error}") from error
