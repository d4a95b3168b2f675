"""Refusals by name: what an algorithm needs of the configuration for its advantages and its loss to mean anything."""

import math

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.algorithms import (
    ESTIMATORS,
    ForkingConfig,
    GtpoConfig,
    gtpo_section,
    needs_groups,
    refuse_kl_in_reward,
    unfitting_pair,
    unused_keys,
)
from gtpo_verl.algorithms.config import GROP

_ACTOR, _ROLLOUT, _CORRECTION = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm.rollout_correction"
# Losses in which the advantage of a token reaches that token alone, and those that weigh whole responses.
LOSSES_OF_TOKENS = ("vanilla", "cispo", "gtpo")
LOSSES_OF_RESPONSES = ("grpo_s", "grpo_s_geometric")
# verl's losses whose mean or covariances are those of a micro-batch.
_LOSSES_OF_MICRO_BATCHES = ("geo_mean", "clip_cov", "kl_cov")


def check_algorithm(config: DictConfig) -> list[str]:
    """Checks `algorithm`, and of the actor and the rollout what it depends on.

    Returns:
        Warnings: combinations that work but are hardly meant.

    Raises:
        ValueError: a combination that cannot work, by the name of its key.
    """
    check_ranges(config)
    check_micro_batches(config)
    check_rollout_correction(config)
    check_forking(config)
    check_filter(config)
    gtpo = GtpoConfig.from_any(gtpo_section(config.algorithm))
    estimator = config.algorithm.adv_estimator
    mismatch = unfitting_pair(estimator, config.actor_rollout_ref.actor.policy_loss.loss_mode)
    warnings = [
        *([mismatch] if mismatch else []),
        *check_groups(config, gtpo),
        *uneven_means(config),
        *check_learning(config),
    ]
    if estimator not in ESTIMATORS:
        # The other kind is enabled by a task's settings, for whichever algorithm reads it.
        grop = gtpo.length_penalty.enable and gtpo.length_penalty.kind == GROP
        return warnings + [f"algorithm.gtpo.length_penalty.kind={GROP} has no effect on {estimator}"] * grop
    _check_entropies_are_there(config, estimator)
    refuse_kl_in_reward(config.algorithm)
    return warnings + [f"{key} has no effect on {estimator}" for key in unused_keys(estimator, gtpo)]


def forks(config: DictConfig) -> bool:
    """Whether only a part of the tokens is learnt from (`algorithm.forking`).

    Raises:
        ValueError: a value out of its range, by the key's full name.
    """
    return ForkingConfig.from_algorithm(config.algorithm).share < 1


def check_forking(config: DictConfig) -> None:
    """Refuses to keep the advantages of some tokens where there are no entropies, or for another kind of loss."""
    if not forks(config):
        return
    key = f"algorithm.forking.share={config.algorithm.forking.share}"
    _check_entropies_are_there(config, key)
    loss = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if loss not in LOSSES_OF_TOKENS:
        raise ValueError(
            f"{key} leaves single tokens without an advantage; {_ACTOR}.policy_loss.loss_mode={loss} is none of "
            f"{', '.join(LOSSES_OF_TOKENS)}, in which that leaves out just these tokens"
        )


def check_filter(config: DictConfig) -> None:
    """Refuses dynamic sampling by a reward that holds a length penalty: groups that are all wrong would pass because
    their lengths differ. Of the metrics verl can filter by, `reward` alone is the reward as the penalty left it."""
    groups = config.algorithm.get("filter_groups")
    key = "reward.reward_kwargs.overlong_buffer_cfg.enable"
    if groups and groups.enable and groups.metric == "reward" and OmegaConf.select(config, key):
        raise ValueError(
            f"algorithm.filter_groups.metric=reward with {key}=True: that reward holds the penalty on length, by which "
            "responses of a group differ that are all wrong; use acc"
        )


def check_groups(config: DictConfig, gtpo: GtpoConfig) -> list[str]:
    """Refuses groups whose responses have nothing to differ by, so that every advantage would be 0.

    Returns:
        Warnings: a baseline that verl leaves out without a word.
    """
    estimator, rollout = config.algorithm.adv_estimator, config.actor_rollout_ref.rollout
    if estimator == "grpo" and rollout.n == 1:
        # verl/trainer/ppo/core_algos.py, compute_grpo_outcome_advantage: the mean of a group of one counts as 0.
        return [f"{_ROLLOUT}.n=1: a response alone has no baseline, verl takes its reward for its advantage"]
    if estimator != "grpo" and not (estimator in ESTIMATORS and needs_groups(estimator, gtpo)):
        return []
    for key, same in (
        ("n", rollout.n == 1),
        ("temperature", _greedy(rollout.temperature)),
        ("top_k", rollout.top_k == 1),
    ):
        if same:
            raise ValueError(
                f"{_ROLLOUT}.{key}={rollout[key]}: {estimator} compares different responses to a prompt with each "
                "other; here every advantage would be 0"
            )
    return []


def _greedy(temperature: object) -> bool:
    """vLLM takes the likeliest token below its `_SAMPLING_EPS` (vllm/sampling_params.py)."""
    return isinstance(temperature, int | float) and 0 <= temperature < 1e-5


