"""An actor's optimizer once a checkpoint is loaded: its state is the checkpoint's, its options the configuration's.

PyTorch saves options with the state (`param_groups`, and `base_lrs` of a schedule), so that after a resume a learning
rate that was changed would be printed and not used.
"""

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

OPTIONS = ("lr", "initial_lr", "betas", "weight_decay")


@contextmanager
def configured(optimizer: Any | None, scheduler: Any | None, others: Collection[str] = ()) -> Iterator[None]:
    """Around what loads the states of both: puts back the options that they were made with.

    The learning rate becomes what the schedule as it is configured now gives at the restored step.

    Args:
        optimizer: as it was made, before any step; None: a worker that trains nothing.
        scheduler: PyTorch's, over that optimizer.
        others: options beside OPTIONS that the configuration sets (`optim.override_optimizer_config`).
    """
    if optimizer is None:
        yield
        return
    names = {*OPTIONS, *others}
    wanted = [{name: group[name] for name in names & group.keys()} for group in optimizer.param_groups]
    base_lrs = None if scheduler is None else list(scheduler.base_lrs)
    yield
    for group, options in zip(optimizer.param_groups, wanted, strict=True):
        group.update(options)
    if scheduler is None:
        return
    scheduler.base_lrs = base_lrs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is meant to be asked by `step` alone
        rates = scheduler.get_lr()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    scheduler._last_lr = rates
