"""What verl and vLLM need on a machine without an accelerator. Nothing here acts unless VERL_PLATFORM=cpu."""

import os
from typing import Any

_installed = False


def enabled() -> bool:
    """True where the user (or the recipe's `scale=cpu`) chose verl's platform `cpu`."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def install() -> None:
    """Registers the platform, the engines and the named patches (`cpu.patches`). Does so once."""
    global _installed
    if _installed or not enabled():
        return
    _installed = True
    from gtpo_verl.verl_plugin.cpu import engine, patches, platform, vllm_distribution

    platform.register()
    vllm_distribution.install()
    engine.install()
    patches.install()


def start_fork_server(config: Any, folder: str, log: str) -> None:
    """Has the processes of a run that starts a Ray of its own forked (`cpu.fork_server`)."""
    if enabled():
        from gtpo_verl.verl_plugin.cpu import fork_server

        fork_server.start(config, folder, log)
