"""What the driver can say without a cluster: configuration, model, tokenizer, data."""

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.configuration import data_checks, refusals
from gtpo_verl.preflight.architecture import ModelShape, published_shape, shape_of
from gtpo_verl.preflight.findings import Finding, Status, from_refusal
from gtpo_verl.preflight.prompts import check_prompts, check_tokenizer, prompt_lengths
from gtpo_verl.run_folder.checkpoints import check_resume, resumed_checkpoint
from gtpo_verl.run_folder.fit import check_fit
from gtpo_verl.run_folder.trackers import check_trackers

_MODEL, _ROLLOUT = "actor_rollout_ref.model.path", "actor_rollout_ref.rollout"
_OVERRIDES = "actor_rollout_ref.model.override_config"
_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def paths_of(files: str | Sequence[str] | None) -> list[Path]:
    """`data.train_files` or `data.val_files`: one path, several, or none."""
    return [Path(file).expanduser() for file in data_checks.listed(files)]


def local_model(config: DictConfig) -> Path | None:
    """The model's folder; None for a name on the hub, or none given."""
    path = config.actor_rollout_ref.model.path
    if not path or (not Path(path).is_dir() and not path.startswith(("/", ".", "~"))):
        return None
    return Path(path).expanduser()


def check_configuration(config: DictConfig) -> Iterator[Finding]:
    """What this package and verl refuse of the configuration alone."""
    from gtpo_verl.configuration.checks import check_config

    yield from_refusal("configuration", lambda: check_config(config), "accepted")
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl's remarks on what it accepts are not the table's
        yield from_refusal("verl's validation", lambda: refusals.check_with_verl(config), "accepted")


def check_start(config: DictConfig) -> Iterator[Finding]:
    """What a job refuses at its start beside its configuration: trackers, and the checkpoint that it goes on from."""
    yield from_refusal("trackers", lambda: check_trackers(config.trainer.logger), "can be started", "trainer.logger")

    def checkpoint() -> None:
        check_resume(config)
        if (found := resumed_checkpoint(config)) is not None:
            check_fit(config, found)

    yield from_refusal("checkpoint", checkpoint, "none, or it fits", "trainer.resume_mode")


def check_model(config: DictConfig, dry_run: bool) -> tuple[ModelShape | None, list[Finding]]:
    """The model's sizes (from its folder, else from `gtpo_verl.architecture`), and whether its tokenizer fits."""
    model, folder = config.actor_rollout_ref.model, local_model(config)
    if model.path is None or (folder is not None and not folder.is_dir()):
        why = "not given" if model.path is None else f"{model.path}: no such folder on this machine"
        missing = Finding("model", Status.UNKNOWN, why) if dry_run else Finding("model", Status.FAIL, why, key=_MODEL)
        return _published(config, missing)
    if folder is None and dry_run:
        return _published(config, Finding("model", Status.UNKNOWN, f"{model.path} is on the hub: not asked"))

    from transformers import AutoConfig, AutoTokenizer

    name = str(folder or model.path)
    try:
        described = AutoConfig.from_pretrained(
            model.get("hf_config_path") or name, trust_remote_code=model.trust_remote_code
        )
        tokenizer = AutoTokenizer.from_pretrained(
            model.tokenizer_path or name, trust_remote_code=model.trust_remote_code
        )
    except Exception as error:  # transformers raises whatever a damaged file leads to
        return None, [Finding("model", Status.FAIL, f"{model.path}: {error}", key=_MODEL)]
    own_positions = _positions(described)
    try:
        _override(described, model.override_config)
    except (AttributeError, ValueError, TypeError) as error:
        return None, [Finding("model", Status.FAIL, f"override_config: {error}", key=_OVERRIDES)]
    has_template = (model.custom_chat_template or tokenizer.chat_template) is not None
    fit = check_tokenizer(tokenizer, described.get_text_config().vocab_size, has_template)
    try:
        shape = shape_of(described)
    except ValueError as error:
        return None, [Finding("model", Status.UNKNOWN, str(error)), fit]
    findings = [Finding("model", Status.OK, f"{shape.parameters:,} parameters"), fit]
    return shape, [*findings, *_check_positions(config, own_positions, _positions(described))]


