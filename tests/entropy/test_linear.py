"""From hidden states: values, chunks, gradients, and the pair's one arithmetic."""

import math
import os

import pytest
import torch

from gtpo_verl.entropy import linear as module
from gtpo_verl.entropy import linear_logprob, linear_logprob_entropy, logprob_entropy

interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # one program per row is a Python loop there
DTYPES = [torch.bfloat16, torch.float32] if interpreted else [torch.bfloat16, torch.float16, torch.float32]
TOKENS = (2, 3) if interpreted else (3, 7)


def make(device, dtype, tokens=TOKENS, width=48, vocabulary=515):
    hidden = torch.randn(*tokens, width, device=device).to(dtype)
    weight = (torch.randn(vocabulary, width, device=device) * 0.5).to(dtype)
    labels = torch.randint(0, vocabulary, tokens, device=device)
    temperature = torch.rand(tokens, device=device) + 0.5
    return hidden, weight, labels, temperature


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_tokens", [4] if interpreted else [None, 1, 4, 21, 1000])
def test_fp32_logits_match_float64_on_the_same_inputs(device, dtype, chunk_tokens, exact, assert_close_to_exact):
    hidden, weight, labels, temperature = make(device, dtype)
    truth = exact(hidden.double() @ weight.double().T, labels, temperature)
    log_prob, entropy = linear_logprob_entropy(hidden, weight, labels, temperature, chunk_tokens=chunk_tokens)
    torch.testing.assert_close(log_prob.double(), truth.log_prob, rtol=0, atol=1e-4)
    torch.testing.assert_close(entropy.double(), truth.entropy, rtol=0, atol=1e-4)
    assert log_prob.shape == labels.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("level", [-10240.0, -512.0, 10240.0])
@pytest.mark.parametrize("columns", [256, 1 << 20])
def test_logits_far_from_zero(device, dtype, level, columns, monkeypatch, exact):
    """In one part of the vocabulary and in several; the gradients too."""
    monkeypatch.setattr(module, "PART_ELEMENTS", columns * 48)
    monkeypatch.setattr(module, "BUFFER_BYTES", columns * 24)
    hidden, weight, labels, _ = make(device, dtype, vocabulary=700)
    hidden[..., 0], weight[:, 0] = 16.0, level / 16
    logits = (hidden.double() @ weight.double().T).requires_grad_()
    assert (logits.abs() > 400).all()
    truth = exact(logits, labels)
    tolerance = 1e-6 * abs(level)  # of fp32 sums of that size
    log_prob, entropy = linear_logprob_entropy(hidden, weight, labels)
    torch.testing.assert_close(log_prob.double(), truth.log_prob, rtol=0, atol=tolerance)
    torch.testing.assert_close(entropy.double(), truth.entropy, rtol=0, atol=tolerance)

    torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).sum().backward()
    wanted = logits.grad @ weight.double(), logits.grad.flatten(0, -2).T @ hidden.double().flatten(0, -2)
    hidden.requires_grad_(), weight.requires_grad_()
    linear_logprob(hidden, weight, labels).sum().backward()
    for ours, exactly in zip((hidden.grad, weight.grad), wanted, strict=True):
        # Without the column that makes the level: the hidden states' gradient there is nothing but rounding.
        ours, exactly = ours.double()[..., 1:], exactly[..., 1:]
        assert (ours - exactly).norm() <= (tolerance + 1e-2) * exactly.norm()


