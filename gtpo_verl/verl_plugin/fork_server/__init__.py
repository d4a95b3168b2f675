"""Processes of a run that are forked from one that has imported everything, instead of importing it all anew.

A run is a dozen Python processes, most of which import torch, transformers, verl and vLLM: ten seconds of a core each,
one process after another. `server` imports them once; `ray_worker` and `vllm` have Ray's workers and vLLM's engine
forked from it. Only where the run starts a Ray of its own on a machine without an accelerator: a fork would inherit a
CUDA context that it cannot use.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.verl_plugin import cpu
from gtpo_verl.verl_plugin.fork_server.client import ADDRESS, fork

__all__ = ["ADDRESS", "fork", "start", "start_server"]


def start(config: DictConfig, folder: str, log: str) -> None:
    """Starts the server, which imports while this process goes on, and has Ray's workers forked from it. Call it in the
    driver, once the environment of the run is set and before Ray starts. Does nothing for a run that joins a cluster.

    Args:
        folder: of the run's temporary files; the server's socket lies there.
        log: file for what libraries say while they are imported.
    """
    if not cpu.enabled() or OmegaConf.select(config, "ray_kwargs.ray_init.address") != "local":
        return
    from gtpo_verl.verl_plugin.fork_server import ray_worker

    start_server(folder, log, f"{__name__}.preload", ray_worker.environment_of_all())
    ray_worker.install()


def start_server(folder: str, log: str, module: str, environment: Mapping[str, str]) -> subprocess.Popen:
    """Starts a server that imports `module`, and makes it that of this process and of those it starts.

    Args:
        environment: variables that all forks are to have had when `module` was imported.
    """
    address = os.path.join(folder, "forks")
    with socket.socket(socket.AF_UNIX) as listener, open(log, "ab") as output:
        listener.bind(address)
        listener.listen(128)
        server = subprocess.Popen(
            [sys.executable, "-m", f"{__name__}.server", str(listener.fileno()), module, str(os.getpid())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    os.environ[ADDRESS] = address
    return server
