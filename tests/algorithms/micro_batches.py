"""A mini-batch cut into micro-batches and spread over ranks, importable by the processes that are those ranks."""

import torch
import torch.distributed as dist

from gtpo_verl.algorithms import LOSSES, GlobalBatch

RESPONSES, WIDTH, FEATURES = 16, 24, 6


def mini_batch():
    """Features of tokens, whose log-probability is linear in the parameters; uneven lengths, one response empty."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, WIDTH + 1, (RESPONSES,), generator=generator)
    lengths[5] = 0
    features = torch.randn(RESPONSES, WIDTH, FEATURES, generator=generator, dtype=torch.float64) / 5
    old = -torch.rand(RESPONSES, WIDTH, generator=generator, dtype=torch.float64)
    advantages = torch.randn(RESPONSES, 1, generator=generator, dtype=torch.float64).expand(RESPONSES, WIDTH)
    return features, old, advantages, (torch.arange(WIDTH) < lengths[:, None])


def gradient_and_value(name, micro_batches, rank=0, ranks=1):
    """What a rank has after all of its micro-batches, before the average over ranks: (FEATURES + 1,)."""
    whole = mini_batch()
    mask = whole[-1]
    global_batch = GlobalBatch(dp_size=ranks, batch_num_tokens=int(mask.sum()), global_batch_size=RESPONSES)
    parameters = torch.linspace(-1, 1, FEATURES, dtype=torch.float64).requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    mine = [tensor[rank::ranks] for tensor in whole]
    for features, old, advantages, part in zip(*(tensor.chunk(micro_batches) for tensor in mine), strict=True):
        log_prob = old + features @ parameters
        loss, _ = LOSSES[name](log_prob, old, advantages, part, 0.2, 0.28, global_batch=global_batch)
        loss.backward()
        value += loss.detach()
    return torch.cat([parameters.grad, value[None]])


def run_rank(rank, world_sizes, folder):
    """One gloo process of the largest world, which takes part in the smaller ones that it belongs to.

    The first writes what all of a world have after the average that FSDP and DDP take over gradients.
    """
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=max(world_sizes))
    results = {}
    for ranks in world_sizes:
        world = dist.new_group(list(range(ranks)))
        for name in LOSSES if rank < ranks else ():
            for micro_batches in (1, 2, 4):
                result = gradient_and_value(name, micro_batches, rank, ranks)
                dist.all_reduce(result, group=world)
                results[name, ranks, micro_batches] = result / ranks
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.destroy_process_group()
