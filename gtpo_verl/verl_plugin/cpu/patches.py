"""Patches to verl 0.9.1 and torch 2.13 that CPU needs. Each names what it mends.

tests/verl_plugin/cpu/test_patches.py fails for each one that is no longer needed.

A fifth, to vLLM, lives in `vllm_patch` because it must be applied in vLLM's own processes.
"""

import os
from typing import Any

import wrapt


def install() -> None:
    """Applies each patch when its module is imported."""
    wrapt.register_post_import_hook(process_group_backend, "verl.utils.distributed")
    wrapt.register_post_import_hook(unpinned_offload, "torch.distributed.fsdp")
    wrapt.register_post_import_hook(sync_cpu_module_states, "torch.distributed.fsdp._init_utils")


def process_group_backend(distributed: Any) -> None:
    """verl/utils/distributed.py (`initialize_global_process_group_ray`) builds "cpu:gloo,cpu:gloo", a duplicate device
    type that torch refuses.

    Where the run is local, the ranks meet in a file of the run's folder: torch's TCPStore listens on every address of
    the machine, whatever it is told.
    """
    initialize = distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second=None, backend=None):
        folder, port = os.environ.get("GTPO_VERL_TMP"), os.environ.get("MASTER_PORT")
        if folder and port and os.environ.get("MASTER_ADDR") == "127.0.0.1":
            os.environ.setdefault("DIST_INIT_METHOD", f"file://{folder}/ranks:{port}")
        return initialize(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray


def unpinned_offload(fsdp: Any) -> None:
    """verl/workers/engine/fsdp/transformer_impl.py (`CPUOffloadPolicy`) pins the reference policy's parameters under
    FSDP2; pinned memory needs an accelerator."""
    initialize = fsdp.CPUOffloadPolicy.__init__

    def unpinned(self, pin_memory: bool = False) -> None:
        initialize(self, pin_memory=False)

    fsdp.CPUOffloadPolicy.__init__ = unpinned


def sync_cpu_module_states(init_utils: Any) -> None:
    """verl/workers/engine/fsdp/transformer_impl.py (`sync_module_states`) asks FSDP1 to broadcast the module's states;
    torch/distributed/fsdp/_init_utils.py (`_check_module_states_for_sync_module_states`) refuses that for CPU
    parameters, although gloo broadcasts them."""
    init_utils._check_module_states_for_sync_module_states = lambda module: None
