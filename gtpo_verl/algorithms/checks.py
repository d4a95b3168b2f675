"""What can be said about a configuration before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gtpo_verl.algorithms.config import GROP, GROUP, POSITION, ROOT, GtpoConfig
from gtpo_verl.algorithms.estimators import ESTIMATORS, SEQUENCE, TOKEN, lookup

_LOSS_LEVEL = {"gtpo": TOKEN, "grpo_s": SEQUENCE, "grpo_s_geometric": SEQUENCE}

# Of the keys that only some estimators use. All others hold for every estimator.
_USERS = {
    "alpha": {"gtpo_v1", "gtpo_v2"},
    "alpha1": {"gtpo_v3"},
    "alpha2": {"gtpo_v3"},
    "beta": {"grpo_s_v1", "grpo_s_v2"},
    "beta1": {"grpo_s_v3"},
    "beta2": {"grpo_s_v3"},
    "clip": {"gtpo_v1", "gtpo_v2"},
    "length_penalty": {"gtpo_v1", "gtpo_v2", "gtpo_v3"},
    "relative_to": {"gtpo_v1", "gtpo_v2", "gtpo_v3"},
    "sequence_entropy": {"grpo_s_v1", "grpo_s_v2", "grpo_s_v3"},
    "normalize.over": {"gtpo_v2", "gtpo_v3", "grpo_s_v2", "grpo_s_v3"},
}


def unused_keys(estimator: str, config: GtpoConfig) -> list[str]:
    """Full names of the keys that were set to other than their default, though the estimator does not use them.

    Where a length penalty begins is not named where it is off or of the other kind: that belongs to a task, not to an
    estimator.
    """
    resolved = lookup(estimator).resolve(config)
    unused = {key for key, users in _USERS.items() if estimator not in users}
    if not config.length_penalty.enable:
        unused.discard("length_penalty")
        unused.add("length_penalty.kind")
    elif config.length_penalty.kind == GROP:
        unused |= {"length_penalty.denominator", "length_penalty.on"}
    if resolved.clip.enable:
        unused.add("alpha")
    else:
        unused |= {"clip.alpha1", "clip.alpha2", "clip.kappa"}
    changed = _changed(config, GtpoConfig())
    return [f"{ROOT}.{key}" for key in changed if key in unused or key.rpartition(".")[0] in unused]


def _changed(config: Any, default: Any, prefix: str = "") -> list[str]:
    names: list[str] = []
    for field in fields(config):
        value, usual = getattr(config, field.name), getattr(default, field.name)
        if is_dataclass(value):
            names += _changed(value, usual, f"{prefix}{field.name}.")
        elif value != usual:
            names.append(prefix + field.name)
    return names


def needs_groups(estimator: str, config: GtpoConfig) -> bool:
    """Whether every advantage is 0 where each prompt has a single response, as there is nothing to compare it with."""
    if config.uniform_groups == "zero":
        return True
    alone = lookup(estimator).level == SEQUENCE or config.relative_to == POSITION
    return config.normalize.scope == GROUP and alone


def unfitting_pair(adv_estimator: str, loss_mode: str) -> str | None:
    """A warning if an advantage of one family meets the loss of another, None if the two fit.

    Args:
        adv_estimator: `algorithm.adv_estimator`, of any name.
        loss_mode: `actor_rollout_ref.actor.policy_loss.loss_mode`, of any name.
    """
    estimator = ESTIMATORS.get(adv_estimator)
    if estimator is None and loss_mode not in _LOSS_LEVEL:
        return None
    if estimator is not None and _LOSS_LEVEL.get(loss_mode) == estimator.level:
        return None
    fitting = [name for name, level in _LOSS_LEVEL.items() if estimator is None or level == estimator.level]
    remedy = (
        f"use {' or '.join(fitting)}" if estimator is not None else "use an estimator of gtpo_verl or verl's own loss"
    )
    return (
        f"algorithm.adv_estimator={adv_estimator} and actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode} "
        f"do not belong to the same method: {remedy}"
    )


def refuse_kl_in_reward(algorithm: Any) -> None:
    """Raises ValueError if verl's `algorithm` configuration asks for a KL penalty in the reward.

    It would be added to `token_level_rewards`, which these estimators do not use, and so be lost without a word.
    """
    get = algorithm.get if isinstance(algorithm, Mapping) else lambda key: getattr(algorithm, key, None)
    if get("use_kl_in_reward"):
        raise ValueError(
            "algorithm.use_kl_in_reward=true has no effect on advantages made from entropy and success, "
            "set actor_rollout_ref.actor.use_kl_loss=true instead"
        )
