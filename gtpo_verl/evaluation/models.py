"""What is evaluated: a Hugging Face folder, a hub's model, or a checkpoint of a run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.run_folder.checkpoints import CheckpointFolder
from gtpo_verl.run_folder.conversion import check_actor, convert, find_actor
from gtpo_verl.tasks.cache import build_once

_LABELLED = re.compile(r"(\w[\w.+@-]*)=(.+)")
_STEP = re.compile(r"(.+)@(\d+)")
# Of a model's folder, what decides what it says; of a checkpoint's, not the optimizer.
_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".jinja", ".txt", ".pt")
_NOT_THE_MODEL = ("optim_", "extra_state_", "fsdp_config.json")
_WEIGHTS = ("*.safetensors", "*.bin")
_HUB_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.py")
_WHOLE_BYTES = 16 << 20
_PROBES, _PROBE_BYTES = 64, 1 << 16


@dataclass(frozen=True)
class Model:
    """A model at hand.

    Attributes:
        label: what it is called in tables and folders.
        folder: configuration and tokenizer in Hugging Face's layout; the weights too, but for a checkpoint.
        checkpoint: the FSDP actor that the weights come from; None for a Hugging Face model.
        config: of the run that it comes from; None without.
    """

    label: str
    folder: Path
    checkpoint: Path | None = None
    config: DictConfig | None = None

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits of the files that decide what the model says. Of files above 16 MiB their size and 64 pieces
        of 64 KiB are read: a step of training changes them all, and 60 GB would take minutes."""
        folder = self.checkpoint or self.folder
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SUFFIXES and not path.name.startswith(_NOT_THE_MODEL) and path.is_file():
                digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
                _add_content(digest, path)
        return digest.hexdigest()

    def weights(self, cache_dir: Path) -> Path:
        """A folder that vLLM can load: a checkpoint is converted, once, into ``cache_dir``.

        Raises:
            OSError, ValueError: as `gtpo_verl.run_folder.conversion.convert`.
        """
        if self.checkpoint is None:
            return self.folder
        checkpoint = self.checkpoint

        def build(folder: Path) -> None:
            convert(checkpoint, folder / "model")

        return build_once(cache_dir, f"converted-{self.fingerprint[:16]}", build) / "model"

    def setting(self, key: str) -> Any:
        """A key of the run's configuration; None without one."""
        return None if self.config is None else OmegaConf.select(self.config, key)


def _add_content(digest: Any, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            digest.update(file.read())
            return
        for index in range(_PROBES):
            file.seek((size - _PROBE_BYTES) * index // (_PROBES - 1))
            digest.update(file.read(_PROBE_BYTES))


def find(names: Sequence[str]) -> list[Model]:
    """The models of a command line, each with a label of its own.

    Args:
        names: each a folder of a Hugging Face model, a run's folder or a checkpoint of it, ``RUN@STEP``, or the name of
            a model on the hub, which is downloaded where the hub's library decides; ``LABEL=`` may stand before it.

    Raises:
        FileNotFoundError, ValueError: a model is not there, or its checkpoint not whole; names it.
    """
    found = [_find(name) for name in names]
    for index, model in enumerate(found):
        if any(other.label == model.label for other in found[:index]):
            raise ValueError(f"two models are called {model.label}; name one, as in other={_unlabelled(names[index])}")
    return found


def _unlabelled(name: str) -> str:
    labelled = _LABELLED.fullmatch(name)
    return labelled[2] if labelled and not Path(name).exists() else name


def _find(name: str) -> Model:
    labelled = _LABELLED.fullmatch(name)
    if labelled and not Path(name).exists():
        return replace(_find(labelled[2]), label=labelled[1])
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        folder = Path(os.path.abspath(path))  # without "..", whose name would lead out of --out
        if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
            raise FileNotFoundError(f"{name}: no weights in that folder ({' or '.join(_WEIGHTS)})")
        return Model(folder.name, folder)
    if path.is_dir():
        return _of_run(find_actor(path))
    stepped = _STEP.fullmatch(name)
    if stepped and Path(stepped[1]).expanduser().is_dir():
        return _of_run(_of_step(Path(stepped[1]).expanduser(), int(stepped[2])))
    if name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise FileNotFoundError(f"{name}: no such folder")
    return _from_hub(name)


def _of_step(run: Path, step: int) -> Path:
    for folder in (run / "checkpoints", run):
        checkpoints = CheckpointFolder(folder)
        if (actor := checkpoints.located(step) / "actor").is_dir():
            check_actor(actor)  # names what is damaged
        if step in checkpoints.whole():
            return actor
    steps = [str(there) for folder in (run / "checkpoints", run) for there in CheckpointFolder(folder).whole()]
    raise FileNotFoundError(f"{run}@{step}: no whole checkpoint of that step; there are {', '.join(steps) or 'none'}")


def _of_run(actor: Path) -> Model:
    check_actor(actor)
    actor = Path(os.path.abspath(actor))
    folder = actor.parent.parent
    run = folder.parent if folder.name == "checkpoints" else folder
    config = run / "config.yaml"
    loaded: Any = None
    if config.exists():
        try:
            loaded = OmegaConf.load(config)
        except Exception as error:  # of YAML or OmegaConf
            raise ValueError(f"{config}: not readable: {error}") from error
        if not isinstance(loaded, DictConfig):
            raise ValueError(f"{config}: no configuration")
    label = f"{run.name}@{actor.parent.name.removeprefix('global_step_')}"
    return Model(label, actor / "huggingface", actor, loaded)


def _from_hub(name: str) -> Model:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*_HUB_FILES, _WEIGHTS[0]]))
        if not any(folder.glob(_WEIGHTS[0])):
            folder = Path(snapshot_download(name, allow_patterns=[*_HUB_FILES, _WEIGHTS[1]]))
    except Exception as error:  # the library raises its own, httpx's and the operating system's errors
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FileNotFoundError(
            f"{name}: no such folder, and not to be had from the hub ({type(error).__name__}: {first})"
        ) from error
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{name}: the hub's repository has no config.json, so it is no Hugging Face model")
    return Model(name.replace("/", "--"), folder)
