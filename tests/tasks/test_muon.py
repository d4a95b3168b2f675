import pytest
import torch

from gtpo_verl.tasks.muon import Muon, orthogonalize


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (32, 32)])
def test_singular_values_are_brought_near_one_and_vectors_kept(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    result = orthogonalize(matrix)
    in_basis = u.T @ result @ vh.T
    singular = in_basis.diagonal()
    assert singular.min() > 0.3
    assert singular.max() < 1.3
    torch.testing.assert_close(in_basis, torch.diag(singular), atol=1e-4, rtol=0)
    assert result.dtype == matrix.dtype


def test_a_quadratic_is_minimised():
    torch.manual_seed(0)
    target, weight = torch.randn(8, 12), torch.nn.Parameter(torch.zeros(8, 12))
    optimizer = Muon([weight], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (weight - target).square().mean().backward()
        optimizer.step()
    assert (weight - target).square().mean() < 0.05 * target.square().mean()


def test_vectors_are_refused():
    with pytest.raises(ValueError, match="matrices only"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
