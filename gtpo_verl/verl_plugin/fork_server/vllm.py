"""vLLM's engine and worker processes, forked from the run's fork server.

vllm/platforms/cpu.py (`check_and_update_config`) asks for the start method "spawn", by which each of them imports vLLM
anew. They get Python's "forkserver" instead, whose children are as new; their server is the run's.
"""

import multiprocessing
import os
from multiprocessing import forkserver, resource_tracker
from types import SimpleNamespace
from typing import Any

from gtpo_verl.verl_plugin.fork_server.client import fork
from gtpo_verl.verl_plugin.fork_server.server import MULTIPROCESSING


def install() -> None:
    """In a process of vLLM's, for those that it starts."""
    import vllm.utils.system_utils

    forkserver.connect_to_new_process = connect_to_new_process  # type: ignore[assignment]
    contexts: Any = SimpleNamespace(get_context=lambda method: multiprocessing.get_context("forkserver"))
    vllm.utils.system_utils.multiprocessing = contexts


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
