"""The sizes of a model that the memory formulas need, from its configuration alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only model, without its weights.

    Attributes:
        parameters: all of them; tied embeddings count once.
        largest_unit: parameters of the largest module that FSDP2 gathers at once (a layer, an untied embedding).
        root: parameters in no such module, gathered from forward to backward (tied embedding, last norm).
        query_width, key_width: heads x head size, of the queries and of the keys.
        tied: whether input and output embedding are one tensor.
    """

    parameters: int
    largest_unit: int
    root: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    max_position_embeddings: int
    tied: bool

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_size


def published_shape(architecture: Mapping[str, Any]) -> ModelShape:
    """Of `gtpo_verl.architecture`: `model_type`, and the fields of that type's transformers configuration.

    Raises:
        ValueError: an unknown type, or one without a formula.
    """
    from transformers import AutoConfig

    fields = dict(architecture)
    if "model_type" not in fields:
        raise ValueError("gtpo_verl.architecture has no model_type (e.g. qwen2)")
    return shape_of(AutoConfig.for_model(fields.pop("model_type"), **fields))


def shape_of(config: Any) -> ModelShape:
    """Of a transformers configuration, through the real model on the meta device, which holds no weights.

    What FSDP2 gathers at once is what verl wraps (`verl/utils/fsdp_utils.py`, `_select_fsdp2_wrap_targets`).

    Raises:
        ValueError: an architecture that is no causal language model, or lacks one of the sizes.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        text = config.get_text_config()
        if getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None):
            raise ValueError("a mixture of experts")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        wrapped = set(model._no_split_modules or ())
        units = [module for module in model.modules() if type(module).__name__ in wrapped]
        tied = bool(text.tie_word_embeddings)
        if not tied:
            units += [model.get_input_embeddings(), model.get_output_embeddings()]
        sizes = [sum(p.numel() for p in unit.parameters()) for unit in units]
        total = sum(p.numel() for p in model.parameters())  # yields a shared parameter once
        return ModelShape(
            parameters=total,
            largest_unit=max(sizes),
            root=total - sum(sizes),
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=text.intermediate_size,
            heads=text.num_attention_heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
            head_size=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            vocabulary=text.vocab_size,
            max_position_embeddings=text.max_position_embeddings,
            tied=tied,
        )
    except Exception as error:  # as transformers raises it
        raise ValueError(f"{type(config).__name__}: no memory formula for this architecture ({error})") from error
