"""Whose classes a run's rollouts are made of."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin import cpu, rollout
cpu.install()
from verl.experimental.reward_loop import reward_loop
from verl.workers.rollout.replica import RolloutReplicaRegistry

def classes(*overrides):
    config = compose_config(overrides)
    rollout.install(config)
    manager = config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
    return manager, RolloutReplicaRegistry.get("vllm").__name__, reward_loop.RewardLoopWorker.__name__

verls = "vLLMReplica", "RewardLoopWorker"
a_users_own = "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=mine.Manager"
assert classes(a_users_own) == ("mine.Manager", *verls)
assert classes("actor_rollout_ref.rollout.name=sglang") == (None, *verls)
assert classes("actor_rollout_ref.rollout.disaggregation.enabled=true") == (None, *verls)
manager, *others = classes()
assert manager == "gtpo_verl.verl_plugin.rollout.agent_loop.BatchingAgentLoopManager"
assert others == ["BatchingReplica", "BatchingRewardLoopWorker"]
"""


@pytest.mark.slow
def test_ours_unless_the_user_or_the_engine_has_another_way() -> None:
    """In a process of its own, where the registries are verl's."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=300, env={**os.environ, "VERL_PLATFORM": "cpu"})
