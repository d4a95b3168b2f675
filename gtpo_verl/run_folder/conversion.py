"""The actor of a checkpoint as a Hugging Face model, merged from its FSDP shards by verl's own `verl.model_merger`.

An adapter (LoRA) is added to the weights that it adapts, by peft and before anything is rounded; verl's merger writes
it into a folder of its own, beside the weights of the model that the run began with.
"""

import contextlib
import os
import shutil
import sys
from pathlib import Path

from gtpo_verl.run_folder.adapters import adapter_names, load_shard, with_adapter
from gtpo_verl.run_folder.checkpoints import TRACKER, CheckpointFolder, saved_ranks
from gtpo_verl.run_folder.wholeness import actor_problem


def convert(source: Path, output: Path) -> Path:
    """Writes the model, its configuration and its tokenizer to `output`, which exists only once it is complete.

    The weights are rounded to bfloat16, as verl's merger does. All shards are in memory at once: 4 bytes a parameter
    where the actor trains in fp32, and 2 for the result.

    Args:
        source: a checkpoint (`global_step_N`, or `actor` in it), or for its latest checkpoint a run's folder or the
            folder of its checkpoints.
        output: a folder that does not exist.

    Returns:
        `output`.

    Raises:
        FileNotFoundError: no checkpoint there, or it lacks a file; names it.
        FileExistsError: `output` exists.
        ValueError: a file is damaged; names it.
    """
    if output.exists():
        raise FileExistsError(f"{output} exists already; name a folder that does not")
    actor = find_actor(source)
    check_actor(actor)
    partial = output.absolute().with_name(output.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            _merge(actor, partial)
        os.rename(partial, output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return output


def find_actor(source: Path) -> Path:
    """The folder `actor` of the checkpoint that `source` means; see `convert`."""
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: no such folder")
    if (source / "fsdp_config.json").exists():
        return source
    if (source / "actor").is_dir():
        return source / "actor"
    for folder in (source, source / "checkpoints"):
        checkpoints = CheckpointFolder(folder, ("model",))
        step = checkpoints.resumable()
        if step:
            return checkpoints.located(step) / "actor"
    raise FileNotFoundError(
        f"{source}: no checkpoint: neither `actor` (a checkpoint), {TRACKER} (the folder of a run's checkpoints), "
        f"nor checkpoints/{TRACKER} (a run's folder)"
    )


def check_actor(actor: Path) -> None:
    """Raises FileNotFoundError or ValueError for the first file that is missing or damaged."""
    if saved_ranks(actor) is None:
        config = actor / "fsdp_config.json"
        raise FileNotFoundError(f"{config}: no such file; only actors of the strategies fsdp and fsdp2 convert")
    if (problem := actor_problem(actor, ("model",))) is not None:
        raise (FileNotFoundError if "no such file" in problem else ValueError)(problem)


def _merge(actor: Path, target: Path) -> None:
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    class Merger(FSDPModelMerger):
        """verl's, with the adapter in the weights, and only for weights that are all the model's."""

        def _load_and_merge_state_dicts(self, world_size, total_shards, mesh_shape, mesh_dim_names):
            if adapter_names(self._load_rank_zero_state_dict(world_size)):
                return with_adapter(actor, world_size, total_shards)
            return super()._load_and_merge_state_dicts(world_size, total_shards, mesh_shape, mesh_dim_names)

        def save_hf_model_and_tokenizer(self, state_dict):
            _check_names(state_dict, self.get_transformers_auto_model_class(), self.model_config, actor)
            super().save_hf_model_and_tokenizer(state_dict)

    for shard in sorted(actor.glob("model_world_size_*_rank_*.pt")):
        load_shard(shard, mmap=True)  # verl's merger would run whatever code is in it
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(actor),
        target_dir=str(target),
        hf_model_config_path=str(actor / "huggingface"),
    )
    Merger(config).merge_and_save()


def _check_names(weights: dict, model_class, model_config, actor: Path) -> None:
    """Refuses weights that are not those of the model: transformers writes what it is given and leaves out the rest.

    Raises:
        ValueError: naming the first weight that the model lacks, or that is missing.
    """
    import torch

    with torch.device("meta"):
        model = model_class.from_config(model_config)
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    given = {name: tuple(weight.shape) for name, weight in weights.items()}
    tied = dict(model.all_tied_weights_keys) if model_config.get_text_config().tie_word_embeddings else {}
    for name, other in tied.items():  # an adapter of the output layer; transformers would write one of the two
        if name in weights and other in weights and not torch.equal(weights[name], weights[other]):
            raise ValueError(
                f"{actor}: {name} and {other} differ, as of an adapter on one of them, and the model of "
                f"{actor / 'huggingface/config.json'} has them as one (tie_word_embeddings)"
            )
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name) and not (name in tied and name not in given):
            raise ValueError(
                f"{actor}: the weight {name} is {given.get(name, 'absent')} in the shards and "
                f"{wanted.get(name, 'absent')} in the model of {actor / 'huggingface/config.json'}"
            )
