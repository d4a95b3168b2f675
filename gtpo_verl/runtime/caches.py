"""Caches that libraries would write to the home folder stay in the project folder."""

import os
from pathlib import Path

# The hub's models stay where the user keeps them (HF_HOME).
_FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "HF_DATASETS_CACHE": "datasets",
    "HF_MODULES_CACHE": "hf-modules",
    "TRITON_CACHE_DIR": "triton",
    "MPLCONFIGDIR": "matplotlib",  # reasoning-gym imports matplotlib too
}


def cache_variables() -> dict[str, str]:
    """Environment variables that keep caches in `.cache/` of the working directory, but for those the user has set.

    Libraries read them when they are imported.
    """
    folders = {name: str(Path(".cache", folder).absolute()) for name, folder in _FOLDERS.items()}
    return {name: folder for name, folder in folders.items() if name not in os.environ}
