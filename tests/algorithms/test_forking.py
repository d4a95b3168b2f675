"""Forking tokens: exactly the share with the highest entropies, of the batch or of each response."""

import brute_force
import pytest
import torch
from batches import flat, random_rows
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from gtpo_verl.algorithms import ForkingConfig, forking_tokens

shares = st.sampled_from([0.01, 0.07, 0.1, 0.2, 1 / 3, 0.5, 0.999, 1.0])
scopes = st.sampled_from(["batch", "response"])


@given(seed=st.integers(0, 2**32 - 1), longest=st.integers(0, 40), share=shares, scope=scopes)
def test_against_brute_force(seed, longest, share, scope):
    """Entropies with many ties: exact zeros, and those of a uniform distribution."""
    rows = random_rows(seed, [3, 2, 1], longest)
    entropy, offsets, *_ = flat(rows)
    kept = brute_force.forking([row["entropy"] for row in rows], share, scope)
    expected = torch.tensor([k for row in kept for k in row], dtype=torch.bool)
    assert torch.equal(forking_tokens(entropy, offsets, ForkingConfig(share, scope)), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_fifth_with_the_highest_entropies(dtype):
    entropy = torch.tensor([0.1, 3.0, 0.2, 0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], dtype=dtype)
    offsets = torch.tensor([0, 5, 5, 10])
    of_batch = forking_tokens(entropy, offsets, ForkingConfig(0.2))
    assert of_batch.nonzero().squeeze(1).tolist() == [1, 9]
    of_response = forking_tokens(entropy, offsets, ForkingConfig(0.4, "response"))
    assert of_response.nonzero().squeeze(1).tolist() == [1, 4, 8, 9]


@pytest.mark.parametrize("scope", ["batch", "response"])
def test_no_more_than_the_share_however_many_entropies_are_equal(scope):
    entropy, offsets = torch.zeros(100), torch.tensor([0, 100])
    assert forking_tokens(entropy, offsets, ForkingConfig(0.07, scope)).nonzero().squeeze(1).tolist() == [*range(7)]


@pytest.mark.parametrize("scope", ["batch", "response"])
def test_the_share_1_is_every_token(scope):
    entropy, offsets, *_ = flat(random_rows(1, [4, 4], 30))
    assert forking_tokens(entropy, offsets, ForkingConfig(1.0, scope)).all()


@pytest.mark.parametrize("scope", ["batch", "response"])
@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_no_tokens(scope, offsets):
    kept = forking_tokens(torch.empty(0), torch.tensor(offsets), ForkingConfig(0.2, scope))
    assert kept.shape == (0,)
    assert kept.dtype == torch.bool


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_entropy_that_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="entropy must be finite"):
        forking_tokens(torch.tensor([1.0, value]), torch.tensor([0, 2]), ForkingConfig(0.2))


@pytest.mark.parametrize("algorithm", [None, {}, {"forking": None}, OmegaConf.create({"gamma": 1.0})])
def test_without_the_section_nothing_is_left_out(algorithm):
    assert ForkingConfig.from_algorithm(algorithm) == ForkingConfig(share=1.0, scope="batch")


def test_the_section():
    algorithm = OmegaConf.create({"forking": {"share": 0.2, "scope": "response"}})
    assert ForkingConfig.from_algorithm(algorithm) == ForkingConfig(0.2, "response")


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"share": 0}, r"forking\.share must be above 0"),
        ({"share": 1.1}, r"forking\.share must be above 0 and at most 1, not 1\.1"),
        ({"share": "most"}, r"forking\.share must be a finite number"),
        ({"scope": "group"}, r"forking\.scope must be one of batch, response"),
        ({"rho": 0.2}, r"forking\.rho; .* has: share, scope"),
        (0.2, r"forking must be a mapping"),
    ],
)
def test_refused_by_name(section, named):
    with pytest.raises(ValueError, match=rf"algorithm\.{named}"):
        ForkingConfig.from_algorithm({"forking": section})
