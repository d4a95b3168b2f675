"""Log-probability and entropy from logits: values, special values, layouts, gradients."""

import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gtpo_verl.entropy import logprob, logprob_entropy
from gtpo_verl.entropy.functional import backend

# One program per row is a Python loop under Triton's interpreter.
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = [torch.bfloat16, torch.float32] if interpreted else [torch.bfloat16, torch.float16, torch.float32]
inf, nan = math.inf, math.nan
not_interpreted = pytest.mark.skipif(interpreted, reason="minutes under Triton's interpreter")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [1, 2, 31, 257, 700] if interpreted else [1, 2, 3, 31, 256, 257, 1000, 4099])
def test_matches_float64(device, dtype, vocabulary, policy_logits, exact, assert_close_to_exact):
    logits, labels = policy_logits(4 if interpreted else 12, vocabulary, dtype=dtype, device=device)
    assert_close_to_exact(*logprob_entropy(logits, labels), exact(logits, labels))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [9001] if interpreted else [49152, 50257, 152064, 262144])
def test_matches_float64_for_real_vocabularies(device, dtype, vocabulary, policy_logits, exact, assert_close_to_exact):
    logits, labels = policy_logits(2 if interpreted else 16, vocabulary, dtype=dtype, device=device)
    assert_close_to_exact(*logprob_entropy(logits, labels), exact(logits, labels))


@pytest.mark.parametrize("margin", [5.0, 10.0, 15.0, 20.0, 30.0, 60.0])
def test_entropy_keeps_its_relative_accuracy_near_certainty(device, margin):
    """GTPO divides by it. The margin of one token over 1000 others takes H from 4 down to 1e-21.

    The truth is the closed form: a float64 softmax rounds 1 - p itself.
    """
    logits = torch.zeros(4, 1001, device=device)
    logits[range(4), [0, 1, 500, 1000]] = margin
    others = 1000 * math.exp(-margin)
    log_prob, entropy = logprob_entropy(logits, torch.tensor([0, 1, 500, 1000], device=device))
    assert entropy.tolist() == pytest.approx([math.log1p(others) + margin * others / (1 + others)] * 4, rel=1e-5)
    assert log_prob.tolist() == pytest.approx([-math.log1p(others)] * 4, rel=1e-5)


