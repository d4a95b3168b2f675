"""Checks of the driver, before Ray starts: what would otherwise fail a minute later, in another process."""

import inspect
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id
from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf

from gtpo_verl.configuration.data_checks import check_data, check_templates, read_by_another, read_by_verl
from gtpo_verl.configuration.settings import RecipeSettings
from gtpo_verl.rewards.truth import problem_with_truth
from gtpo_verl.runtime import devices
from gtpo_verl.runtime.disks import unwritable

_MODEL = "actor_rollout_ref.model"
_WRITTEN = (
    "gtpo_verl.run_dir",
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "gtpo_verl.token_dump_dir",
)


def refuse_on_driver(config: DictConfig, settings: RecipeSettings) -> None:
    """Disk, model, data, reward function, and verl's own validation.

    Raises:
        ValueError, FileNotFoundError, OSError: naming the key or file.
    """
    devices.refuse_rocr(os.environ)
    check_ray_folder(config)
    check_disk(Path(settings.run_dir), settings.min_free_disk_gib)
    check_models(config.actor_rollout_ref.model)
    if not read_by_another(config.data):
        known = truth_check(config)
        rows = {
            key: check_data(f"data.{key}", config.data[key], config.data.prompt_key, config.data.reward_fn_key, known)
            for key in ("train_files", "val_files")
        }
        check_steps(config, rows["train_files"])
        for key in rows:
            check_templates(config, f"data.{key}")
    if settings.probe_reward:
        probe_reward(config)
    check_with_verl(config)
    check_optimizer(config)


def check_optimizer(config: DictConfig) -> None:
    """Asks the optimizer's own class about its options, as verl's FSDP engines would build it after the model.

    Raises:
        ValueError: naming the key, or the group with what the class says.
    """
    actor = config.actor_rollout_ref.actor
    if not str(actor.strategy).startswith("fsdp"):
        return
    import torch
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config.optimizer import build_optimizer

    key, options = "actor_rollout_ref.actor.optim", actor.optim
    for name, least in (("lr", "of at least 0"), ("clip_grad", "above 0")):
        value = options[name]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and name == "clip_grad"):
            raise ValueError(f"{key}.{name}={value} is no finite number {least}")
    try:
        build_optimizer([torch.nn.Parameter(torch.zeros(1))], omega_conf_to_dataclass(options))
    except Exception as error:  # whatever that class, or the import of it, raises
        raise ValueError(f"{key}: {options.optimizer_impl}.{options.optimizer} refuses: {error}") from error


def check_with_verl(config: DictConfig) -> None:
    """verl's `validate_config`, whose refusals become ValueErrors."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except (AssertionError, TypeError, InstantiationException) as error:
        raise ValueError(f"verl refuses the configuration: {error}") from error


def check_ray_folder(config: DictConfig) -> None:
    """Raises OSError where the job would start a Ray of its own in a folder that this user may not write to, such as
    /tmp/ray of another user."""
    init = config.ray_kwargs.ray_init
    address = init.get("address") or os.environ.get("RAY_ADDRESS")
    if address not in (None, "local"):
        return
    base = next((os.environ[name] for name in ("RAY_TMPDIR", "TMPDIR") if os.environ.get(name)), "/tmp")
    folder = Path(init.get("_temp_dir") or Path(base, "ray")).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OSError(f"{existing}: not writable, and Ray's files go there; export RAY_TMPDIR=a short path of your own")


def check_disk(folder: Path, minimum_gib: float) -> None:
    """Raises OSError where the file system of `folder` has less than `minimum_gib` GiB free."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free / 2**30
    if free < minimum_gib:
        raise OSError(
            f"{folder}: only {free:.2f} GiB free, gtpo_verl.min_free_disk_gib asks for {minimum_gib:g}. "
            "Free some space, or set gtpo_verl.run_dir to another disk"
        )


def check_folders(config: DictConfig) -> None:
    """Refuses folders of the run into which nothing can be written: verl finds out when it saves, hours later.

    Raises:
        OSError: naming the key.
    """
    for key in _WRITTEN:
        path = OmegaConf.select(config, key)
        if path and "://" not in str(path) and (problem := unwritable(Path(path))) is not None:
            raise OSError(f"{key}={path}: {problem}")


def check_models(model: DictConfig) -> None:
    """Refuses a model, configuration, tokenizer or adapter that is not there, or that would be left out.

    Raises:
        ValueError, FileNotFoundError: naming the key.
    """
    from transformers import AutoTokenizer

    folder = check_model(model.path)
    rank = model.get("lora_rank", 0)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        raise ValueError(f"{_MODEL}.lora_rank={rank} is no whole number of at least 0 (0: no adapter)")
    if model.get("hf_config_path"):
        check_model(model.hf_config_path, f"{_MODEL}.hf_config_path")
    if adapter := model.get("lora_adapter_path"):
        check_model(adapter, f"{_MODEL}.lora_adapter_path", "adapter_config.json")
        if not rank:  # verl asks for it alone (verl/workers/engine/fsdp/transformer_impl.py, `_is_lora`)
            raise ValueError(
                f"{_MODEL}.lora_adapter_path={adapter} with {_MODEL}.lora_rank={rank}: verl would train the "
                "whole model and leave that adapter out; set lora_rank to the adapter's"
            )
    key, tokenizer = f"{_MODEL}.path", model.path
    if model.get("tokenizer_path"):
        key, tokenizer = f"{_MODEL}.tokenizer_path", model.tokenizer_path
        folder = check_model(tokenizer, key, None)
    if folder is None:
        return
    try:
        AutoTokenizer.from_pretrained(str(folder), trust_remote_code=model.get("trust_remote_code", False))
    except Exception as error:  # transformers raises whatever a damaged file leads to
        said = next(iter(str(error).strip().splitlines()), "")
        raise ValueError(f"{key}={tokenizer}: no tokenizer to be read: {type(error).__name__}: {said}") from error


