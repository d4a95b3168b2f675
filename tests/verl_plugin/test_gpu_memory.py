"""What verl gives back to the GPU's driver while weights travel, and what it keeps where it is told to."""

import os
import subprocess
import sys
import textwrap

import pytest

# A transfer's beginning and end in an actor, as ActorRolloutRefWorker.update_weights and the buckets' sender have them.
PROGRAM = """
    from verl.workers import engine_workers
    from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer
    from gtpo_verl.verl_plugin import gpu_memory

    emptied, segments = [], []
    real = engine_workers.get_torch_device()
    real.empty_cache = lambda: emptied.append("cache")
    assert engine_workers.get_torch_device() is real
    engine_workers.set_expandable_segments = segments.append
    gpu_memory.install_in_workers()
    gpu_memory.install_in_workers()
    for module in (engine_workers, bucketed_weight_transfer):
        module.get_torch_device().empty_cache()
        assert module.get_torch_device().device_count == real.device_count
    engine_workers.set_expandable_segments(True)
    print("said", emptied, segments)
"""


@pytest.mark.parametrize(
    ("value", "said"), [(None, "['cache', 'cache'] [True]"), ("0", "['cache', 'cache'] [True]"), ("1", "[] []")]
)
def test_memory_is_kept_where_the_environment_says_so(value: str | None, said: str) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "GTPO_VERL_KEEP_GPU_MEMORY"}
    environment["VERL_PLATFORM"] = "cpu"
    if value is not None:
        environment["GTPO_VERL_KEEP_GPU_MEMORY"] = value
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, encoding="utf-8")
    assert f"said {said}" in done.stdout, done.stderr[-2000:]
