"""What the processes of a run import, imported here."""

import importlib
import os
from types import SimpleNamespace
from typing import Any

import ray.actor

# Ray's library seeds its generator of ids at the first use. Used before the fork, it would give all forks the same ids:
# two workers that start together then take one object for the other's, one dies, and the driver waits for ever. All
# that uses it here is a class that is made an actor.
_ids: Any = ray.actor.ActorClassID
ray.actor.ActorClassID = SimpleNamespace(from_random=lambda: _ids(os.urandom(_ids.size())))  # type: ignore[misc, assignment]

from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV  # noqa: E402

_MODULES = (
    "ray._private.workers.default_worker",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen2",
    "gtpo_verl.verl_plugin.rollout.agent_loop",
    "gtpo_verl.verl_plugin.trainer",
)

# vLLM reads some of these when it is imported; in a worker Ray has set them before.
for _name, _value in PPO_RAY_RUNTIME_ENV["env_vars"].items():
    os.environ.setdefault(_name, _value)
for _name in _MODULES:
    importlib.import_module(_name)
