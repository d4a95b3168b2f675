"""Which GPUs there are, and how engines are spread over them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from omegaconf import OmegaConf


@dataclass(frozen=True)
class Devices:
    """The machine's share of an evaluation.

    Attributes:
        engines: of each engine the GPUs that it may see, as ``CUDA_VISIBLE_DEVICES`` names them; one engine without
            any on a machine without GPUs.
    """

    engines: Sequence[Sequence[str]]

    @property
    def on_cpu(self) -> bool:
        return not self.engines[0]

    @property
    def tensor_parallel(self) -> int:
        return max(1, len(self.engines[0]))

    def environment(self, engine: int) -> Mapping[str, str]:
        """Variables of an engine's process; what the user's shell exports comes first."""
        # One process: nothing but this engine is to answer, and no orphan is left when it is killed.
        fixed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        default = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
        if self.on_cpu:
            scale = OmegaConf.load(str(files("gtpo_verl.configs").joinpath("scale/cpu.yaml")))
            default |= {name: str(value) for name, value in scale.gtpo_verl.env.items()}
            default["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
        else:
            fixed["CUDA_VISIBLE_DEVICES"] = ",".join(self.engines[engine])
        return {**default, **os.environ, **fixed}


def choose(gpus: int | None, tensor_parallel: int, visible: Sequence[str] | None = None) -> Devices:
    """Spreads engines of `tensor_parallel` GPUs each over `gpus` of them.

    Args:
        gpus: None for all that this process sees.
        visible: names of these; None: asks torch.

    Raises:
        ValueError: they are not there, or do not divide.
    """
    if visible is None:
        visible = visible_gpus()
    if tensor_parallel < 1:
        raise ValueError(f"--tensor-parallel {tensor_parallel}: at least 1")
    if gpus is not None and not 0 <= gpus <= len(visible):
        raise ValueError(f"--gpus {gpus}: {len(visible)} are visible here")
    if gpus == 0 and visible:  # a PyTorch that sees them comes with the vLLM that runs on nothing else
        raise ValueError(f"--gpus 0: this vLLM runs on GPUs alone, of which {len(visible)} are visible here")
    count = len(visible) if gpus is None else gpus
    if count == 0:
        if tensor_parallel > 1:
            raise ValueError(f"--tensor-parallel {tensor_parallel}: no GPU is visible here")
        return Devices([[]])
    if gpus is None:
        count -= count % tensor_parallel
    if count == 0 or count % tensor_parallel:
        whole = f"--gpus {gpus} is no multiple of it" if gpus else f"{len(visible)} GPUs are visible here"
        raise ValueError(f"--tensor-parallel {tensor_parallel}: {whole}")
    return Devices([visible[start : start + tensor_parallel] for start in range(0, count, tensor_parallel)])


def visible_gpus() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` names, or would."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(index) for index in range(count)]