def check_model(path: str | None, key: str = f"{_MODEL}.path", file: str | None = "config.json") -> Path | None:
    """The folder of a model, or of a part of one, in the hub's cache too; None for a name that the hub will be asked
    for.

    Args:
        key: that names it.
        file: what must be in there.

    Raises:
        ValueError: none is given.
        FileNotFoundError: no model there. Whether a text names one on the hub, and whether the hub may be asked, its
            own library decides.
    """
    if path is None:
        raise ValueError("actor_rollout_ref.model.path is not set; it is the folder of a Hugging Face model")
    key = f"{key}={path}"
    if os.path.isdir(path):
        if file is not None and not os.path.exists(os.path.join(path, file)):
            raise FileNotFoundError(f"{key}: no {file} in that folder, so it is no Hugging Face model")
        return Path(path)
    try:
        validate_repo_id(path)
    except HFValidationError:
        raise FileNotFoundError(f"{key}: {'a file, no folder' if os.path.exists(path) else 'no such folder'}") from None
    if not hub_is_offline():
        return None
    try:
        folder = Path(snapshot_download(path, local_files_only=True))
    except (LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"{key}: no such folder, and no such model in the hub's cache {constants.HF_HUB_CACHE}; the hub is not "
            "asked (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)"
        ) from error
    if file is not None and not (folder / file).exists():
        raise FileNotFoundError(f"{key}: no {file} of it in the hub's cache {folder}")
    return folder


def hub_is_offline() -> bool:
    """Whether a process that starts now would not ask the hub (`huggingface_hub.constants`, which reads the environment
    once, when it is imported)."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in constants.ENV_VARS_TRUE_VALUES


def check_steps(config: DictConfig, rows: int) -> None:
    """Refuses a run that its data would end before the step that it announces; verl stops there without a word, a
    checkpoint or a validation (verl/trainer/ppo/v1/trainer_base.py, `fit`).

    Args:
        rows: of the training data; fewer remain where prompts are filtered, so the trainer asks again.

    Raises:
        ValueError: no whole batch, or too few epochs; names the keys.
    """
    data, trainer = config.data, config.trainer
    for key in ("data.train_batch_size", "trainer.total_epochs", "trainer.total_training_steps"):
        value = OmegaConf.select(config, key)
        optional = value is None and key == "trainer.total_training_steps"
        if not optional and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{key}={value} must be a whole number of at least 1")
    if not isinstance(data.get("train_max_samples"), int | None):
        raise ValueError(f"data.train_max_samples={data.train_max_samples} must be a whole number, or -1 for all")
    most = data.get("train_max_samples", -1)
    prompts, limited = rows, ""
    if most is not None and 0 < most < rows:
        prompts, limited = most, f" (data.train_max_samples={most})"
    batch = data.train_batch_size
    an_epoch = prompts // batch
    if an_epoch == 0:
        raise ValueError(
            f"data.train_batch_size={batch}: the training data has {prompts} prompts{limited}, not one batch"
        )
    total, epochs = trainer.total_training_steps, trainer.total_epochs
    if total is not None and an_epoch * epochs < total:
        raise ValueError(
            f"trainer.total_training_steps={total}: the training data has {prompts} prompts{limited}, which are "
            f"{an_epoch} steps of data.train_batch_size={batch}, and trainer.total_epochs={epochs} would end the run "
            f"after step {an_epoch * epochs}. Set trainer.total_epochs={-(-total // an_epoch)} or more"
        )


def truth_check(config: DictConfig) -> Callable[[Any], str | None] | None:
    """What says why the configured reward cannot grade a ground truth; None where no one knows but the reward."""
    function = OmegaConf.select(config, "reward.custom_reward_function.path")
    return problem_with_truth if function == "pkg://gtpo_verl.rewards.math" else None


def probe_reward(config: DictConfig) -> None:
    """Calls the user's reward function on the first training row and an empty response.

    Asynchronous reward functions and reward models are left to the first batch, where the trainer checks again.

    Raises:
        ValueError: the function fails, lacks the metric that decides right and wrong, or gives no number for it.
    """
    from verl.trainer.ppo.reward import get_custom_reward_fn

    from gtpo_verl.configuration.reward_results import check_result, deciding_metrics  # imports torch

    where = f"reward.custom_reward_function ({config.reward.custom_reward_function.path})"
    try:
        function = get_custom_reward_fn(config)
    except Exception as error:  # whatever the user's file raises when it is imported
        raise ValueError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    wanted = deciding_metrics(config)
    if (
        read_by_another(config.data)
        or function is None
        or inspect.iscoroutinefunction(getattr(function, "args", [function])[0])
        or not wanted
    ):
        return
    files = config.data.train_files
    first = files[0] if isinstance(files, list | tuple | ListConfig) else files
    row = read_by_verl([Path(str(first)).expanduser()])[0]
    try:
        result = function(
            data_source=row[config.data.reward_fn_key],
            solution_str="",
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=row.get("extra_info"),
        )
    except Exception as error:
        raise ValueError(f"{where} fails on the first row of {first}: {type(error).__name__}: {error}") from error
    # A plain number is what verl's reward managers call `acc` themselves.
    given = result if isinstance(result, dict) else {"score": result, "acc": result}
    for metric, keys in wanted.items():
        if metric not in given:
            asked = " and ".join(keys)
            raise ValueError(f"{where} returns {', '.join(given)} but no `{metric}`, which {asked} asks for")
    try:
        check_result(given.get("score"), given, wanted)
    except ValueError as error:
        raise ValueError(f"{where} on the first row of {first}: {error}") from None
