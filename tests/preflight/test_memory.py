"""The memory formulas against what PyTorch itself counts, for a small model on the CPU."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from gtpo_verl.entropy import logprob
from gtpo_verl.preflight import memory
from gtpo_verl.preflight.architecture import shape_of

TOKENS = 96
SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "attn_implementation": "sdpa",
}


def model(tied: bool = False, **sizes) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **sizes}, tie_word_embeddings=tied))


def size_of(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_state_is_exact(tied: bool, dtype: torch.dtype) -> None:
    net = model(tied).to(dtype)
    shape = shape_of(net.config)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.arange(16)[None]).logits.float().logsumexp(-1).sum().backward()
    optimizer.step()

    width = dtype.itemsize
    assert memory.weights(shape.parameters, 1, width) == size_of(net.parameters())
    assert memory.gradients(shape.parameters, 1, width) == size_of(p.grad for p in net.parameters())
    moments = [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
    assert memory.optimizer(shape.parameters, 1, width) == size_of(moments)


@pytest.mark.parametrize("ranks", [1, 2, 7, 128])
def test_shards_cover_the_parameters(ranks: int) -> None:
    shard = memory.weights(1000, ranks, 4)
    assert shard * ranks >= 4000
    assert (shard - 4) * ranks < 4000


class Saved:
    """Bytes that autograd keeps for backward, now and at most; views of one storage count once, parameters never."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.apart = {p.untyped_storage().data_ptr() for p in net.parameters()}
        self.held: dict[int, int] = {}
        self.now = self.peak = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor):
            yield

    def _pack(self, tensor: torch.Tensor) -> "Held":
        held, storage = Held(tensor), tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self.apart:
            if self.held.get(key, 0) == 0:
                self.now += storage.nbytes()
            self.held[key] = self.held.get(key, 0) + 1
            self.peak = max(self.peak, self.now)
            weakref.finalize(held, self._release, key, storage.nbytes())
        return held

    def _release(self, key: int, size: int) -> None:
        self.held[key] -= 1
        if self.held[key] == 0:
            self.now -= size


class Held:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def decoder_peak(net: Qwen2ForCausalLM, tokens: int) -> int:
    """Bytes saved by forward and backward through the decoder layers at the worst moment."""
    saved = Saved(net)
    embedded = net.get_input_embeddings()(torch.arange(tokens)[None]).detach().requires_grad_()
    with saved.counting():
        # Layers alone: the last norm and the logits have formulas of their own.
        positions = torch.arange(tokens)[None]
        rotary = net.model.rotary_emb(embedded, positions)
        saved.apart |= {part.untyped_storage().data_ptr() for part in rotary}
        hidden = embedded
        for layer in net.model.layers:
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary, position_ids=positions)
        hidden.sum().backward()
    assert saved.now == 0
    return saved.peak


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("sizes", [{}, {"num_key_value_heads": 8}, {"intermediate_size": 1024}], ids=str)
def test_saved_activations(dtype: torch.dtype, sizes: dict) -> None:
    net = model(**sizes).to(dtype).train()
    formula = memory.activations(shape_of(net.config), TOKENS, dtype.itemsize, checkpointing=False)
    assert decoder_peak(net, TOKENS) == pytest.approx(formula, rel=0.005)


@DTYPES
def test_saved_activations_with_gradient_checkpointing(dtype: torch.dtype) -> None:
    """The reentrant form: it keeps what verl's keeps, and keeps it through autograd's hooks.

    In fp32 a layer's input and what its first norm saves are one tensor, which the formula counts twice.
    """
    net = model().to(dtype).train()
    net.gradient_checkpointing_enable({"use_reentrant": True})
    formula = memory.activations(shape_of(net.config), TOKENS, dtype.itemsize, checkpointing=True)
    assert decoder_peak(net, TOKENS) == pytest.approx(formula, rel=0.05)
    assert formula < memory.activations(shape_of(net.config), TOKENS, dtype.itemsize, checkpointing=False) / 2


@DTYPES
def test_logits_are_kept_once(dtype: torch.dtype) -> None:
    net = model().to(dtype)
    shape, saved = shape_of(net.config), Saved(net)
    hidden = torch.randn(TOKENS, shape.hidden, dtype=dtype, requires_grad=True)
    saved.apart.add(hidden.untyped_storage().data_ptr())
    with saved.counting():
        logits = net.lm_head(hidden)
        log_prob = logprob(logits, torch.zeros(TOKENS, dtype=torch.long), inplace_backward=True)
        expected = memory.logits(shape, TOKENS, dtype.itemsize, fused=True)
        assert saved.peak == pytest.approx(expected, rel=0.03)  # a few numbers a token, beside 512 logits
        del logits
        log_prob.sum().backward()
    assert saved.peak == pytest.approx(expected, rel=0.03)


@DTYPES
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_kv_cache_is_exact(dtype: torch.dtype, kv_heads: int) -> None:
    net = model(num_key_value_heads=kv_heads).to(dtype).eval()
    cache = DynamicCache(config=net.config)
    with torch.no_grad():
        net(torch.arange(TOKENS)[None], past_key_values=cache, use_cache=True)
    kept = size_of(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))
    shape = shape_of(net.config)
    assert TOKENS * memory.kv_cache_token(shape, 1, dtype.itemsize) == kept
    # vLLM copies the heads where there are fewer than ranks.
    assert memory.kv_cache_token(shape, 2, dtype.itemsize) == memory.kv_cache_token(shape, 1, dtype.itemsize) / (
        2 if kv_heads > 1 else 1
    )


@pytest.mark.parametrize("contents", [["model"], ["model", "optimizer", "extra"]], ids=str)
def test_checkpoint_on_disk(contents: list[str], tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.arange(16)[None]).logits.logsumexp(-1).sum().backward()
    optimizer.step()
    states = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    for name, state in states.items():
        if name in contents:
            torch.save(state, tmp_path / name)
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    formula = memory.checkpoint(shape_of(net.config).parameters, contents, 4)
    assert written == pytest.approx(formula, rel=0.03)  # names and padding of a model this small


def test_checkpoint_with_a_hugging_face_copy() -> None:
    assert memory.checkpoint(1000, ["model", "optimizer", "extra", "hf_model"], 4) == 14_000
