"""What the processes of a run import, imported here."""

import os
import sys
import traceback
from types import SimpleNamespace
from typing import Any

# As vLLM has it when it is imported (vllm/env_override.py), which is too late here, where torch is imported before it:
# torch asks NVML, not CUDA, whether there is a GPU, and compiles in the process that asks for it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import ray.actor

# Ray's library seeds its generator of ids at the first use. Used before the fork, it would give all forks the same ids:
# two workers that start together then take one object for the other's, one dies, and the driver waits for ever. All
# that uses it here is a class that is made an actor.
_ids: Any = ray.actor.ActorClassID
ray.actor.ActorClassID = SimpleNamespace(from_random=lambda: _ids(os.urandom(_ids.size())))  # type: ignore[misc, assignment]

import torch.cuda  # noqa: E402

_HERE = os.getpid()


def _say_who() -> None:
    """Where CUDA is initialised in this process, after which the server serves no forks (`cuda.unfit`)."""
    if os.getpid() == _HERE:
        print("fork server: CUDA is initialised here:", file=sys.stderr)
        traceback.print_stack()


torch.cuda._lazy_call(_say_who)

import verl.utils.device  # noqa: E402

# verl/trainer/constants_ppo.py asks CUDA for the GPU's generation when it is imported, for variables that the driver
# alone sets.
_get_device_capability = verl.utils.device.get_device_capability
verl.utils.device.get_device_capability = lambda *_: (None, None)
try:
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV
finally:
    verl.utils.device.get_device_capability = _get_device_capability

from gtpo_verl.verl_plugin import cpu  # noqa: E402
from gtpo_verl.verl_plugin.fork_server import cuda  # noqa: E402

_MODULES = (
    "ray._private.workers.default_worker",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "vllm.model_executor.models.qwen2",
    "gtpo_verl.verl_plugin.rollout.agent_loop",
    "gtpo_verl.verl_plugin.trainer",
)
_ON_CPU = ("verl.workers.rollout.vllm_rollout.vllm_async_server", "vllm.v1.worker.cpu_worker")
# What verl's server imports, but for the models that it patches: those of Qwen3-Next ask CUDA for the GPU's name when
# they are imported (vllm/model_executor/layers/fla). With the backend of attention that vLLM takes on most GPUs;
# FlashInfer's would initialise CUDA.
_ON_GPU = (
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.model_executor.models.llama",
)

# vLLM reads some of these when it is imported; in a worker Ray has set them before.
for _name, _value in PPO_RAY_RUNTIME_ENV["env_vars"].items():
    os.environ.setdefault(_name, _value)
cuda.import_all((*_MODULES, *(_ON_CPU if cpu.enabled() else _ON_GPU)))
