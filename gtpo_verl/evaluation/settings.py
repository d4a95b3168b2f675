"""How responses are sampled: as the runs validate, unless the command line says otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gtpo_verl.evaluation.grading import Reward
from gtpo_verl.evaluation.models import Model

Value = TypeVar("Value")
# The longest response of DAPO's published settings, where neither run nor command line says another.
LONGEST_RESPONSE = 20_480
DTYPES = ("auto", "bfloat16", "float16", "float32")
_VAL_KWARGS = "actor_rollout_ref.rollout.val_kwargs"


@dataclass(frozen=True)
class Sampling:
    """What decides a response besides the model and the prompt.

    Attributes:
        temperature: 0 for the most likely tokens.
        top_p: 0 to 1, above 0.
        top_k: tokens to choose from; -1 for all.
        max_tokens: of a response; None: what the models leave room for, at most `LONGEST_RESPONSE`.
        seed: of the evaluation, below 2^32; every sample has its own, made of it.
        dtype: of the weights, one of `DTYPES`; auto: the model's own.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int | None = None
    seed: int = 0
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for option, wrong in {
            f"--temperature {self.temperature:g}": not 0 <= self.temperature < float("inf"),
            f"--top-p {self.top_p:g}": not 0 < self.top_p <= 1,
            f"--top-k {self.top_k}": self.top_k < -1,
            f"--max-tokens {self.max_tokens}": self.max_tokens is not None and self.max_tokens < 1,
            f"--seed {self.seed}": not 0 <= self.seed < 1 << 32,  # NumPy's
        }.items():
            if wrong:
                raise ValueError(f"{option}: out of range")
        if self.dtype not in DTYPES:
            raise ValueError(f"--dtype {self.dtype}: none of {', '.join(DTYPES)}")


def agreed(
    option: str, given: Value | None, models: Sequence[Model], of: Callable[[Model], Value | None]
) -> Value | None:
    """What the command line gives, else what all runs have, else None: what is compared must be sampled alike.

    Raises:
        ValueError: the runs differ.
    """
    if given is not None:
        return given
    values = {model.label: value for model in models if model.config is not None and (value := of(model)) is not None}
    if len(set(values.values())) > 1:
        told = ", ".join(f"{label} has {value}" for label, value in values.items())
        raise ValueError(f"{option}: the runs differ ({told}); say which")
    return next(iter(values.values()), None)


def sampling(models: Sequence[Model], given: dict[str, Any], on_cpu: bool) -> Sampling:
    """The settings for all models.

    Args:
        given: fields of `Sampling`, None where the command line does not say.
        on_cpu: whether there is no GPU, where weights are float32 by default, as in training.
    """
    keys = {
        "temperature": f"{_VAL_KWARGS}.temperature",
        "top_p": f"{_VAL_KWARGS}.top_p",
        "top_k": f"{_VAL_KWARGS}.top_k",
        "max_tokens": "data.max_response_length",
        "dtype": "actor_rollout_ref.rollout.dtype",
    }
    found: dict[str, Any] = {"seed": given.get("seed")}
    for name, key in keys.items():
        option = f"--{name.replace('_', '-')}"
        found[name] = agreed(option, given.get(name), models, lambda model, key=key: model.setting(key))  # type: ignore[misc]
    if on_cpu and given.get("dtype") is None:
        found["dtype"] = "float32"
    return Sampling(**{name: value for name, value in found.items() if value is not None})


def reward(models: Sequence[Model], given: str | None) -> Reward:
    """The reward for all models: ``PATH`` or ``PATH:NAME`` of the command line, else the runs', else mathematics'."""
    chosen = None
    if given is not None:
        if not given.removeprefix("pkg://"):
            raise ValueError(f"--reward {given!r}: names no file and no package")
        path, _, name = given.rpartition(":") if not given.startswith("pkg://") else given[6:].rpartition(":")
        path, name = (path, name) if path and "/" not in name else (given.removeprefix("pkg://"), "")
        chosen = Reward(("pkg://" if given.startswith("pkg://") else "") + path, name or Reward.name)
    return agreed("--reward", chosen, models, lambda model: Reward.of_run(model.config)) or Reward()


def sample_seed(seed: int, data: str, problem: int, sample: int) -> int:
    """The seed of one sample, 48 bits: the same for every model, whatever else is sampled, in any order."""
    text = f"{seed} {data} {problem} {sample}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
