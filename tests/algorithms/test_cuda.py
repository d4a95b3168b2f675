"""The same numbers on a CUDA device, and results on the device that the inputs are on."""

import pytest
import torch
from batches import flat, random_rows

from gtpo_verl.algorithms import ESTIMATORS, LOSSES, compute_advantages

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scope", ["group", "batch"])
def test_advantages(estimator, scope):
    arguments = flat(random_rows(0, [16] * 8, 300))
    options = {"normalize": {"scope": scope}, "clip": {"enable": True}, "sequence_entropy": "geometric"}
    expected = compute_advantages(estimator, *arguments, options)
    result = compute_advantages(estimator, *(argument.cuda() for argument in arguments), options)
    assert result.advantages.is_cuda
    torch.testing.assert_close(result.advantages.cpu(), expected.advantages, atol=1e-6, rtol=1e-6)
    assert result.metrics == pytest.approx(expected.metrics, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(8, 50, generator=generator)
    new = old + 0.3 * torch.randn(8, 50, generator=generator)
    advantages = torch.randn(8, 1, generator=generator).expand(8, 50)
    mask = torch.rand(8, 50, generator=generator) < 0.7
    gradients = []
    for device in ("cpu", "cuda"):
        log_prob = new.to(device).detach().requires_grad_()
        loss, _ = LOSSES[name](log_prob, old.to(device), advantages.to(device), mask.to(device), 0.2, 0.28)
        loss.backward()
        assert loss.device.type == device
        gradients.append(log_prob.grad.cpu())
    torch.testing.assert_close(*gradients)
