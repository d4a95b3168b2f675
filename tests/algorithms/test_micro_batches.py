"""The gradient does not depend on how a mini-batch is cut into micro-batches, nor over how many ranks it is spread."""

import pytest
import torch
import torch.multiprocessing
from micro_batches import gradient_and_value, mini_batch, run_rank

from gtpo_verl.algorithms import LOSSES, GlobalBatch


@pytest.mark.parametrize("micro_batches", [2, 4, 8])
@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches(name, micro_batches):
    torch.testing.assert_close(gradient_and_value(name, micro_batches), gradient_and_value(name, 1), atol=1e-9, rtol=0)


def test_ranks(tmp_path):
    """1, 2 and 4 real gloo processes, each with 1, 2 and 4 micro-batches."""
    torch.multiprocessing.spawn(run_rank, ((1, 2, 4), str(tmp_path)), nprocs=4)
    results = torch.load(tmp_path / "results.pt")
    assert len(results) == len(LOSSES) * 3 * 3
    for (name, _, _), result in results.items():
        torch.testing.assert_close(result, gradient_and_value(name, 1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_without_global_numbers_the_mean_is_local(name):
    """As if told that this micro-batch is all there is; but the empty response, which verl counts, is left out."""
    features, old, advantages, mask = mini_batch()
    log_prob = old + features.sum(-1) / 10
    local, _ = LOSSES[name](log_prob, old, advantages, mask, 0.2, 0.28)
    told = GlobalBatch(1, int(mask.sum()), int(mask.any(1).sum()))
    with_numbers, _ = LOSSES[name](log_prob, old, advantages, mask, 0.2, 0.28, global_batch=told)
    assert local.item() == pytest.approx(with_numbers.item(), rel=1e-12)
