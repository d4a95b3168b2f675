"""vLLM's engine and worker processes, forked from the run's fork server.

vLLM asks for the start method "spawn", by which each of them imports vLLM anew: on a CPU always
(vllm/platforms/cpu.py, `check_and_update_config`), in a Ray actor such as verl's server everywhere
(vllm/utils/system_utils.py, `_maybe_force_spawn`). They get Python's "forkserver" instead, whose children are as new;
their server is the run's.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver, resource_tracker
from types import SimpleNamespace
from typing import Any

import wrapt

from gtpo_verl.verl_plugin.fork_server.client import fork
from gtpo_verl.verl_plugin.fork_server.server import MULTIPROCESSING


def install() -> None:
    """In a process of vLLM's, for those that it starts."""
    import vllm.utils.system_utils

    forkserver.connect_to_new_process = connect_to_new_process  # type: ignore[assignment]
    contexts: Any = SimpleNamespace(get_context=lambda method: multiprocessing.get_context("forkserver"))
    vllm.utils.system_utils.multiprocessing = contexts
    wrapt.register_post_import_hook(look_at_imported_models_here, "vllm.model_executor.models.registry")


def look_at_imported_models_here(registry: Any) -> None:
    """vllm/model_executor/models/registry.py (`inspect_model_cls`) starts a Python that imports all of vLLM to look at
    a model's class, lest CUDA be initialised here. Where the server has imported the class, CUDA was not."""
    look = registry._LazyRegisteredModel.inspect_model_cls

    def inspect_model_cls(self: Any) -> Any:
        if self.module_name in sys.modules:
            return registry._ModelInfo.from_model_cls(self.load_model_cls())
        return look(self)

    registry._LazyRegisteredModel.inspect_model_cls = inspect_model_cls


def connect_to_new_process(descriptors: list[int]) -> tuple[int, int]:
    """multiprocessing/forkserver.py's function of this name.

    Returns:
        Descriptors to read the process id and the exit code from, and to write the pickled process to.
    """
    data, ours = os.pipe()
    try:
        tracker: Any = resource_tracker.getfd()  # type: ignore[attr-defined]
        return fork([MULTIPROCESSING], [0, 1, 2, data, tracker, *descriptors]).detach(), ours
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(data)
