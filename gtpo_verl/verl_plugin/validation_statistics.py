"""best@k, worst@k and maj@k of a validation as verl computes them, without a Python call for each of its draws.

verl draws a thousand subsets of the responses of each prompt, for each k and each number that a reward function
returns, and reduces them one by one (verl/trainer/ppo/metric_utils.py, `bootstrap_metric`): for 192 prompts x 32
responses that is a minute of one core at every validation.
"""

import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from verl.trainer.ppo import metric_utils


@contextmanager
def in_bulk() -> Iterator[None]:
    """Within it `process_validation_metrics` gives the same numbers, and leaves numpy's generator in the same state."""
    verl_bootstrap = metric_utils.bootstrap_metric

    def bootstrap(
        data: list[Any], subset_size: int, reduce_fns: list[Callable], n_bootstrap: int = 1000, seed: int = 42
    ) -> list[tuple[float, float]]:
        values = _values(data, reduce_fns)
        if values is None:
            return verl_bootstrap(data, subset_size, reduce_fns, n_bootstrap, seed)
        drawn, state = _draws(len(data), subset_size, n_bootstrap, seed)
        np.random.set_state(state)
        return [(float(np.mean(found)), float(np.std(found))) for found in values(drawn)]

    metric_utils.bootstrap_metric = bootstrap
    try:
        yield
    finally:
        metric_utils.bootstrap_metric = verl_bootstrap


@lru_cache(maxsize=64)
def _draws(responses: int, subset_size: int, n_bootstrap: int, seed: int) -> tuple[NDArray[np.int64], Any]:
    """The indices (n_bootstrap, subset_size) that verl draws, which depend on nothing else, and the generator's state
    after that."""
    np.random.seed(seed)
    drawn = np.random.choice(responses, size=(n_bootstrap, subset_size), replace=True)
    return drawn, np.random.get_state()


def _values(data: Sequence[Any], reduce_fns: Sequence[Callable]) -> Callable[[NDArray], list[NDArray]] | None:
    """What gives the reduced values (n_bootstrap,) of each function from indices; None where only verl's loop may."""
    if list(reduce_fns) == [np.max, np.min] and (values := _numbers(data)) is not None:
        return lambda drawn: [values[drawn].max(axis=1), values[drawn].min(axis=1)]
    if len(reduce_fns) == 1 and isinstance(vote := reduce_fns[0], partial) and vote.func is metric_utils.calc_maj_val:
        answers, kept = ([one[vote.keywords[key]] for one in data] for key in ("vote_key", "val_key"))
        if (voted := _numbers(kept)) is not None:
            return lambda drawn: [voted[_majority(answers, drawn)]]
    return None


def _numbers(data: Sequence[Any]) -> NDArray[np.float64] | None:
    # numpy's maximum of Python objects has another answer for NaN than that of floats.
    finite = all(isinstance(one, numbers.Real | np.bool_) and math.isfinite(one) for one in data)
    # numpy compares a Python number with one of single or half precision in that precision.
    kinds = set(map(type, data))
    coarse = len(kinds) > 1 and any(issubclass(kind, np.floating) and kind is not np.float64 for kind in kinds)
    return np.array(data, dtype=np.float64) if finite and len(data) and not coarse else None


def _majority(answers: Sequence[Any], drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """The response that `calc_maj_val` takes of each row of `drawn`: the first with the most frequent answer, of which
    the first counts where several are as frequent."""
    number: dict[Any, int] = {}
    coded = np.array([number.setdefault(answer, len(number)) for answer in answers])[drawn]
    rows = np.arange(len(drawn))[:, None]
    counts = np.bincount((rows * len(number) + coded).ravel(), minlength=len(drawn) * len(number))
    first = counts.reshape(len(drawn), -1)[rows, coded].argmax(axis=1)
    return drawn[rows[:, 0], first]