@pytest.mark.parametrize("vocabulary", [1, 40, 256, 700])
@pytest.mark.parametrize("chunk_tokens", [None, 33])
@pytest.mark.parametrize("per_token", [False, True])
def test_the_matmul_that_writes_no_logits(device, vocabulary, chunk_tokens, per_token, monkeypatch, exact):
    """On Hopper GPUs and in Triton's interpreter; its every rule about tiles, and what the other way gives."""
    fused = pytest.importorskip("gtpo_verl.entropy._fused")
    hidden, weight, labels, temperature = make(device, torch.float16, tokens=(36,), vocabulary=vocabulary)
    if not fused.serves(hidden, weight):
        pytest.skip("needs a GPU of compute capability 9.0, or Triton's interpreter")
    temperature = temperature if per_token else 0.7
    labels[5], labels[6] = -100, vocabulary  # prompts; beyond the vocabulary, inside the last tile
    weight[vocabulary // 2 :] = weight[: vocabulary - vocabulary // 2].clone()  # every maximum twice, in other tiles
    hidden[7], hidden[8] = 0.0, math.inf
    options = {"chunk_tokens": chunk_tokens}
    ours = linear_logprob_entropy(hidden, weight, labels, temperature, **options)
    monkeypatch.setattr(module, "_fused", None)
    other = linear_logprob_entropy(hidden, weight, labels, temperature, **options)
    truth = exact(hidden.double() @ weight.double().T, labels.clamp(0, vocabulary - 1), temperature)
    for value, same, exactly in zip(ours, other, (truth.log_prob, truth.entropy), strict=True):
        torch.testing.assert_close(value, same, rtol=1e-5, atol=2e-5, equal_nan=True)
        known = torch.ones(36, dtype=torch.bool, device=device).index_fill(
            0, torch.tensor([5, 6, 8], device=device), False
        )
        torch.testing.assert_close(value.double()[known], exactly[known], rtol=0, atol=1e-4)
    assert ours[0].isnan().nonzero().flatten().tolist() == [5, 6, 8]
    assert ours[1].isnan().nonzero().flatten().tolist() == [8]
    assert ours[1][7].item() == pytest.approx(math.log(vocabulary), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_labels_of_any_integer_type(device, dtype):
    hidden, weight, labels, _ = make(device, torch.float16, tokens=(36,), vocabulary=300)
    labels = labels.clamp(max=255)
    narrow, wide = (linear_logprob_entropy(hidden, weight, each)[0] for each in (labels.to(dtype), labels))
    assert torch.equal(narrow, wide)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [256, 1 << 20])
def test_half_logits_far_below_zero(device, dtype, columns, monkeypatch, exact):
    monkeypatch.setattr(module, "BUFFER_BYTES", columns * 24)
    hidden, weight, labels, _ = make(device, dtype, vocabulary=700)
    hidden[..., 0], weight[:, 0] = 16.0, -32.0
    logits = (hidden.double() @ weight.double().T).to(dtype)  # the rounded logits are what is asked about
    assert (logits < -400).all()
    truth = exact(logits, labels)
    step = 4 if dtype == torch.bfloat16 else 0.5  # a logit that is rounded to its other neighbour
    hidden.requires_grad_()
    log_prob, entropy = linear_logprob_entropy(hidden, weight, labels, logits_dtype=dtype)
    torch.testing.assert_close(log_prob.double(), truth.log_prob, rtol=0, atol=step)
    torch.testing.assert_close(entropy.double(), truth.entropy, rtol=0, atol=step)
    linear_logprob(hidden, weight, labels, logits_dtype=dtype).sum().backward()
    assert hidden.grad.isfinite().all()
    assert hidden.grad.any()


@pytest.mark.parametrize("chunk_tokens", [2, 1000])
def test_a_long_vocabulary_is_read_in_parts(device, chunk_tokens, monkeypatch, exact):
    monkeypatch.setattr(module, "PART_ELEMENTS", 256 * 48)
    hidden, weight, labels, temperature = make(device, torch.float32, vocabulary=700)
    labels[0, 0], labels[0, 1] = 699, 256
    truth = exact(hidden.double() @ weight.double().T, labels, temperature)
    options = {"chunk_tokens": chunk_tokens}
    log_prob, entropy = linear_logprob_entropy(hidden, weight, labels, temperature, **options)
    torch.testing.assert_close(log_prob.double(), truth.log_prob, rtol=0, atol=1e-4)
    torch.testing.assert_close(entropy.double(), truth.entropy, rtol=0, atol=1e-4)
    assert torch.equal(linear_logprob(hidden.requires_grad_(), weight, labels, temperature, **options), log_prob)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_logits_are_the_models_own(device, dtype):
    hidden, weight, labels, temperature = make(device, dtype)
    with torch.no_grad():
        whole = logprob_entropy(hidden @ weight.T, labels, temperature)
    chunked = linear_logprob_entropy(hidden, weight, labels, temperature, logits_dtype=dtype)
    for a, b in zip(chunked, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_the_buffer_holds_one_chunk(device, monkeypatch):
    """Never all logits: nothing of tokens times vocabulary is asked for."""
    hidden, weight, labels, temperature = make(device, torch.float32, tokens=(256,), width=8, vocabulary=512)
    monkeypatch.setattr(module, "BUFFER_BYTES", 128 * 512 * 4)
    sizes = []
    empty = torch.empty

    def recording(*shape, **kwargs):
        result = empty(*shape, **kwargs)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(torch, "empty", recording)
    weight.requires_grad_()
    linear_logprob(hidden, weight, labels, temperature).sum().backward()
    assert 128 * 512 in sizes
    assert max(sizes) == 128 * 512


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("buffer_bytes", [1, 1 << 30])
def test_gradients_match_float64(device, dtype, buffer_bytes, monkeypatch):
    monkeypatch.setattr(module, "BUFFER_BYTES", buffer_bytes)
    hidden, weight, labels, temperature = make(device, dtype)
    grad = torch.randn(labels.shape, device=device)

    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    log_p = torch.log_softmax(h @ w.T / temperature.double().unsqueeze(-1), -1)
    log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1).backward(grad.double())

    hidden.requires_grad_(), weight.requires_grad_()
    linear_logprob(hidden, weight, labels, temperature).backward(grad)
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}[dtype]
    for ours, truth in ((hidden.grad, h.grad), (weight.grad, w.grad)):
        assert (ours.double() - truth).norm() <= tolerance * truth.norm()


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_a_frozen_input_gets_no_gradient_and_does_not_change_the_other(device, frozen):
    hidden, weight, labels, temperature = make(device, torch.float32)

    def grads(hidden_needs, weight_needs):
        h, w = hidden.clone().requires_grad_(hidden_needs), weight.clone().requires_grad_(weight_needs)
        linear_logprob(h, w, labels, temperature).sum().backward()
        return h.grad, w.grad

    both, one = grads(True, True), grads(frozen != "hidden", frozen != "weight")
    kept = 1 if frozen == "hidden" else 0
    assert one[1 - kept] is None
    assert torch.equal(one[kept], both[kept])


