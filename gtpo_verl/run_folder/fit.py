"""Whether a checkpoint's weights are those of the model that a run would build: by names and shapes, before it starts.

verl finds out in every rank, a minute or two later, with a line for each weight.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.run_folder.adapters import adapter_names
from gtpo_verl.run_folder.wholeness import ranks_of

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)
Shapes = dict[str, tuple[int, ...]]
_MODEL = "actor_rollout_ref.model"


def check_fit(config: DictConfig, checkpoint: Path) -> None:
    """Refuses a checkpoint that the actor's ranks could not load.

    Where the model is one that this process cannot describe, nothing is said.

    Raises:
        ValueError: naming the checkpoint, the model, and what differs.
    """
    actor, model = checkpoint / "actor", config.actor_rollout_ref.model
    try:
        saved = saved_shapes(actor)
        described = describe(model)
        wanted = built_shapes(described, model)
    except Exception as error:  # transformers and peft raise whatever a description leads to
        logger.info(f"{checkpoint} was not compared with {_MODEL}.path={model.path}: {error}")
        return
    if len(adapter_names(saved)) == len(saved):  # saved without the model under it, which is loaded as it is
        wanted = {name: wanted[name] for name in adapter_names(wanted)}
    differing = sorted(name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name))
    if not differing:
        return
    name = differing[0]
    sizes = ", ".join(_differing_sizes(actor, described, saved, wanted))
    raise ValueError(
        f"{checkpoint} does not fit {_MODEL}.path={model.path}: {f'{sizes}; ' if sizes else ''}the weight {name} is "
        f"{saved.get(name, 'absent')} there and {wanted.get(name, 'absent')} here ({len(differing)} differ). Go on "
        "with the model and adapter that it was saved with, or begin anew (trainer.resume_mode=disable)"
    )


def saved_shapes(actor: Path) -> Shapes:
    """Names and shapes of the whole weights, from the first rank's shard; no weight is read."""
    import torch

    shard = actor / f"model_world_size_{ranks_of(actor)}_rank_0.pt"
    weights = torch.load(shard, map_location="cpu", weights_only=True, mmap=True)
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def describe(model: DictConfig) -> Any:
    """The model's configuration as verl changes it (`verl/workers/config/model.py`)."""
    from transformers import AutoConfig
    from verl.utils.model import update_model_config

    given: Any = OmegaConf.to_container(model.override_config) if model.get("override_config") else {}
    given = dict(given.get("model_config", given))
    path = Path(model.get("hf_config_path") or model.path).expanduser()
    name = str(path) if path.is_dir() else str(model.get("hf_config_path") or model.path)
    described = AutoConfig.from_pretrained(name, trust_remote_code=model.get("trust_remote_code", False))
    given.pop("attn_implementation", None)  # no shape depends on it
    update_model_config(described, given)
    return described


def built_shapes(described: Any, model: DictConfig) -> Shapes:
    """Names and shapes of the weights that an actor would have, its adapter's among them; none is made."""
    import torch
    from verl.utils.model import get_hf_auto_model_class

    with torch.device("meta"):
        built = get_hf_auto_model_class(described).from_config(described)
        if model.get("lora_rank", 0) > 0 or model.get("lora_adapter_path"):
            built = _adapted(built, model)
    return {name: tuple(weight.shape) for name, weight in built.state_dict().items()}


def _adapted(built: "nn.Module", model: DictConfig) -> "nn.Module":
    """As verl's `_build_lora_module` (verl/workers/engine/fsdp/transformer_impl.py)."""
    import peft

    if path := model.get("lora_adapter_path"):
        config = peft.PeftConfig.from_pretrained(str(Path(path).expanduser()))
    else:

        def plain(key: str) -> Any:
            value = model.get(key)
            return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value

        config = peft.LoraConfig(
            r=model.lora_rank,
            target_modules=plain("target_modules"),
            target_parameters=plain("target_parameters"),
            exclude_modules=plain("exclude_modules"),
        )
    return peft.get_peft_model(built, config)  # type: ignore[arg-type]


def _differing_sizes(actor: Path, described: Any, saved: Shapes, wanted: Shapes) -> list[str]:
    """What of the two configurations differs, in their own words."""
    found = []
    try:
        before = json.loads((actor / "huggingface/config.json").read_bytes())
    except (OSError, ValueError):
        before = {}
    for key, here in sorted(described.to_dict().items()):
        there = before.get(key, here)
        if there != here and isinstance(there, int) and isinstance(here, int):
            found.append(f"{key} {there} there and {here} here")
    there, here = _adapter_rank(saved), _adapter_rank(wanted)
    if there != here:
        found.append(f"lora_rank {there} there and {here} here")
    return found


def _adapter_rank(shapes: Shapes) -> int:
    return next((shape[0] for name, shape in shapes.items() if ".lora_A" in name), 0)
