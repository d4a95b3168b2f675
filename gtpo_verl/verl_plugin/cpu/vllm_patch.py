"""Entry point of group `vllm.general_plugins`: vLLM calls `apply` in each of its processes."""

import os
import random
from typing import Any

import wrapt

# Below Linux's ephemeral ports (32768 and up), which outgoing connections take without asking.
_PORTS = range(10_000, 30_000)
_CHOSEN = "GTPO_VERL_CHOSEN_VLLM_PORT"


def apply() -> None:
    """What vLLM needs in a run: its shared memory named, its processes forked, and what the platform `cpu` asks for.
    Does nothing to any other vLLM."""
    from gtpo_verl.runtime.shared_memory import name_after_run
    from gtpo_verl.verl_plugin import cpu
    from gtpo_verl.verl_plugin.fork_server.client import serves

    name_after_run()
    if serves():
        from gtpo_verl.verl_plugin.fork_server import vllm

        vllm.install()
    if not cpu.enabled():
        return
    keep_linear_layers_reloadable()
    choose_port()
    meet_in_a_file()
    look_at_models_here()


def keep_linear_layers_reloadable() -> None:
    """Turns oneDNN off.

    With it, vllm/model_executor/layers/utils.py (`dispatch_cpu_unquantized_gemm`) packs every linear layer after
    loading and replaces `layer.weight` by an empty parameter without `weight_loader`; verl's next weight sync then
    fails. Without it vLLM multiplies by the live weight, which can be loaded again any number of times.
    """
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False


def choose_port() -> None:
    """Gives this process a VLLM_PORT of its own, unless the user chose one.

    vllm/v1/executor/multiproc_executor.py asks the kernel for a free, ephemeral port and binds it only when its worker
    has started, many seconds later on a slow machine; any connection of Ray's may have taken it by then.
    """
    inherited = os.environ.get(_CHOSEN)
    if os.environ.get("VLLM_PORT") == inherited:
        os.environ["VLLM_PORT"] = os.environ[_CHOSEN] = str(random.SystemRandom().choice(_PORTS))


def meet_in_a_file() -> None:
    """Has the workers of a run meet in a file of its folder: torch's TCPStore, which vLLM starts on loopback
    (vllm/v1/executor/multiproc_executor.py), listens on every address of the machine."""
    folder = os.environ.get("GTPO_VERL_TMP")
    if folder is None:
        return

    def patch(executor: Any) -> None:
        # vllm/v1/worker/cpu_worker.py takes what follows the last colon for a name of shared memory.
        executor.get_distributed_init_method = lambda _ip, port: f"file://{folder}/vllm:{port}"

    for module in ("multiproc_executor", "uniproc_executor"):
        wrapt.register_post_import_hook(patch, f"vllm.v1.executor.{module}")


def look_at_models_here() -> None:
    """Lets this process look at a model's class itself.

    vllm/model_executor/models/registry.py (`inspect_model_cls`) starts a Python that imports all of vLLM to do so, lest
    CUDA be initialized here.
    """

    def patch(registry: Any) -> None:
        registry._run_in_subprocess = lambda look: look()

    wrapt.register_post_import_hook(patch, "vllm.model_executor.models.registry")