def _override(described: Any, overrides: DictConfig | None) -> None:
    """Changes the configuration that the actor is built by as verl does (`verl/workers/config/model.py`)."""
    from verl.utils.model import update_model_config

    given: Any = OmegaConf.to_container(overrides) if overrides else {}
    given = given.get("model_config", given)
    # No size depends on it, and transformers may not have the one of the nodes.
    update_model_config(described, {key: value for key, value in given.items() if key != "attn_implementation"})


def _positions(described: Any) -> int | None:
    return getattr(described.get_text_config(), "max_position_embeddings", None)


def positions_of_model(config: DictConfig) -> int | None:
    """Tokens of the model's context, `override_config` included; None where that is not known on this machine."""
    from transformers import AutoConfig

    model = config.actor_rollout_ref.model
    if (folder := local_model(config)) is None:
        return None
    try:
        described = AutoConfig.from_pretrained(
            model.get("hf_config_path") or str(folder), trust_remote_code=model.trust_remote_code
        )
        _override(described, model.override_config)
    except Exception:  # whatever is wrong with it, other checks name it
        return None
    return _positions(described)


def _check_positions(config: DictConfig, own: int | None, overridden: int | None) -> Iterator[Finding]:
    """vLLM reads the model's own configuration, and refuses to plan for more tokens than it finds there."""
    rollout = config.actor_rollout_ref.rollout
    planned = rollout.max_model_len or overridden
    if own == overridden or not isinstance(planned, int) or own is None or planned <= own:
        return
    if OmegaConf.select(rollout, "engine_kwargs.vllm.hf_overrides") or os.environ.get(_LONG) in ("1", "true"):
        return
    detail = (
        f"vLLM plans for {planned} tokens and reads no override_config: the model's own says {own}. It needs "
        f"{_ROLLOUT}.engine_kwargs.vllm.hf_overrides, or {_LONG}=1 in gtpo_verl.env"
    )
    yield Finding("context", Status.WARN, detail, key=f"{_ROLLOUT}.engine_kwargs.vllm.hf_overrides")


def _published(config: DictConfig, missing: Finding) -> tuple[ModelShape | None, list[Finding]]:
    architecture = config.gtpo_verl.architecture
    if architecture is None:
        return None, [missing]
    try:
        shape = published_shape(architecture)
    except Exception as error:  # as transformers raises it
        return None, [missing, Finding("architecture", Status.FAIL, str(error), key="gtpo_verl.architecture")]
    detail = f"{shape.parameters:,} parameters, as gtpo_verl.architecture describes them"
    return shape, [missing, Finding("architecture", Status.OK, detail)]


def check_data(config: DictConfig, dry_run: bool) -> Iterator[Finding]:
    """Each data file's schema and rows, and its longest prompt."""
    for name in ("train_files", "val_files"):
        key, paths = f"data.{name}", paths_of(config.data[name])
        absent = [path for path in paths if not path.exists()]
        if not paths or absent:
            why = "not given" if not paths else f"{absent[0]}: no such file on this machine"
            yield Finding(key, Status.UNKNOWN, why) if dry_run else Finding(key, Status.FAIL, why, key=key)
            continue

        if data_checks.read_by_another(config.data):
            yield Finding(key, Status.UNKNOWN, "read by data.custom_cls")
            continue

        def schema(key: str = key, paths: list[Path] = paths) -> None:
            names = config.data.prompt_key, config.data.reward_fn_key
            data_checks.check_data(key, [str(path) for path in paths], *names, refusals.truth_check(config))

        form = from_refusal(key, schema, "in verl's form", key)
        yield form
        if form.status is Status.OK:
            yield from _check_prompts(config, f"{key}: prompts", paths, dry_run)


def _check_prompts(config: DictConfig, what: str, paths: list[Path], dry_run: bool) -> Iterator[Finding]:
    tokenizer = None if dry_run and local_model(config) is None else data_checks.chat_tokenizer(config)
    if tokenizer is None:
        yield Finding(what, Status.UNKNOWN, "no tokenizer at hand")
        return
    if tokenizer.chat_template is None:
        return  # `check_model` has said so
    template = data_checks.template_arguments(config.data)
    lengths = prompt_lengths(tokenizer, paths, config.data.prompt_key, template)
    yield check_prompts(what, lengths, config.data.max_prompt_length, config.data.filter_overlong_prompts)
