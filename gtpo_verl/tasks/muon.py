"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) for small matrices in their own precision.

``torch.optim.Muon`` orthogonalises in bfloat16, which a CPU without bfloat16 units emulates: 15 times slower here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

# Quintic Newton-Schulz coefficients of the reference: steep at 0, singular values end near 1 rather than at it.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Return the matrix, of shape (m, n), with its singular values brought near 1, in its own dtype."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose update is orthogonalised, scaled to the root mean square of an AdamW step (0.2).

    Args:
        params: matrices, shape (m, n), floating point.
        lr: learning rate, comparable to AdamW's.
        momentum: decay of the gradient's running mean.

    Raises:
        ValueError: a parameter is not a matrix.
    """

    def __init__(self, params: Iterable[torch.Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        if any(p.ndim != 2 for group in self.param_groups for p in group["params"]):
            raise ValueError("Muon takes matrices only")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                running = self.state[p].setdefault("running_mean", torch.zeros_like(p))
                running.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalize(p.grad.lerp(running, group["momentum"]))
                p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)
        return loss
