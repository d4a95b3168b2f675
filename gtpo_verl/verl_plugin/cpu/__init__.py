"""What verl and vLLM need on a machine without an accelerator. Nothing here acts unless VERL_PLATFORM=cpu."""

import os

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