@pytest.mark.parametrize("ties", [1, 2, 3, 7, 64, 600])
def test_equal_maxima_are_all_counted(device, ties, exact, assert_close_to_exact):
    logits = torch.full((1, 600), -40.0, device=device)
    logits[0, torch.randperm(600)[:ties]] = 3.0
    labels = logits.argmax(-1)
    assert_close_to_exact(*logprob_entropy(logits, labels), exact(logits, labels))
    assert logprob_entropy(logits, labels)[1].item() == pytest.approx(math.log(ties), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("order", ["rising", "falling"])
def test_the_maximum_may_move_through_the_row(device, order, exact, assert_close_to_exact):
    logits = torch.linspace(-30, 30, 1500, device=device)[None]
    logits = logits if order == "rising" else logits.flip(-1)
    labels = torch.tensor([750], device=device)
    assert_close_to_exact(*logprob_entropy(logits, labels), exact(logits, labels))


@pytest.mark.parametrize("temperature", [0.1, 2.0] if interpreted else [0.1, 0.5, 0.7, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_temperature_is_that_of_the_softmax(device, temperature, dtype, policy_logits, exact, assert_close_to_exact):
    logits, labels = policy_logits(6, 700, dtype=dtype, device=device)
    truth = exact(logits, labels, temperature)
    assert_close_to_exact(*logprob_entropy(logits, labels, temperature), truth)
    per_token = torch.full((6,), temperature, device=device)
    assert_close_to_exact(*logprob_entropy(logits, labels, per_token), truth)


def test_each_token_may_have_its_own_temperature(device, policy_logits, exact, assert_close_to_exact):
    logits, labels = policy_logits(3, 5, 300, device=device)
    temperature = torch.linspace(0.1, 2.0, 15, device=device).view(3, 5)
    assert_close_to_exact(*logprob_entropy(logits, labels, temperature), exact(logits, labels, temperature))


def test_a_tensor_temperature_that_is_not_positive_gives_nan_on_its_row_only(device, policy_logits):
    logits, labels = policy_logits(4, 50, device=device)
    log_prob, entropy = logprob_entropy(logits, labels, torch.tensor([1.0, 0.0, -1.0, 1.0], device=device))
    assert log_prob.isnan().tolist() == entropy.isnan().tolist() == [False, True, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_infinity_is_probability_zero(device, dtype, policy_logits):
    logits, _ = policy_logits(5, 600, dtype=dtype, device=device)
    allowed = torch.arange(0, 600, 7, device=device)
    masked = torch.full_like(logits, -inf)
    masked[:, allowed] = logits[:, allowed]
    labels = torch.randint(0, len(allowed), (5,), device=device)
    few = logprob_entropy(logits[:, allowed], labels)
    many = logprob_entropy(masked, allowed[labels])
    torch.testing.assert_close(many[0], few[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(many[1], few[1], rtol=1e-4, atol=1e-9)
    assert (logprob_entropy(masked, labels * 0 + 1)[0] == -inf).all()


def test_a_single_allowed_token_is_certain(device):
    logits = torch.full((1, 999), -inf, device=device)
    logits[0, 998] = -5.0
    log_prob, entropy = logprob_entropy(logits, torch.tensor([998], device=device))
    assert log_prob.item() == 0
    assert entropy.item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("at", [0, 17, 299])
@pytest.mark.parametrize("bad", [nan, inf])
def test_nan_and_plus_infinity_give_nan_on_their_row_only(device, dtype, at, bad, policy_logits):
    logits, labels = policy_logits(3, 300, dtype=dtype, device=device)
    logits[1, at] = bad
    log_prob, entropy = logprob_entropy(logits, labels)
    assert log_prob.isnan().tolist() == [False, True, False]
    assert entropy.isnan().tolist() == [False, True, False]


def test_nan_among_minus_infinity_gives_nan(device):
    logits = torch.full((2, 300), -inf, device=device)
    logits[1, 200] = nan
    log_prob, entropy = logprob_entropy(logits, torch.tensor([200, 0], device=device))
    assert log_prob.isnan().all()
    assert entropy.isnan().all()


@pytest.mark.parametrize("label", [-1, -100, 40, 10**9])
def test_a_label_outside_the_vocabulary_gives_nan_and_leaves_the_entropy(device, label, policy_logits):
    logits, labels = policy_logits(3, 40, device=device)
    truth = logprob_entropy(logits, labels)[1]
    labels[1] = label
    log_prob, entropy = logprob_entropy(logits, labels)
    assert log_prob.isnan().tolist() == [False, True, False]
    assert torch.equal(entropy, truth)


@pytest.mark.parametrize("shift", [-1e4, -100.0, 1e4])
def test_a_common_shift_changes_nothing(device, shift):
    logits = torch.randint(-40, 40, (4, 500), device=device).float() / 4  # exact after the shift
    labels = torch.randint(0, 500, (4,), device=device)
    for a, b in zip(logprob_entropy(logits, labels), logprob_entropy(logits + shift, labels), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("level", [-30000.0, -10000.0, -200.0, 10000.0])
@pytest.mark.parametrize("masked", [False, True])
def test_logits_far_from_zero(device, dtype, level, masked, policy_logits, exact, assert_close_to_exact):
    """A maximum that starts at 0 (verl's Triton kernel: verl-project/verl#7439) loses rows far below it."""
    logits, labels = policy_logits(4, 701, dtype=torch.float32, device=device)
    logits = (logits + level).to(dtype)
    if masked:  # all but the label's neighbourhood, and at both ends of a row
        column = torch.arange(701, device=device)
        logits[(column - labels[:, None]).abs() % 50 > 5] = -inf
        logits[0], labels[0] = -inf, 700
        logits[0, 700] = level
    assert (logits.abs()[logits.isfinite()] > 100).all()
    grad = torch.randn(4, device=device)
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}[dtype]
    # Both kinds of temperature, and of the memory that the gradient goes to, in half of the cases each.
    temperature = torch.linspace(0.5, 1.5, 4, device=device) if masked else 1.0
    assert_close_to_exact(*logprob_entropy(logits, labels, temperature), exact(logits, labels, temperature))
    leaf = logits.clone().requires_grad_()
    logprob(leaf * 1.0, labels, temperature, inplace_backward=masked).backward(grad)
    wanted = exact_gradient(logits, labels, temperature, grad)
    torch.testing.assert_close(leaf.grad.double(), wanted, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("level", [-10000.0, 10000.0])
def test_float64_logits_far_from_zero(level):
    near = torch.randn(3, 50, dtype=torch.float64)
    labels = torch.tensor([1, 2, 3])
    for a, b in zip(logprob_entropy(near + level, labels), logprob_entropy(near, labels), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_and_smallest_finite_logits(device, dtype):
    logits = torch.full((2, 300), torch.finfo(dtype).min, dtype=dtype, device=device)
    logits[1, 5] = torch.finfo(dtype).max
    labels = torch.tensor([7, 5], device=device)
    log_prob, entropy = logprob_entropy(logits, labels)
    assert entropy.tolist() == pytest.approx([math.log(300), 0.0])
    assert log_prob.tolist() == pytest.approx([-math.log(300), 0.0])


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3), (2, 1, 3), (1, 2, 2, 2)])
def test_any_number_of_leading_dimensions(device, shape, policy_logits, exact, assert_close_to_exact):
    logits, labels = policy_logits(*shape, 130, device=device)
    log_prob, entropy = logprob_entropy(logits, labels)
    assert log_prob.shape == entropy.shape == shape
    assert_close_to_exact(log_prob, entropy, exact(logits, labels))


LAYOUTS = {
    "columns of a wider tensor": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every second column": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "vocabulary first": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "sequence first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "without the last token": lambda x: torch.cat([x, x[:, :1]], 1)[:, :-1],
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[:1, :1].expand(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_any_strides(device, layout, dtype, policy_logits):
    logits, labels = policy_logits(3, 4, 131, dtype=dtype, device=device)
    view = LAYOUTS[layout](logits)
    contiguous = view.clone(memory_format=torch.contiguous_format)
    for a, b in zip(logprob_entropy(view, labels), logprob_entropy(contiguous, labels), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_leading_dimensions_that_do_not_merge(device, policy_logits):
    logits, labels = policy_logits(4, 4, 4, 33, device=device)
    view, labels = logits[::2, :3, ::2], labels[::2, :3, ::2]
    for a, b in zip(logprob_entropy(view, labels), logprob_entropy(view.contiguous(), labels), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_of_any_integer_type(device, dtype, policy_logits):
    logits, labels = policy_logits(4, 100, device=device)
    assert torch.equal(logprob(logits, labels.to(dtype)), logprob(logits, labels))


def test_labels_and_temperature_of_any_strides(device, policy_logits):
    logits, labels = policy_logits(6, 100, device=device)
    temperature = torch.rand(6, device=device) + 0.5
    labels_view = torch.stack([labels, labels * 0], 1)[:, 0]
    temperature_view = torch.stack([temperature, temperature * 0], 1)[:, 0]
    grad = torch.tensor(0.7, device=device).expand(6)

    def run(labels, temperature, grad):
        leaf = logits.clone().requires_grad_()
        log_prob = logprob(leaf, labels, temperature)
        return log_prob, torch.autograd.grad(log_prob, leaf, grad)[0]

    for a, b in zip(run(labels_view, temperature_view, grad), run(labels, temperature, grad.clone()), strict=True):
        assert torch.equal(a, b)


@not_interpreted
def test_a_hundred_thousand_rows(device, policy_logits, exact, assert_close_to_exact):
    logits, labels = policy_logits(100_003, 17, device=device)
    assert_close_to_exact(*logprob_entropy(logits, labels), exact(logits, labels))


def test_the_logits_are_only_read(device, policy_logits):
    logits, labels = policy_logits(4, 100, device=device)
    before = logits.clone()
    logprob_entropy(logits, labels, 0.7)
    assert torch.equal(logits, before)


@settings(max_examples=25 if interpreted else 150, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.one_of(st.just(-inf), st.floats(-1e4, 1e4, width=32)), min_size=2, max_size=2),
        min_size=1,
        max_size=9,
    ).map(lambda pairs: [a for pair in pairs for a in pair]),
    temperature=st.floats(0.1, 2.0),
    label=st.integers(0, 1),
)
def test_bounds_hold_for_any_logits(rows, temperature, label):
    logits, labels = torch.tensor([rows], dtype=torch.float32), torch.tensor([label])
    log_prob, entropy = logprob_entropy(logits, labels, temperature)
    if all(x == -inf for x in rows):
        assert log_prob.isnan().all()
        assert entropy.isnan().all()
    else:
        assert log_prob.item() <= 0
        assert 0 <= entropy.item() <= math.log(len(rows)) * (1 + 1e-6)


def test_float64_stays_float64():
    logits, labels = torch.randn(3, 50, dtype=torch.float64), torch.tensor([1, 2, 3])
    log_prob, entropy = logprob_entropy(logits, labels)
    assert log_prob.dtype == entropy.dtype == torch.float64
    torch.testing.assert_close(log_prob, torch.log_softmax(logits, -1)[range(3), [1, 2, 3]])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)), TypeError, "floating-point"),
        ((torch.ones(2, 3), torch.zeros(2)), TypeError, "integers"),
        ((torch.ones(2, 3), torch.zeros(3, dtype=torch.int64)), ValueError, "shape"),
        ((torch.ones(2, 0), torch.zeros(2, dtype=torch.int64)), ValueError, "vocabulary"),
        ((torch.ones(2, 3), torch.zeros(2, dtype=torch.int64), 0.0), ValueError, "positive"),
        ((torch.ones(2, 3), torch.zeros(2, dtype=torch.int64), nan), ValueError, "positive"),
        ((torch.ones(2, 3), torch.zeros(2, dtype=torch.int64), torch.ones(3)), ValueError, "temperature"),
    ],
)
def test_refuses_what_it_cannot_mean(arguments, error, message):
    with pytest.raises(error, match=message):
        logprob_entropy(*arguments)


# The gradient of the log-probability.


def exact_gradient(logits, labels, temperature, grad):
    x = logits.detach().double().requires_grad_()
    t = temperature.double().unsqueeze(-1) if isinstance(temperature, torch.Tensor) else temperature
    log_prob = torch.log_softmax(x / t, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return torch.autograd.grad(log_prob, x, grad.double())[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [1, 33, 1030] if interpreted else [1, 2, 33, 1000, 4099])
@pytest.mark.parametrize("inplace", [True, False])
def test_gradient_matches_float64(device, dtype, vocabulary, inplace, policy_logits):
    leaf, labels = policy_logits(3, 4, vocabulary, dtype=dtype, device=device)
    temperature = torch.linspace(0.3, 2.0, 12, device=device).view(3, 4)
    grad = torch.randn(3, 4, device=device)
    grad[0, 1] = 0.0
    truth = exact_gradient(leaf, labels, temperature, grad)
    leaf.requires_grad_()
    logits = leaf * 1.0
    logprob(logits, labels, temperature, inplace_backward=inplace).backward(grad)
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}[dtype]
    torch.testing.assert_close(leaf.grad.double(), truth, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_for_any_strides(device, layout, policy_logits):
    base, labels = policy_logits(3, 4, 131, device=device)
    grad = torch.randn(3, 4, device=device)
    leaf = base.clone().requires_grad_()
    logprob(LAYOUTS[layout](leaf * 1.0), labels).backward(grad)
    plain = base.clone().requires_grad_()
    logprob(LAYOUTS[layout](plain * 1.0).contiguous(), labels, inplace_backward=False).backward(grad)
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-5, atol=1e-7)


def test_gradient_of_an_almost_certain_label_does_not_cancel(device):
    """1 - p = 1e-9 there, which fp32 rounds to 0."""
    logits = torch.zeros(1, 101, device=device)
    logits[0, 4] = 25.0
    labels = torch.tensor([4], device=device)
    leaf = logits.clone().requires_grad_()
    logprob(leaf, labels).sum().backward()
    others = 100 * math.exp(-25.0)
    assert leaf.grad[0, 4].item() == pytest.approx(others / (1 + others), rel=1e-5)
    assert leaf.grad[0, 5].item() == pytest.approx(-others / 100, rel=1e-5)


def test_a_token_without_gradient_gets_zeros_even_where_its_logits_are_nan(device):
    leaf = torch.full((2, 40), nan, device=device)
    leaf[0] = torch.randn(40)
    leaf.requires_grad_()
    log_prob = logprob(leaf, torch.tensor([1, 2], device=device))
    log_prob.backward(torch.tensor([1.0, 0.0], device=device))
    assert leaf.grad.isfinite().all()
    assert leaf.grad[0].any()
    assert not leaf.grad[1].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocabulary", "stride"), [(5, 5), (33, 33), (40, 43), (301, 304), (1030, 1030)])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_rows_that_start_anywhere_in_memory(
    device, dtype, vocabulary, stride, first, policy_logits, exact, assert_close_to_exact
):
    """Wide accesses start somewhere inside such a row. What lies around it changes nothing, and stays as it was."""
    source, labels = policy_logits(3, vocabulary, dtype=dtype, device=device)
    memory = torch.full((first + 3 * stride + 9,), nan, dtype=dtype, device=device)
    logits = memory.as_strided((3, vocabulary), (stride, 1), first)
    logits.copy_(source)
    outside = torch.ones_like(memory, dtype=torch.bool)
    outside.as_strided(logits.shape, logits.stride(), first).fill_(False)

    truth = exact(source, labels, 0.7)
    assert_close_to_exact(*logprob_entropy(logits, labels, 0.7), truth)
    log_prob, _, high, others = backend(logits).statistics(logits, labels, 0.7)
    grad = torch.tensor([0.5, 0.0, -2.0], device=device)
    wanted = exact_gradient(source, labels, 0.7, grad)
    elsewhere = torch.full((3, vocabulary), 7.0, dtype=dtype, device=device)
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}[dtype]
    for out in (elsewhere, logits):
        backend(logits).gradient(logits, labels, 0.7, high, others, log_prob, grad, out)
        torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=1e-7)
    assert memory[outside].isnan().all()


