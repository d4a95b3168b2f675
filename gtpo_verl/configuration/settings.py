"""The configuration's own group `gtpo_verl` (`configs/train.yaml` holds these defaults; a test compares them)."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import DictConfig, OmegaConf


@dataclass(frozen=True)
class RecipeSettings:
    """What the recipe needs beside verl's own keys.

    Attributes:
        task: a task of `gtpo_verl.tasks` that is prepared, and cached, before the run and fills the model path, the
            data files and the reward function; null: the configuration names them.
        cache_dir: where prepared tasks lie.
        run_dir: folder of the run: metrics, log, checkpoints.
        fused_entropy: exact fp32 log-probabilities and entropies in one pass (`gtpo_verl.entropy`); false: verl's own.
        fast_rollout: the same responses with fewer calls and objects (`verl_plugin.rollout`); false: verl's own way.
        fork_server: of a run that starts a Ray of its own, fork the processes from one that has imported everything
            (`verl_plugin.fork_server`); false: each imports by itself.
        poll_interval: seconds between two looks at TransferQueue while rollouts run; verl's own value is 2.
        first_batch: prompts that a step asks for at its start with dynamic sampling, as a multiple of those that should
            fill the batch by the last step's share of usable groups (1.2: a fifth to spare); null: verl's way, a batch,
            and two prompts for each that is thrown away. No effect with a sampler of the user's own.
        stall_timeout: seconds in which nothing moves (no response comes, a phase of the step does not end) after which
            the run is ended, with what it waited for; above the longest phase that is to be expected. 0: no limit.
        token_dump_freq: steps between two dumps of what the actor is trained on, token by token, for
            `gtpo-verl inspect`; -1: none.
        token_dump_dir: where they lie, a file a step; in `tokens` of the run's folder by default.
        token_dump_groups: the most groups of a step that are dumped, those with right and wrong responses first.
        token_dump_max_gib: the most space of all files together; the oldest are deleted, the newest one stays.
        probe_reward: call the reward function once, before anything starts, to see that it gives the metric that
            decides right and wrong. Turn it off where a call costs something.
        min_free_disk_gib: refuse to start with less free space under `run_dir`.
        preflight: before the run, look at this machine or at every node of the cluster that it joins, as
            `gtpo-verl preflight` does, and start nothing where a line is red.
        architecture: `model_type` and fields of the transformers configuration of the model that a scale is made for;
            the preflight estimates memory by it where the model itself is not at hand.
        env: environment variables for the driver and every Ray worker; what the user's shell exports comes first,
            and in the workers what `ray_kwargs.ray_init.runtime_env` says;
            null: not set by the recipe.
    """

    task: str | None = None
    cache_dir: str = ".cache/gtpo-verl"
    run_dir: str = "runs"
    fused_entropy: bool = True
    fast_rollout: bool = True
    fork_server: bool = True
    poll_interval: float = 2.0
    first_batch: float | None = None
    stall_timeout: float = 7200.0
    token_dump_freq: int = -1
    token_dump_dir: str | None = None
    token_dump_groups: int = 8
    token_dump_max_gib: float = 1.0
    probe_reward: bool = True
    min_free_disk_gib: float = 1.0
    preflight: bool = True
    architecture: dict[str, Any] | None = None
    env: dict[str, str | None] = field(default_factory=lambda: {"TQ_NUM_THREADS": "1"})

    @classmethod
    def from_config(cls, config: DictConfig) -> "RecipeSettings":
        """The group `gtpo_verl` of a whole configuration, verl's behaviour where there is none.

        Raises:
            ValueError: an unknown key, or a value that is none for its key, by name.
        """
        if "gtpo_verl" not in config:
            return cls(fused_entropy=False, fast_rollout=False, fork_server=False, env={})
        given: dict[str, Any] = OmegaConf.to_container(config.gtpo_verl, resolve=True)  # type: ignore[assignment]
        known = [f.name for f in fields(cls)]
        for key in given:
            if key not in known:
                raise ValueError(f"gtpo_verl.{key} is not a key; the keys are {', '.join(known)}")
        for f in fields(cls):
            if f.name in given and given[f.name] is None and f.default is not None:
                raise ValueError(f"gtpo_verl.{f.name}=null: a value is needed")
        _check_numbers(given)
        if (env := given.get("env")) is not None:
            given["env"] = {name: _variable(f"gtpo_verl.env.{name}", value) for name, value in env.items()}
        settings = cls(**given)
        _check_token_dump(settings)
        return settings


def _variable(key: str, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float | None) or "\0" in str(value):
        raise ValueError(f"{key}={value!r} must be a text; quote it")
    return None if value is None else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_numbers(given: dict[str, Any]) -> None:
    for name, demand, unit in (
        ("poll_interval", "must be positive", "seconds"),
        ("stall_timeout", "must not be negative", "seconds"),
        ("min_free_disk_gib", "must not be negative", "GiB"),
    ):
        value = given.get(name, 1)
        if not _is_number(value) or value < 0 or (value == 0 and demand == "must be positive"):
            raise ValueError(f"gtpo_verl.{name} = {value} {demand} ({unit})")
    first = given.get("first_batch")
    if first is not None and not (_is_number(first) and first >= 1):
        raise ValueError(f"gtpo_verl.first_batch = {first} must be a number of at least 1, or null")
    for name in ("fused_entropy", "fast_rollout", "fork_server", "probe_reward", "preflight"):
        if not isinstance(given.get(name, True), bool):
            raise ValueError(f"gtpo_verl.{name} = {given[name]} must be true or false")


def _check_token_dump(settings: RecipeSettings) -> None:
    freq, groups, limit = settings.token_dump_freq, settings.token_dump_groups, settings.token_dump_max_gib
    if not isinstance(freq, int) or not (freq == -1 or freq > 0):
        raise ValueError(f"gtpo_verl.token_dump_freq = {freq} must be a number of steps, or -1 for no dump")
    if freq > 0 and not settings.token_dump_dir:
        raise ValueError(f"gtpo_verl.token_dump_dir must be set, as gtpo_verl.token_dump_freq = {freq}")
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"gtpo_verl.token_dump_groups = {groups} must be a number of groups of at least 1")
    if not isinstance(limit, int | float) or limit <= 0:
        raise ValueError(f"gtpo_verl.token_dump_max_gib = {limit} must be positive (GiB)")
