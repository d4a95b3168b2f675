"""Which Ray a job uses."""

import os
from contextlib import suppress

from omegaconf import DictConfig, OmegaConf


def cluster_address(config: DictConfig) -> str | None:
    """Address of the Ray cluster that the job would join; None where there is none and it starts a Ray of its own.

    As `ray.init` has it: `ray_kwargs.ray_init.address`, else RAY_ADDRESS, else the one that `ray start` last started on
    this machine. A Ray that another job has for itself is none.
    """
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")
    if not address:
        from ray._private.services import find_bootstrap_address

        address = None
        with suppress(PermissionError):  # Ray's folder in /tmp is another user's, and so is what it started
            address = find_bootstrap_address(OmegaConf.select(config, "ray_kwargs.ray_init._temp_dir"))
    return None if address == "local" else address
