"""CUDA belongs to the process that initialised it: a fork finds it broken. So what the fork server imports must not."""

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# Environment variable: modules that the server leaves out, separated by commas, as they were seen to initialise CUDA.
LEFT_OUT = "GTPO_VERL_FORK_SERVER_LEAVES_OUT"

_PROBE_SECONDS = 30
_MOST_USERS = 1000
_ERROR_NOT_INITIALIZED = 3  # cuda.h; what `cuInit` says in a fork of a process that has called it


class InitialisedError(RuntimeError):
    """Importing `module` has initialised CUDA in this process."""

    def __init__(self, module: str):
        super().__init__(f"{module} initialises CUDA when it is imported")
        self.module = module


def import_all(modules: Iterable[str]) -> None:
    """Imports them in turn, but for those that are left out.

    Raises:
        InitialisedError: one initialises CUDA. This process is of no use then.
        RuntimeError: CUDA was initialised before, by none of them.
    """
    if is_initialised():
        raise RuntimeError("CUDA is initialised before any module is imported that could be left out")
    left_out = left_out_modules()
    for module in modules:
        if module not in left_out:
            importlib.import_module(module)
            if is_initialised():
                raise InitialisedError(module)


def left_out_modules() -> list[str]:
    return [name for name in os.environ.get(LEFT_OUT, "").split(",") if name]


def is_initialised() -> bool:
    """Whether torch says so. Of those who call the driver by themselves `unfit` knows, which takes longer."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def open_devices() -> set[str]:
    """NVIDIA's devices that this process has open."""
    devices = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            devices.add(os.readlink(descriptor))
    return {device for device in devices if device.startswith("/dev/nvidia")}


def unfit() -> str | None:
    """Why forks of this process would not do; None where they do.

    CUDA is for the process that initialised it: a fork finds it broken, whether torch knows of it or not. Nothing here
    initialises it in this process; a fork that ends at once tries.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None:
        return None
    if cuda.is_initialized():
        return "what it imports has initialised CUDA"
    driver = _is_loaded("libcuda.so")  # else nobody can have called it
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(_PROBE_SECONDS)
            broken = cuda._is_in_bad_fork()
            if driver and not broken:
                broken = ctypes.CDLL("libcuda.so.1").cuInit(0) == _ERROR_NOT_INITIALIZED
            code = 2 if broken else 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 2:
        return "what it imports has called CUDA, which a fork cannot use then"
    return None if code == 0 else f"a fork that tried CUDA ended with {code}"


def close_nvml() -> None:
    """Closes the library that torch asks for the number of GPUs and leaves open; whoever needs it opens it again."""
    if not _is_loaded("libnvidia-ml.so"):
        return
    shutdown = ctypes.CDLL("libnvidia-ml.so.1").nvmlShutdown
    for _ in range(_MOST_USERS):  # it counts who has opened it
        if shutdown() != 0:
            return


def _is_loaded(library: str) -> bool:
    return library.encode() in Path("/proc/self/maps").read_bytes()
