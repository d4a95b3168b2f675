"""What must stand before a configuration can be checked: environment variables, and the task's model and data."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from gtpo_verl.configuration.checks import validates_only
from gtpo_verl.configuration.composition import resolve
from gtpo_verl.configuration.kinds import check_kinds
from gtpo_verl.configuration.settings import RecipeSettings
from gtpo_verl.runtime import devices

ENGINE_VENDOR = "gtpo_verl"


def prepare(config: DictConfig) -> None:
    """Sets the environment up, makes the task's model and data, and resolves `config` in place.

    Raises:
        ValueError: naming the key.
    """
    set_environment(config)
    settings = RecipeSettings.from_config(config)
    if settings.task is not None:
        fill_in_task(config, settings.task, settings.cache_dir)
    resolve(config)


def set_environment(config: DictConfig) -> None:
    """Sets the variables of `gtpo_verl.env` that the user has not set, and those that follow from the configuration.

    Raises:
        ValueError: naming the key.
    """
    check_kinds(config)
    expand_home(config)
    settings = RecipeSettings.from_config(config)
    if OmegaConf.select(config, "trainer.device") == "cpu":
        devices.forget(os.environ)
    for name, value in settings.env.items():
        if value is not None:
            os.environ.setdefault(name, value)
    os.environ.update(engine_environment(settings.fused_entropy))
    metrics = "validation.jsonl" if validates_only(config) else "metrics.jsonl"
    os.environ.setdefault("VERL_FILE_LOGGER_PATH", str(Path(settings.run_dir, metrics).absolute()))


# Folders and files; what a library expands by itself, and what it does not, is no matter then.
_PATHS = (
    "gtpo_verl.run_dir",
    "gtpo_verl.cache_dir",
    "gtpo_verl.token_dump_dir",
    "trainer.default_local_dir",
    "trainer.resume_from_path",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "data.train_files",
    "data.val_files",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.hf_config_path",
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.lora_adapter_path",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "reward.reward_model.model_path",
    "reward.custom_reward_function.path",
    "ray_kwargs.ray_init._temp_dir",
)
_SEVERAL = ("data.train_files", "data.val_files")


def expand_home(config: DictConfig) -> None:
    """Puts the home folder in the place of `~` in every path, in place.

    Raises:
        ValueError: a value that is no path, by its key.
    """
    for key in _PATHS:
        value = OmegaConf.select(config, key)
        if value is None:
            continue
        several = isinstance(value, ListConfig)
        if several and key not in _SEVERAL:
            raise ValueError(f"{key}={value} must be one path")
        for path in value if several else [value]:
            if isinstance(path, bool) or not isinstance(path, str | int | float) or "\0" in str(path):
                raise ValueError(f"{key}={value!r} must be a path")
        expanded: Any = [os.path.expanduser(str(path)) for path in value] if several else os.path.expanduser(str(value))
        if expanded != value:
            OmegaConf.update(config, key, expanded)


def engine_environment(fused_entropy: bool) -> dict[str, str]:
    """Environment variables for the driver and every Ray worker that choose the engine (`verl_plugin.engine`).

    Args:
        fused_entropy: the setting `gtpo_verl.fused_entropy`.

    Raises:
        ValueError: `fused_entropy` is on and the environment already names another vendor's engine.
    """
    if not fused_entropy:
        return {}
    chosen = os.environ.get("VERL_ENGINE_VENDOR") or ENGINE_VENDOR
    if chosen != ENGINE_VENDOR:
        raise ValueError(
            f"gtpo_verl.fused_entropy=true needs the engine of vendor {ENGINE_VENDOR!r}, but VERL_ENGINE_VENDOR="
            f"{chosen!r}; unset the variable, or set gtpo_verl.fused_entropy=false to keep that engine"
        )
    return {"VERL_ENGINE_VENDOR": ENGINE_VENDOR}


def forwarded_variables(config: DictConfig) -> dict[str, str]:
    """What `prepare` has set, for every Ray worker of the run, but for what the user's own runtime environment of Ray
    says of `gtpo_verl.env`."""
    own = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    chosen = [name for name, value in config.gtpo_verl.env.items() if value is not None and name not in own]
    names = [*chosen, *engine_environment(config.gtpo_verl.fused_entropy), "VERL_FILE_LOGGER_PATH"]
    return {name: os.environ[name] for name in names}


def fill_in_task(config: DictConfig, task: str, cache_dir: str) -> None:
    """Prepares (or finds in the cache) `gtpo_verl.task`; fills in the model and data that the user did not name."""
    from gtpo_verl import tasks

    prepared = tasks.prepare(task, Path(cache_dir))
    with open_dict(config):
        for key, value in (
            ("actor_rollout_ref.model.path", prepared.model),
            ("data.train_files", prepared.train),
            ("data.val_files", prepared.val),
        ):
            if OmegaConf.select(config, key) is None:
                OmegaConf.update(config, key, str(Path(value).absolute()))