def run_backward(logits, labels):
    """The logits' gradient, as the operation that made the logits receives it."""
    received = []
    logits.grad_fn.register_prehook(lambda grads: received.append(grads[0]))
    logprob(logits, labels).sum().backward()
    return received[0]


def test_the_gradient_takes_the_logits_memory(device, policy_logits):
    base, labels = policy_logits(4, 100, device=device)
    logits = base.requires_grad_() * 1.0
    assert run_backward(logits, labels).data_ptr() == logits.data_ptr()


def test_the_gradient_takes_the_memory_of_logits_seen_through_a_view(device, policy_logits):
    """verl's remove-padding path squeezes [1, tokens, V]."""
    base, labels = policy_logits(1, 4, 100, device=device)
    logits = (base.requires_grad_() * 1.0).squeeze(0)
    assert run_backward(logits, labels[0]).data_ptr() == logits.data_ptr()


def from_expanded(x):
    return (x[:, :1] * 1.0).expand(-1, x.shape[1], -1)


UNSAFE = {
    "a view of a leaf": lambda x: x.view(-1, x.shape[-1]),
    "an output its operation saved": lambda x: x.tanh(),
    "a view of an output its operation saved": lambda x: x.tanh().view(-1, x.shape[-1]),
    "overlapping rows": from_expanded,
}


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that an operation makes in memory of its own."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.elements = max(self.elements, x.numel())
        return result


