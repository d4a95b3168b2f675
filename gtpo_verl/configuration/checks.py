"""Refusals by name: what a configuration must have for a run."""

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.configuration.composition import refuse_credentials
from gtpo_verl.configuration.settings import RecipeSettings


def check_config(config: DictConfig) -> list[str]:
    """Checks what can be known before anything starts.

    Returns:
        Warnings: combinations that work but are hardly meant.

    Raises:
        ValueError: a combination that cannot work, by the name of its key.
    """
    from gtpo_verl.configuration.algorithm_checks import check_algorithm  # imports torch, which not all need here

    RecipeSettings.from_config(config)
    refuse_credentials(config)
    checkpoints_to_keep(config)
    check_sequence_parallel(config)
    return check_algorithm(config) + foreign_code(config)


def foreign_code(config: DictConfig) -> list[str]:
    """Warnings, one a key `trust_remote_code` that is on, wherever it stands."""

    def keys(node: object, path: str) -> Iterator[str]:
        for name, value in node.items() if isinstance(node, dict) else ():
            if name == "trust_remote_code" and value:
                yield f"{path}{name}"
            yield from keys(value, f"{path}{name}.")

    return [
        f"{key}=True: Python files of that model's folder are run on every node, with all rights of this job"
        for key in keys(OmegaConf.to_container(config, resolve=True), "")
    ]


def check_sequence_parallel(config: DictConfig) -> None:
    """Refuses sequence parallelism without flash attention, where each rank would attend to its own part only.

    verl exchanges heads for tokens in transformers' flash-attention function and nowhere else
    (`verl/models/transformers/monkey_patch.py`).
    """
    size = config.actor_rollout_ref.actor.get("ulysses_sequence_parallel_size", 1)
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    attention = OmegaConf.select(config, key) or "flash_attention_2"
    if isinstance(size, int) and size > 1 and not attention.startswith("flash_attention"):
        raise ValueError(
            f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={size} with {key}={attention}: verl spreads a "
            "sequence over ranks in flash attention only, so tokens would see a part of their sequence; use "
            "flash_attention_2, or a size of 1"
        )


def checkpoints_to_keep(config: DictConfig) -> int | None:
    """The number of checkpoints to keep (`trainer.max_actor_ckpt_to_keep`), None for all.

    Raises:
        ValueError: no such number, another one for the critic (a checkpoint is kept or deleted whole), or checkpoints
            that no run could go on from.
    """
    trainer = config.trainer
    keep = 1 if trainer.get("remove_previous_ckpt_in_save") else trainer.get("max_actor_ckpt_to_keep")
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise ValueError(f"trainer.max_actor_ckpt_to_keep={keep} must be a whole number of at least 1, or null for all")
    of_critic = trainer.get("max_critic_ckpt_to_keep")
    if of_critic is not None and of_critic != keep:
        raise ValueError(
            f"trainer.max_critic_ckpt_to_keep={of_critic}: a checkpoint is kept or deleted whole, actor and critic; "
            f"set trainer.max_actor_ckpt_to_keep (here {keep}) and leave this null"
        )
    actor = config.actor_rollout_ref.actor
    if OmegaConf.select(actor, "checkpoint.async_save") and str(actor.strategy).startswith("fsdp"):
        raise ValueError(
            f"actor_rollout_ref.actor.checkpoint.async_save=True: with the strategy {actor.strategy} verl saves at "
            "once all the same, but never names the checkpoint, so that no run could go on from it; set it to False"
        )
    return keep


def validates_only(config: DictConfig) -> bool:
    """Whether the job trains nothing: verl looks at `trainer.val_only` behind `trainer.val_before_train` alone."""
    return bool(config.trainer.get("val_only") and config.trainer.get("val_before_train", True))
