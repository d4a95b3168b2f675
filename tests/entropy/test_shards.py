"""A vocabulary in parts gives what the whole gives."""

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch

from gtpo_verl.entropy import combine, logprob, logprob_entropy, logprob_entropy_partial
from gtpo_verl.entropy.functional import backend
from gtpo_verl.entropy.shards import combine_statistics

inf = math.inf
interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # one program per row is a Python loop there
BOUNDS = {"halves": [0, 300, 600], "unequal": [0, 1, 257, 600], "whole": [0, 600], "many": list(range(0, 601, 50))}


def parts(logits, labels, temperature, bounds):
    shards = [
        logprob_entropy_partial(logits[..., a:b], labels, temperature, first_label=a)
        for a, b in itertools.pairwise(bounds)
    ]
    return combine(shards, temperature), combine(shards[::-1], temperature)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_shards_match_float64_in_any_order(device, bounds, dtype, policy_logits, exact, assert_close_to_exact):
    logits, labels = policy_logits(2, 5, 600, dtype=dtype, device=device)
    temperature = torch.linspace(0.5, 1.5, 10, device=device).view(2, 5)
    truth = exact(logits, labels, temperature)
    for log_prob, entropy in parts(logits, labels, temperature, BOUNDS[bounds]):
        assert_close_to_exact(log_prob, entropy, truth)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_float64_temperature_is_that_of_the_logits_dtype(device, dtype, policy_logits):
    """The kernels take none of float64, and results are as wide as the logits say."""
    logits, labels = policy_logits(2, 5, 600, dtype=dtype, device=device)
    temperature = torch.full((2, 5), 0.7, dtype=torch.float64, device=device)
    whole = logprob_entropy(logits, labels, temperature)
    of_parts = parts(logits, labels, temperature, BOUNDS["unequal"])[0]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert {value.dtype for value in (*whole, *of_parts)} == {wide}
    if wide == torch.float32:
        for value, same in zip(whole, logprob_entropy(logits, labels, temperature.float()), strict=True):
            assert torch.equal(value, same)


@pytest.mark.parametrize("bounds", ["halves", "unequal"] if interpreted else BOUNDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("level", [-200.0, 10000.0])
def test_logits_far_from_zero(device, bounds, dtype, level, policy_logits, exact, assert_close_to_exact):
    """Also where one part of the vocabulary lies far below the other, or is masked; each part's gradient too."""
    logits, labels = policy_logits(4, 600, dtype=torch.float32, device=device)
    logits += level
    logits[1, :300] -= 10000
    logits[2, 300:] = -math.inf
    labels[2] = 100
    logits = logits.to(dtype)
    truth = exact(logits, labels)
    for log_prob, entropy in parts(logits, labels, 1.0, BOUNDS[bounds]):
        assert_close_to_exact(log_prob, entropy, truth)

    grad = torch.randn(4, device=device)
    shards = [(logits[:, a:b], a) for a, b in itertools.pairwise(BOUNDS[bounds])]
    partials = [logprob_entropy_partial(shard, labels, first_label=a) for shard, a in shards]
    log_prob, _, high, others = combine_statistics(partials, 1.0)
    ours = torch.full_like(logits, math.nan)
    for shard, a in shards:
        out = ours[:, a : a + shard.shape[1]]
        backend(shard).gradient(shard, labels, 1.0, high, others, log_prob, grad, out, first_label=a)
    exactly = logits.double().requires_grad_()
    log_p = torch.log_softmax(exactly, -1).gather(-1, labels[:, None]).squeeze(-1)
    wanted = torch.autograd.grad(log_p, exactly, grad.double())[0]
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}[dtype]
    torch.testing.assert_close(ours.double(), wanted, rtol=tolerance, atol=1e-7)


def test_a_maximum_on_every_shard_is_counted_on_every_shard(device):
    logits = torch.full((1, 600), -50.0, device=device)
    logits[0, [10, 310, 320]] = 2.0
    (_, entropy), _ = parts(logits, torch.tensor([10], device=device), 1.0, BOUNDS["halves"])
    assert entropy.item() == pytest.approx(math.log(3))


@pytest.mark.parametrize("label", [5, 400])
def test_a_shard_without_probability(device, label, policy_logits):
    """A masked, or padded, part of the vocabulary."""
    logits, _ = policy_logits(3, 600, device=device)
    logits[:, 300:] = -inf
    labels = torch.full((3,), label, device=device)
    whole = logprob_entropy(logits, labels)
    for shards in parts(logits, labels, 1.0, BOUNDS["halves"]):
        for a, b in zip(shards, whole, strict=True):
            torch.testing.assert_close(a, b)


def test_bad_rows_are_nan_however_they_are_split(device, policy_logits):
    logits, labels = policy_logits(5, 600, device=device)
    logits[1, 7] = math.nan
    logits[2, 307] = inf
    logits[3] = -inf
    logits[4, :300], logits[4, 299] = -inf, math.nan
    for log_prob, entropy in parts(logits, labels, 1.0, BOUNDS["halves"]):
        assert log_prob.isnan().tolist() == entropy.isnan().tolist() == [False, True, True, True, True]


def test_a_label_on_no_shard_gives_nan(device, policy_logits):
    logits, labels = policy_logits(2, 600, device=device)
    labels[0] = 600
    (log_prob, entropy), _ = parts(logits, labels, 1.0, BOUNDS["halves"])
    assert log_prob.isnan().tolist() == [True, False]
    assert entropy.isfinite().all()


def test_nothing_to_combine():
    with pytest.raises(ValueError, match="no partials"):
        combine([])


RANK = """
import sys, torch, torch.distributed as dist
from gtpo_verl.entropy import sharded_logprob_entropy
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
first, last = [(0, 200), (200, 600)][rank]
results = {}
for level, (logits, labels, temperature, grad) in torch.load(f"{folder}/inputs.pt").items():
    leaf = logits[..., first:last].clone().requires_grad_()
    log_prob, entropy = sharded_logprob_entropy(leaf * 1.0, labels, temperature, first_label=first)
    log_prob.backward(grad)
    results[level] = log_prob.detach(), entropy, leaf.grad
torch.save(results, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""
LEVELS = [0.0, -500.0]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, policy_logits):
    """{level: (inputs, what each rank has)} of one start."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.manual_seed(20250804)
    inputs = {}
    for level in LEVELS:
        logits, labels = policy_logits(2, 5, 600)
        temperature = torch.linspace(0.5, 1.5, 10).view(2, 5)
        inputs[level] = logits + level, labels, temperature, torch.randn(2, 5)
    torch.save(inputs, folder / "inputs.pt")
    command = [sys.executable, "-c", RANK, str(folder)]
    ranks = [subprocess.Popen([*command, str(rank)], env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    results = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    return {level: (inputs[level], [rank[level] for rank in results]) for level in LEVELS}


@pytest.mark.parametrize("level", LEVELS)
def test_two_ranks_agree_with_one_and_each_has_its_columns_gradient(level, two_ranks):
    (logits, labels, temperature, grad), ranks = two_ranks[level]
    leaf = logits.clone().requires_grad_()
    log_prob = logprob(leaf, labels, temperature)
    log_prob.backward(grad)
    entropy = logprob_entropy(logits, labels, temperature)[1]
    for ours in ranks:
        torch.testing.assert_close(ours[0], log_prob.detach(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours[1], entropy, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(torch.cat([ours[2] for ours in ranks], -1), leaf.grad, rtol=1e-4, atol=1e-7)