@pytest.mark.skipif(interpreted, reason="measures memory, and Triton's interpreter works on copies of its own")
@pytest.mark.parametrize("per_token", [False, True])
def test_nothing_as_large_as_the_logits_is_made(device, per_token, policy_logits):
    """Neither for the entropies nor, with the gradient in the logits' memory, on the way back."""
    tokens, vocabulary = 512, 8192
    logits, labels = policy_logits(tokens, vocabulary, dtype=torch.bfloat16, device=device)
    temperature = torch.full((tokens,), 0.9, device=device) if per_token else 0.9
    trained = logits.clone().requires_grad_() * 1.0
    with LargestTensor() as largest:
        logprob_entropy(logits, labels, temperature)
        torch.autograd.grad(logprob(trained, labels, temperature).sum(), trained)
    assert 0 < largest.elements <= tokens * vocabulary / 2
    with LargestTensor() as largest:
        torch.log_softmax(logits.float(), -1)
    assert largest.elements == tokens * vocabulary  # as verl's own entropy takes it


@pytest.mark.parametrize("made", UNSAFE)
def test_memory_that_something_else_needs_is_not_overwritten(device, made, policy_logits):
    base, labels = policy_logits(2, 3, 50, device=device)
    leaf = base.clone().requires_grad_()
    logits = UNSAFE[made](leaf)
    before = logits.detach().clone()
    logprob(logits, labels.view(logits.shape[:-1])).sum().backward()
    assert torch.equal(logits, before)
    plain = base.clone().requires_grad_()
    log_p = torch.log_softmax(UNSAFE[made](plain), -1)
    log_p.gather(-1, labels.view(log_p.shape[:-1]).unsqueeze(-1)).sum().backward()
    torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-4, atol=1e-6)


