"""The actor's GPU memory, kept from step to step.

Whenever weights go to vLLM, verl has PyTorch give all memory that it does not use back to the driver, for vLLM to wake
up in, and takes it again in the next pass, piece by piece. Where vLLM never sleeps
(`actor_rollout_ref.rollout.free_cache_engine=false`), nobody needs it meanwhile.
"""

import os
from typing import Any

KEEP = "GTPO_VERL_KEEP_GPU_MEMORY"  # environment variable; "1" keeps it


def install_in_workers() -> None:
    """Makes verl keep it in this process, an actor's, where the environment says so. Safe to call twice.

    The allocator's segments do not expand then, as verl has it for the time of a transfer: the buffer that weights
    travel in comes from memory that was kept, and vLLM's process cannot open one in a segment that expands.
    """
    if os.environ.get(KEEP) != "1":
        return
    from verl.utils.device import set_expandable_segments
    from verl.workers import engine_workers
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer

    set_expandable_segments(False)
    engine_workers.set_expandable_segments = lambda enable: None
    modules: list[Any] = [engine_workers, bucketed_weight_transfer]
    for module in modules:
        if not isinstance(module.get_torch_device(), _Keeping):
            module.get_torch_device = _keeping(module.get_torch_device)


def _keeping(get_torch_device: Any) -> Any:
    return lambda: _Keeping(get_torch_device())


class _Keeping:
    """torch's module of a device (`torch.cuda`), whose memory is not given back."""

    def __init__(self, device: Any):
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def empty_cache(self) -> None:
        pass