def check_ranges(config: DictConfig) -> None:
    """Refuses values that vLLM refuses of every request, minutes later, and bounds of the loss below 0, of which
    nobody says anything."""
    ranges = [
        (f"{where}.{name}", least, most, above)
        for where in (_ROLLOUT, f"{_ROLLOUT}.val_kwargs")
        for name, least, most, above in (
            ("temperature", 0, math.inf, False),
            ("top_p", 0, 1, True),
            ("top_k", -1, math.inf, False),
        )
    ]
    ranges += [(f"{_ACTOR}.{name}", 0, math.inf, False) for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")]
    for key, least, most, above in ranges:
        value = OmegaConf.select(config, key)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value > most or value < least or (above and value == least):
            raise ValueError(
                f"{key}={value} is no number {'above' if above else 'of at least'} {least}"
                f"{f' and up to {most}' if most < math.inf else ''}"
            )


def check_learning(config: DictConfig) -> list[str]:
    """Warnings: what trains nothing, or not what the numbers say."""
    actor, batch = config.actor_rollout_ref.actor, config.data.train_batch_size
    size, found = actor.ppo_mini_batch_size, []
    if actor.optim.lr == 0:
        found.append(f"{_ACTOR}.optim.lr=0: no weight is changed")
    if isinstance(size, int) and isinstance(batch, int) and size > 0 and batch % size:
        found.append(
            f"{_ACTOR}.ppo_mini_batch_size={size} does not divide data.train_batch_size={batch}: verl fills the last "
            "mini-batch of each step up with empty responses, so that it counts for less"
        )
    return found


def check_micro_batches(config: DictConfig) -> None:
    """Refuses fixed micro-batches that do not divide a rank's part of a mini-batch, which verl finds out in the update
    (`prepare_micro_batches` in `verl/workers/engine/utils.py`)."""
    actor, trainer, n = config.actor_rollout_ref.actor, config.trainer, config.actor_rollout_ref.rollout.n
    sequence_parallel = actor.get("ulysses_sequence_parallel_size", 1)
    size, prompts = actor.ppo_micro_batch_size_per_gpu, actor.ppo_mini_batch_size
    counts = (size, prompts, n, trainer.nnodes, trainer.n_gpus_per_node, sequence_parallel)
    if actor.use_dynamic_bsz or not all(isinstance(count, int) and count > 0 for count in counts):
        return  # no number to compute with: verl and the preflight refuse that
    ranks = max(trainer.nnodes * trainer.n_gpus_per_node // sequence_parallel, 1)
    if prompts * n % (ranks * size):
        raise ValueError(
            f"{_ACTOR}.ppo_micro_batch_size_per_gpu={size}: with {_ACTOR}.use_dynamic_bsz=False it must divide the "
            f"part that each of {ranks} data-parallel ranks has in a mini-batch of {prompts} prompts "
            f"({_ACTOR}.ppo_mini_batch_size) x {n} responses ({_ROLLOUT}.n)"
        )


def uneven_means(config: DictConfig) -> list[str]:
    """Warnings: a mean that depends on how responses are packed into micro-batches."""
    actor = config.actor_rollout_ref.actor
    loss, mean = actor.policy_loss.loss_mode, actor.loss_agg_mode
    warnings = []
    if loss in _LOSSES_OF_MICRO_BATCHES and actor.use_dynamic_bsz:
        warnings.append(
            f"{_ACTOR}.use_dynamic_bsz=True: the loss {loss} takes means within a micro-batch, so what a response "
            "weighs depends on the lengths of those beside it; False makes them of equal size"
        )
    if mean == "seq-mean-token-sum-norm" and actor.get("loss_scale_factor") is None:
        warnings.append(
            f"{_ACTOR}.loss_scale_factor=null: with {_ACTOR}.loss_agg_mode={mean} verl divides by the longest response "
            "of each micro-batch; ${data.max_response_length} is Dr. GRPO's constant"
        )
    return warnings


def check_rollout_correction(config: DictConfig) -> None:
    """Refuses a weight for each token for a loss that weighs whole responses."""
    loss = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if loss in LOSSES_OF_RESPONSES and OmegaConf.select(config, f"{_CORRECTION}.rollout_is") == "token":
        raise ValueError(
            f"{_CORRECTION}.rollout_is=token: the loss {loss} weighs whole responses; use "
            f"rollout_correction=sequence_tis, or {_CORRECTION}.rollout_is=sequence"
        )


def _check_entropies_are_there(config: DictConfig, user: str) -> None:
    where = "they come from the synchronous V1 trainer (trainer.use_v1=True trainer.v1.trainer_mode=sync)"
    if not config.trainer.use_v1:
        raise ValueError(f"trainer.use_v1=False: the V0 trainer hands {user} no entropies; {where}")
    mode = config.trainer.v1.trainer_mode
    if mode != "sync":
        raise ValueError(f"trainer.v1.trainer_mode={mode}: that trainer hands {user} no entropies; {where}")
    if OmegaConf.select(config, f"{_CORRECTION}.bypass_mode"):
        raise ValueError(
            f"{_CORRECTION}.bypass_mode=True skips the log-probability pass, and with it the entropies that {user} "
            "needs; set it to False"
        )