def test_a_leaf_is_not_overwritten(device, policy_logits):
    leaf, labels = policy_logits(4, 50, device=device)
    before = leaf.clone()
    leaf.requires_grad_()
    logprob(leaf, labels).sum().backward()
    assert torch.equal(leaf, before)


def test_logits_whose_gradient_is_retained_are_not_overwritten(device, policy_logits):
    base, labels = policy_logits(4, 50, device=device)
    logits = base.clone().requires_grad_() * 1.0
    logits.retain_grad()
    logprob(logits, labels).sum().backward()
    assert torch.equal(logits, base)


def test_another_saved_use_of_the_logits_fails_loudly_or_is_asked_to_be_spared(device, policy_logits):
    base, labels = policy_logits(4, 50, device=device)

    def second_use(inplace):
        leaf = base.clone().requires_grad_()
        logits = leaf * 1.0
        square = logits.square().sum()  # saves the logits
        log_prob = logprob(logits, labels, inplace_backward=inplace).sum()
        log_prob.backward(retain_graph=True)
        square.backward()

    second_use(inplace=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second_use(inplace=True)


def test_a_second_backward_over_overwritten_logits_fails_loudly(device, policy_logits):
    base, labels = policy_logits(4, 50, device=device)
    log_prob = logprob(base.requires_grad_() * 1.0, labels).sum()
    log_prob.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_prob.backward()


def test_the_entropy_never_carries_a_gradient(device, policy_logits):
    base, labels = policy_logits(4, 50, device=device)
    log_prob, entropy = logprob_entropy(base.requires_grad_() * 1.0, labels)
    assert log_prob.requires_grad
    assert not entropy.requires_grad


# One arithmetic for old and new log-probabilities.


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_update_repeats_the_log_prob_pass_bit_for_bit(device, dtype, policy_logits):
    logits, labels = policy_logits(6, 777, dtype=dtype, device=device)
    with torch.no_grad():
        old = logprob_entropy(logits, labels, 0.9)[0]
    new = logprob(logits.clone().requires_grad_() * 1.0, labels, 0.9)
    assert torch.equal(old, new)


def test_other_micro_batches_change_the_ratio_by_less_than_1e_6(device, policy_logits):
    logits, labels = policy_logits(9 if interpreted else 64, 3000, device=device)
    whole = logprob(logits, labels)
    parts = torch.cat([logprob(x, y) for x, y in zip(logits.split(7), labels.split(7), strict=True)])
    assert ((whole - parts).exp() - 1).abs().max() <= 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(
    interpreted or not torch.cuda.is_available(), reason="counts compilations: there is none without a CUDA device"
)
def test_the_number_of_tokens_does_not_compile_the_kernels_anew(monkeypatch, policy_logits):
    import triton

    compiled = []

    def step(tokens):
        """A micro-batch of the log-prob pass and of the update, whose tensors start where the last one's end."""
        logits, labels = policy_logits(tokens, 1024, dtype=torch.bfloat16, device="cuda")
        temperature = torch.full((tokens + 1,), 0.9, device="cuda")[1:]
        logprob_entropy(logits, labels, temperature)
        logprob(logits.requires_grad_() * 1.0, labels, temperature).sum().backward()

    step(64)
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **kernel: compiled.append(kernel["repr"]))
    for tokens in (1, 2, 3, 16, 30, 63, 65, 127, 128):
        step(tokens)
    assert compiled == []