def test_tied_embeddings_add_their_gradients(device):
    _, weight, labels, _ = make(device, torch.float32)
    leaf = weight.clone().requires_grad_()
    linear_logprob(torch.nn.functional.embedding(labels, leaf), leaf, labels).sum().backward()
    plain = weight.clone().requires_grad_()
    log_p = torch.log_softmax(torch.nn.functional.embedding(labels, plain) @ plain.T, -1)
    log_p.gather(-1, labels.unsqueeze(-1)).sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits_dtype", [None, "hidden"])
def test_the_update_repeats_the_log_prob_pass_bit_for_bit(device, dtype, logits_dtype):
    hidden, weight, labels, temperature = make(device, dtype)
    options = {"chunk_tokens": 5, "logits_dtype": dtype if logits_dtype else None}
    old = linear_logprob_entropy(hidden, weight, labels, temperature, **options)[0]
    new = linear_logprob(hidden.requires_grad_(), weight.requires_grad_(), labels, temperature, **options)
    assert new.requires_grad
    assert torch.equal(old, new)


def test_autocast_does_not_round_the_logits(device):
    hidden, weight, labels, temperature = make(device, torch.float32)
    plain = linear_logprob_entropy(hidden, weight, labels, temperature)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(linear_logprob_entropy(hidden, weight, labels, temperature)[0], plain[0])
        hidden.requires_grad_()
        assert torch.equal(linear_logprob(hidden, weight, labels, temperature), plain[0])


def test_no_tokens(device):
    hidden, weight, labels, temperature = make(device, torch.float32, tokens=(0,))
    log_prob, entropy = linear_logprob_entropy(hidden, weight, labels, temperature)
    assert log_prob.shape == entropy.shape == (0,)
    hidden.requires_grad_(), weight.requires_grad_()
    linear_logprob(hidden, weight, labels, temperature).sum().backward()
    assert not weight.grad.any()


def test_float64_stays_float64():
    hidden, weight, labels, _ = make("cpu", torch.float64)
    log_prob, _ = linear_logprob_entropy(hidden, weight, labels)
    truth = torch.log_softmax(hidden @ weight.T, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(log_prob, truth)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"weight": torch.ones(5, 3)}, ValueError, "weight"),
        ({"weight": torch.ones(5, 4, dtype=torch.bfloat16)}, TypeError, "weight"),
        ({"hidden": torch.ones(2, 4, dtype=torch.int64)}, TypeError, "floating-point"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, ValueError, "labels"),
        ({"labels": torch.zeros(2)}, TypeError, "integers"),
        ({"temperature": -1.0}, ValueError, "positive"),
        ({"chunk_tokens": 0}, ValueError, "chunk_tokens"),
        ({"logits_dtype": torch.float16}, ValueError, "logits_dtype"),
    ],
)
def test_refuses_what_it_cannot_mean(change, error, message):
    arguments = {"hidden": torch.ones(2, 4), "weight": torch.ones(5, 4), "labels": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(error, match=message):
        linear_logprob_entropy(**{**arguments, **change})
