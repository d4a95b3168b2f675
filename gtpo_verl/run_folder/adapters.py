"""An actor's adapter (LoRA) and the weights under it, as one model's weights: W + alpha / r x B A, computed by peft."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peft import PeftConfig
    from torch import Tensor

META = "lora_train_meta.json"
_PREFIX, _BASE, _ADAPTER = "base_model.model.", ".base_layer.", ".default"


def adapter_names(names: Iterable[str]) -> list[str]:
    """Those of an adapter, as verl tells them (`BaseCheckpointManager.is_lora_only_state_dict`)."""
    return [name for name in names if "lora_" in name or ".adapter_" in name]


def with_adapter(actor: Path, world_size: int, shards: int) -> "dict[str, Tensor]":
    """The weights of the model with its adapter in them, added in the precision of the shards, in bfloat16.

    Args:
        actor: the folder of a checkpoint's actor, with an adapter in its shards.
        world_size: ranks that saved it.
        shards: ranks that hold one copy of the weights.

    Raises:
        FileNotFoundError: the adapter alone was saved, and the model under it is not where `config.yaml` says.
        ValueError: what the adapter is scaled by is not known, or it is no part of the model; names file or weight.
    """
    import peft
    import torch
    from transformers import AutoConfig
    from verl.utils.model import get_hf_auto_model_class

    weights = whole_weights(actor, world_size, shards)
    names = adapter_names(weights)
    adapter = _adapter_config(actor, weights, names)
    described = AutoConfig.from_pretrained(actor / "huggingface")
    model_class = get_hf_auto_model_class(described)
    alone = len(names) == len(weights)
    if alone:  # actor.checkpoint.save_lora_only
        base = _base_model(actor)
        model = model_class.from_pretrained(base, dtype=torch.float32)
    else:
        with torch.device("meta"):
            model = model_class.from_config(described)
    model = peft.get_peft_model(model, adapter, low_cpu_mem_usage=True)
    expected = model.state_dict()
    unknown = sorted(weights.keys() - expected.keys())
    missing = sorted((set(adapter_names(expected)) if alone else expected.keys()) - weights.keys())
    for problem, found in (("is no weight of the model", unknown), ("is missing", missing)):
        if found:
            raise ValueError(f"{actor}: {found[0]} {problem} with the adapter that {META} describes")
    model.load_state_dict(weights, strict=False, assign=True)
    merged = model.merge_and_unload(safe_merge=True)
    return {name: weight.bfloat16() for name, weight in merged.state_dict().items()}


def whole_weights(actor: Path, world_size: int, shards: int) -> "dict[str, Tensor]":
    """What the ranks hold parts of, put together on the CPU, in the precision of the shards.

    Args:
        shards: ranks that hold one copy of the weights; others hold the same again.
    """
    import torch
    from torch.distributed.tensor import DTensor, Shard

    parts = [load_shard(actor / f"model_world_size_{world_size}_rank_{rank}.pt") for rank in range(shards)]

    def whole(name: str) -> "Tensor":
        first = parts[0][name]
        if not isinstance(first, DTensor):
            return first
        local = [part[name].to_local() for part in parts]
        placement = first.placements[-1]
        return torch.cat(local, dim=placement.dim) if isinstance(placement, Shard) else local[0]

    return {name: whole(name) for name in parts[0]}


def load_shard(path: Path, mmap: bool = False) -> "dict[str, Any]":
    """A rank's weights, without running what else a pickle could hold.

    Args:
        mmap: leaves the tensors on the disk until they are read.

    Raises:
        ValueError: it holds something else than tensors; names the file.
    """
    import pickle

    import torch
    import torch.distributed.tensor  # makes sharded tensors known to torch.load

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        reason = next((line for line in str(error).splitlines() if "Unsupported" in line or "GLOBAL" in line), "")
        raise ValueError(f"{path}: more than weights is in it, and that would be run; not loaded ({reason})") from error


def _adapter_config(actor: Path, weights: "dict[str, Tensor]", names: list[str]) -> "PeftConfig":
    """How the adapter was made: as the run's configuration has it where that lies beside the checkpoints, else from its
    weights and what verl writes beside them."""
    from peft import LoraConfig, PeftConfig

    model = run_model_config(actor)
    if path := model.get("lora_adapter_path"):
        try:
            config = PeftConfig.from_pretrained(str(Path(path).expanduser()))
        except (ValueError, OSError) as error:
            raise ValueError(f"actor_rollout_ref.model.lora_adapter_path={path}: {error}") from error
        config.inference_mode = False
        return config
    rows = {
        name.removeprefix(_PREFIX).split(".lora_A")[0]: weights[name].shape[0] for name in names if ".lora_A" in name
    }
    ranks = set(rows.values())
    if len(ranks) != 1:
        raise ValueError(f"{actor}: no adapter of one rank: {sorted(ranks) or 'no lora_A'}")
    rank, alpha = ranks.pop(), _alpha(actor, model)
    if not model:
        # verl writes no more than these two: an adapter of `lora_adapter_path` may be scaled otherwise (use_rslora,
        # alpha_pattern), and an alpha that is no whole number is cut.
        print(
            f"{actor}: no configuration of the run in {run_config(actor)}: its adapter is scaled by {META} alone, "
            f"lora_alpha / rank = {alpha} / {rank}. If it began with an adapter of its own "
            "(actor_rollout_ref.model.lora_adapter_path), or with an alpha that is no whole number, put the run's "
            "config.yaml there and convert again",
            file=sys.stderr,
        )
    return LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # peft divides it, whole or not
        target_modules=sorted(rows),
        target_parameters=model.get("target_parameters"),
        bias="none",
    )


def _alpha(actor: Path, model: dict[str, Any]) -> float:
    """verl writes a whole number, whatever the run was given; the run's own is taken where the two agree.

    Raises:
        ValueError: neither says, or it is 0.
    """
    given, path = model.get("lora_alpha"), actor / META
    alpha = given
    if path.exists():
        try:
            written = int(json.loads(path.read_text(encoding="utf-8"))["lora_alpha"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: no `lora_alpha` to be read: {error}") from error
        if written and not (isinstance(given, int | float) and int(given) == written):
            alpha = written
    if not alpha:
        what = "no such file" if not path.exists() else "lora_alpha is 0"
        raise ValueError(
            f"{path}: {what}, and no config.yaml of the run says what the adapter is scaled by "
            "(actor_rollout_ref.model.lora_alpha)"
        )
    return alpha


def _base_model(actor: Path) -> str:
    path = run_model_config(actor).get("path")
    if path is None or not Path(path).expanduser().is_dir():
        raise FileNotFoundError(
            f"{actor}: the adapter alone was saved (actor.checkpoint.save_lora_only), and the model under it "
            f"(actor_rollout_ref.model.path{f'={path}' if path else ' of the config.yaml of the run'}) is not there"
        )
    return str(Path(path).expanduser())


def run_config(actor: Path) -> Path:
    """Where the configuration of the actor's run lies, if it does: RUN/checkpoints/global_step_N/actor."""
    return actor.absolute().parents[2] / "config.yaml"


def run_model_config(actor: Path) -> dict[str, Any]:
    """`actor_rollout_ref.model` of the run's `config.yaml`; empty where none lies above the checkpoints."""
    from omegaconf import OmegaConf

    try:
        config = OmegaConf.load(run_config(actor))
        model = OmegaConf.to_container(OmegaConf.select(config, "actor_rollout_ref.model"))
    except Exception:  # absent, or damaged, whatever YAML and OmegaConf say then
        return {}
    return {str(key): value for key, value in model.items()} if isinstance(model, dict) else {}
