"""Processes of a run that are forked from one that has imported everything, instead of importing it all anew.

A run is a dozen Python processes, most of which import torch, transformers, verl and vLLM: ten seconds of a core each,
one process after another. `server` imports them once; `ray_worker` and `vllm` have Ray's workers and vLLM's engine
forked from it. Only where the run starts a Ray of its own: the server belongs to this machine and this run. A fork
cannot use a CUDA that was initialised before it, so the server serves none where that has happened (`cuda.unfit`),
and every process starts as it would without it.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gtpo_verl.verl_plugin.fork_server.client import ADDRESS, fork

__all__ = ["ADDRESS", "fork", "start", "start_server"]

# For the server to have one thread when it forks: pyarrow's allocator cleans up without, as forks of it do in any case.
_QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
_PATIENCE_SECONDS = "180"  # Ray's own is 60


def start(config: DictConfig, folder: str, log: str) -> None:
    """Starts the server, which imports while this process goes on, and has Ray's workers forked from it. Call it in the
    driver, once the environment of the run is set and before Ray starts. Does nothing for a run that `can_fork` not.

    Args:
        folder: of the run's temporary files; the server's socket lies there.
        log: file for what libraries say while they are imported.
    """
    environment: dict[str, str] = {}
    forks = False
    with suppress(OmegaConfBaseException):  # `prepare` names the key
        forks = can_fork(config)
        variables = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
        environment = {str(name): str(value) for name, value in variables.items()}
    if not forks:
        return
    from gtpo_verl.verl_plugin.fork_server import ray_worker

    # Libraries start as many threads when they are loaded; Ray says the same to its workers, but later.
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    environment = ray_worker.with_variables({**os.environ, **threads}, environment)
    environment |= {**ray_worker.environment_of_all(), **_QUIET}
    start_server(folder, log, f"{__name__}.preload", environment)
    # From the environment of the driver: Ray ends a worker that takes longer to report, and forks wait for all imports.
    os.environ.setdefault("RAY_worker_register_timeout_seconds", _PATIENCE_SECONDS)
    ray_worker.install()


def can_fork(config: DictConfig) -> bool:
    """Whether the run starts a Ray of its own, is to be forked (`gtpo_verl.fork_server`), has one GPU at most (more
    were not tried), and needs nothing that is settled when Python starts: verl's `full_determinism` chooses how texts
    are hashed."""
    from gtpo_verl.configuration.ray_cluster import cluster_address
    from gtpo_verl.configuration.settings import RecipeSettings

    rollouts = ("actor_rollout_ref.rollout", "reward.reward_model.rollout")
    one_device = OmegaConf.select(config, "trainer.device") == "cpu" or config.trainer.n_gpus_per_node == 1
    return (
        RecipeSettings.from_config(config).fork_server
        and one_device
        and not any(OmegaConf.select(config, f"{rollout}.full_determinism") for rollout in rollouts)
        and cluster_address(config) is None
    )


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
