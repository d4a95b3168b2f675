"""The actor of a checkpoint as a Hugging Face model, merged from its FSDP shards by verl's own `verl.model_merger`."""

import contextlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

from gtpo_verl.run_folder.checkpoints import TRACKER, CheckpointFolder, saved_ranks


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
        checkpoints = CheckpointFolder(folder)
        step = checkpoints.resumable()
        if step:
            return checkpoints.located(step) / "actor"
    raise FileNotFoundError(
        f"{source}: no checkpoint: neither `actor` (a checkpoint), {TRACKER} (the folder of a run's checkpoints), "
        f"nor checkpoints/{TRACKER} (a run's folder)"
    )


def check_actor(actor: Path) -> None:
    """Raises FileNotFoundError or ValueError for the first file that is missing or damaged."""
    world_size = saved_ranks(actor)
    if world_size is None:
        config = actor / "fsdp_config.json"
        raise FileNotFoundError(f"{config}: no such file; only actors of the strategies fsdp and fsdp2 convert")
    for rank in range(world_size):
        shard = actor / f"model_world_size_{world_size}_rank_{rank}.pt"
        if not shard.exists():
            raise FileNotFoundError(f"{shard}: no such file; the actor was saved by {world_size} ranks")
        if not zipfile.is_zipfile(shard):
            raise ValueError(f"{shard}: not whole, as if its writing had been cut off")
    for name in ("config.json", "tokenizer_config.json"):
        if not (actor / "huggingface" / name).exists():
            raise FileNotFoundError(f"{actor / 'huggingface' / name}: no such file")


def _merge(actor: Path, target: Path) -> None:
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(actor),
        target_dir=str(target),
        hf_model_config_path=str(actor / "huggingface"),
    )
    FSDPModelMerger(config).merge_and_save()
