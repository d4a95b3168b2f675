"""What a resumed run says of keys that were changed: which of them hold, and which the checkpoint overrides."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

_ACTOR, _OPTIM = "actor_rollout_ref.actor", "actor_rollout_ref.actor.optim"
_WEIGHTS = "the weights are the checkpoint's"
_ORDER = "without effect: the order of the prompts is the checkpoint's"
_PLACE = "the place in the data is the checkpoint's"
_OPTIMIZER = "without effect: the checkpoint's is restored"
# What PyTorch restores with an optimizer's state; `verl_plugin.restoring` puts the configuration's back.
_OPTIONS = ("lr", "betas", "weight_decay", "override_optimizer_config")
Changes = Mapping[str, tuple[Any, Any]]


def remarks(changed: Changes, config: DictConfig) -> dict[str, str]:
    """By key, what to say beside a change that does not hold, or not wholly; keys that simply hold are left out.

    Args:
        changed: old and new value by key.
        config: of the run that goes on.
    """
    order = not OmegaConf.select(config, "data.shuffle") or "data.shuffle" in changed
    said = {
        "actor_rollout_ref.model.path": _WEIGHTS,
        "data.seed": "" if order else _ORDER,
        "data.train_files": _PLACE,
        "data.train_max_samples": _PLACE,
        "data.shuffle": _PLACE,
        "data.train_batch_size": "" if _single_prompts(config) else "the place in the data is so many batches on",
    }
    found = {key: said[key] for key in changed if said.get(key)}
    for role in ("actor_rollout_ref.actor", "critic"):
        if role == _ACTOR and keeps_options(config):
            continue
        for key in changed:
            option = key.removeprefix(f"{role}.optim.").split(".")[0]
            if key.startswith(f"{role}.optim.") and option in _OPTIONS and _restores(config, role):
                found[key] = _OPTIMIZER
    return found


def without_effect(said: Mapping[str, str]) -> list[str]:
    """Of what `remarks` says, the keys whose old value holds."""
    return [key for key, words in said.items() if words.startswith("without effect")]


def keeps_options(config: DictConfig) -> bool:
    """Whether the actor's engine is ours, which keeps the optimizer's options as they are configured."""
    strategy = str(OmegaConf.select(config, f"{_ACTOR}.strategy"))
    return bool(OmegaConf.select(config, "gtpo_verl.fused_entropy")) and strategy.startswith("fsdp")


def refuse_other_optimizer(changed: Changes, config: DictConfig) -> None:
    """Refuses the state of one optimizer for another.

    Raises:
        ValueError: naming the key.
    """
    for name in ("optimizer", "optimizer_impl"):
        key = f"{_OPTIM}.{name}"
        if key not in changed or not _restores(config, _ACTOR):
            continue
        old, new = changed[key]
        if old != "nothing":  # else the file says nothing of it
            raise ValueError(
                f"{key}: {old} -> {new}: the checkpoint holds the state of {old}. Go on with it, or leave that state "
                f"out ({_ACTOR}.checkpoint.load_contents=[model])"
            )


def _restores(config: DictConfig, role: str) -> bool:
    contents = OmegaConf.select(config, f"{role}.checkpoint.load_contents")
    return contents is None or "optimizer" in contents


def _single_prompts(config: DictConfig) -> bool:
    """Whether verl takes prompts one by one (verl/trainer/ppo/v1/trainer_base.py, `_init_dataloader`)."""
    return bool(
        OmegaConf.select(config, "algorithm.filter_groups.enable")
        or OmegaConf.select(config, "trainer.v1.sampler.sync_refill_failed_groups")
    )
