"""How much memory a run needs, by formulas (docs/preflight.md has them in one table). All results are in bytes.

Symbols: P parameters, N ranks that share the parameters, T tokens a GPU in one micro-batch, L layers, h hidden size,
I intermediate size, V vocabulary, A and K widths of all query and all key heads, b bytes of the compute dtype.
"""

from gtpo_verl.preflight.architecture import ModelShape

GIB = 2**30
# Adam's two moments have the parameters' dtype; so have the sharded gradients.
_ADAM_MOMENTS = 2


def weights(parameters: int, ranks: int, dtype_bytes: int) -> int:
    """Sharded parameters of one rank: b P / N."""
    return dtype_bytes * -(-parameters // ranks)


def gradients(parameters: int, ranks: int, dtype_bytes: int) -> int:
    """Sharded gradients of one rank, in the parameters' dtype: b P / N."""
    return weights(parameters, ranks, dtype_bytes)


def optimizer(parameters: int, ranks: int, dtype_bytes: int) -> int:
    """Adam's two moments of one rank, in the parameters' dtype: 2 b P / N."""
    return _ADAM_MOMENTS * weights(parameters, ranks, dtype_bytes)


def gathered(shape: ModelShape, dtype_bytes: int) -> int:
    """What FSDP2 holds unsharded in the compute dtype: the root, the unit that computes and the one fetched ahead."""
    return dtype_bytes * (shape.root + 2 * shape.largest_unit)


def reduced_gradient(shape: ModelShape, reduce_bytes: int) -> int:
    """The gradient of the largest unit, or of the root, in the dtype of the reduction, while a layer goes backward."""
    return reduce_bytes * max(shape.largest_unit, shape.root)


def head_gradient(shape: ModelShape, dtype_bytes: int) -> int:
    """The LM head's gradient, unsharded, beside the logits' own: b V h."""
    return dtype_bytes * shape.vocabulary * shape.hidden


def layer_activations(shape: ModelShape, tokens: int, dtype_bytes: int) -> int:
    """What one decoder layer saves for backward: T (2 (4 + 2b) h + b (2A + 2K) + 4 b I + 4 heads).

    Each of two RMS norms saves its input in fp32, the normalised input and its result, the last one as the input of
    the linear maps behind it; attention saves query, key, value, result and fp32 log-sum-exp; SwiGLU saves gate, its
    activation, up and their product. Attention scores are never stored (flash attention).
    """
    norms = 2 * (4 + 2 * dtype_bytes) * shape.hidden
    attention = dtype_bytes * 2 * (shape.query_width + shape.key_width) + 4 * shape.heads
    return tokens * (norms + attention + 4 * dtype_bytes * shape.intermediate)


def saved_activations(shape: ModelShape, tokens: int, dtype_bytes: int, checkpointing: bool) -> int:
    """Saved for backward by all layers: what each saves, or with gradient checkpointing its input alone (T h b)."""
    if checkpointing:
        return shape.layers * tokens * shape.hidden * dtype_bytes
    return shape.layers * layer_activations(shape, tokens, dtype_bytes)


def activations(shape: ModelShape, tokens: int, dtype_bytes: int, checkpointing: bool) -> int:
    """The same while a layer goes backward: with gradient checkpointing one layer's own are there again."""
    saved = saved_activations(shape, tokens, dtype_bytes, checkpointing)
    return saved + (layer_activations(shape, tokens, dtype_bytes) if checkpointing else 0)


def backward_buffers(shape: ModelShape, tokens: int, dtype_bytes: int) -> int:
    """Gradients that live while one layer goes backward: of gate, up, their product and two of the hidden state."""
    return tokens * dtype_bytes * (3 * shape.intermediate + 2 * shape.hidden)


def logits(shape: ModelShape, tokens: int, dtype_bytes: int, fused: bool) -> int:
    """T V b with `gtpo_verl.entropy`, which writes the gradient over the logits; verl's own path holds about three."""
    return (1 if fused else 3) * tokens * shape.vocabulary * dtype_bytes


def kv_cache_token(shape: ModelShape, tensor_parallel: int, dtype_bytes: int) -> int:
    """Keys and values of one token on one GPU: 2 L ceil(kv_heads / tp) head_size b."""
    return 2 * shape.layers * -(-shape.kv_heads // tensor_parallel) * shape.head_size * dtype_bytes


def rollout_buffers(shape: ModelShape, batched_tokens: int, sequences: int, tensor_parallel: int, b: int) -> int:
    """vLLM's activations in its profiling run: the widest layer of a full batch, and fp32 logits of every sequence."""
    wide = batched_tokens * b * (4 * shape.hidden + 3 * -(-shape.intermediate // tensor_parallel))
    return wide + 3 * 4 * sequences * shape.vocabulary


def checkpoint(parameters: int, contents: list[str], dtype_bytes: int) -> int:
    """One checkpoint on disk, all ranks together: weights, Adam's moments, and `hf_model` in bf16."""
    size = dtype_bytes * parameters if "model" in contents else 0
    size += _ADAM_MOMENTS * dtype_bytes * parameters if "optimizer" in contents else 0
    return size + (2 * parameters if "hf_model" in contents else 0)
