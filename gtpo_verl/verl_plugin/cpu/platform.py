"""verl's platform `cpu`: the surface of an accelerator, answered by a CPU."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class CpuDeviceId(str):
    """`get_device_id()` of this platform: the device `cpu` that formats as index `0`.

    verl passes the id where torch wants a device (`tensor.to(get_device_id())`) and also writes
    f"{get_device_name()}:{get_device_id()}". The integer 0 would mean accelerator 0 in the first place, the
    plain string "cpu" would give the invalid "cpu:cpu" in the second.
    """

    def __new__(cls) -> "CpuDeviceId":
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return format("0", spec)

    def __int__(self) -> int:
        return 0

    def __reduce__(self):
        return CpuDeviceId, ()


def _nothing(*_: Any, **__: Any) -> None:
    """Accelerator housekeeping that has no meaning on a CPU."""


def _zero(*_: Any, **__: Any) -> int:
    """The CPU has no allocator of its own to count."""
    return 0


def _memory() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


# The part of `torch.cuda` that verl calls and `torch.cpu` lacks.
_DEVICE_MODULE = SimpleNamespace(
    __name__="gtpo_verl.cpu",
    is_available=lambda: True,
    is_initialized=lambda: True,
    device_count=lambda: 1,
    current_device=lambda: 0,
    get_device_name=lambda *_: "CPU",
    mem_get_info=lambda *_: _memory(),
    get_rng_state=lambda *_: torch.get_rng_state(),
    set_rng_state=lambda state, *_: torch.set_rng_state(state),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    current_stream=torch.cpu.current_stream,
    Stream=torch.cpu.Stream,
    stream=torch.cpu.stream,
    set_device=_nothing,
    synchronize=_nothing,
    empty_cache=_nothing,
    ipc_collect=_nothing,
    reset_peak_memory_stats=_nothing,
    reset_max_memory_allocated=_nothing,
    set_per_process_memory_fraction=_nothing,
    memory_allocated=_zero,
    memory_reserved=_zero,
    max_memory_allocated=_zero,
    max_memory_reserved=_zero,
)


class CpuPlatform(PlatformBase):
    """gloo for collectives, no device IPC, and a *declared* Ray resource `GPU`.

    verl counts the resources GPU and NPU only (verl/single_controller/ray/base.py, `_check_resource_available`), so the
    recipe declares one fake GPU a rank: `ray_kwargs.ray_init.num_gpus`.
    """

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE_MODULE  # type: ignore[assignment]  # verl only reads attributes of it

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never the result of verl's auto-detection: VERL_PLATFORM=cpu asks for it

    def current_device(self):
        return CpuDeviceId()

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # Not CUDA_VISIBLE_DEVICES: an empty one aborts ray.init(num_gpus=N).
        return "GTPO_VERL_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def cudart(self) -> Any:
        return None


def register() -> None:
    """Makes `VERL_PLATFORM=cpu` a platform that verl knows."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)
