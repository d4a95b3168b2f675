"""What the shell, the scheduler and the container bring along: proxies, devices, limits, full disks."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gtpo_verl.runtime import devices, disks, limits
from gtpo_verl.runtime.loopback import direct_loopback

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("name", [*PROXIES[:3], *(name.upper() for name in PROXIES[:3])])
def test_this_machine_is_reached_past_any_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from urllib.request import getproxies, proxy_bypass

    import httpx

    assert direct_loopback() == {}
    monkeypatch.setenv(name, "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "intern.example, 10.0.0.0/8")
    for key, value in direct_loopback().items():
        monkeypatch.setenv(key, value)
    for host in ("localhost", "127.0.0.1", "intern.example"):
        assert proxy_bypass(host), host
        mounts = httpx.Client()._mounts
        chosen = next((t for pattern, t in mounts.items() if pattern.matches(httpx.URL(f"http://{host}:8265"))), None)
        assert chosen is None, host
    assert not proxy_bypass("elsewhere.example")
    assert getproxies()


@pytest.mark.usefixtures("no_proxies")
def test_what_the_user_excepts_altogether_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "*")
    assert direct_loopback() == {}


def test_the_variables_of_all_accelerators_that_ray_knows() -> None:
    from ray._private.accelerators import get_all_accelerator_managers

    known = {manager.get_visible_accelerator_ids_env_var() for manager in get_all_accelerator_managers()}
    assert known - {None} <= set(devices.VARIABLES)


@pytest.mark.parametrize("value", ["", "NoDevFiles", "0", "2,3", "-1", "GPU-abc"])
def test_a_run_on_cpus_does_not_depend_on_visible_devices(value: str) -> None:
    """Ray would refuse to declare a rank's place where a scheduler shows no GPU."""
    program = """
import os
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.preparation import set_environment
from gtpo_verl.runtime.devices import VARIABLES
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
set_environment(compose_config(["scale=cpu"]))
assert not set(VARIABLES) & set(os.environ)
spec = ResourceAndLabelSpec(num_cpus=1, num_gpus=1, memory=1 << 30, object_store_memory=1 << 28)
spec.resolve(is_head=True, node_ip_address="127.0.0.1")
assert spec.num_gpus == 1
"""
    environment = {
        "CUDA_VISIBLE_DEVICES": value,
        "ROCR_VISIBLE_DEVICES": "0",
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_run_on_gpus_keeps_them() -> None:
    program = """
import os
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.preparation import set_environment
set_environment(compose_config(["scale=gpu", "model=dapo_math"]))
assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
"""
    environment = {"CUDA_VISIBLE_DEVICES": "2,3", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


GPUS = [(str(index), f"GPU-{index}abc-def") for index in range(8)]


@pytest.mark.parametrize(
    ("value", "places"),
    [
        (None, None),
        ("2,3", [2, 3]),
        ("3, 2", [3, 2]),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("GPU-5abc-def,GPU-6", [5, 6]),
        ("GPU-", []),
    ],
)
def test_which_gpus_cuda_would_show(value: str | None, places: list[int] | None) -> None:
    environment = {} if value is None else {devices.CUDA: value}
    assert devices.visible(environment, GPUS) == places


@pytest.mark.parametrize("value", ["0", ""])
def test_what_ray_refuses_everywhere_is_named(value: str) -> None:
    with pytest.raises(ValueError, match=rf"ROCR_VISIBLE_DEVICES={value}: .*HIP_VISIBLE_DEVICES={value}"):
        devices.refuse_rocr({"ROCR_VISIBLE_DEVICES": value})
    devices.refuse_rocr({"HIP_VISIBLE_DEVICES": "0"})


# A process that sets limits of its own, as `ulimit` does, and then looks at them as a user without rights.
LIMITED = """
import os, resource, sys
from gtpo_verl.runtime import limits
name, value = getattr(resource, sys.argv[1]), int(sys.argv[2])
resource.setrlimit(name, (value, value))
os.geteuid = lambda: 1000
try:
    limits.check_limits()
    print("accepted")
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("RLIMIT_NPROC", 400, "ulimit -u is 400"),
        ("RLIMIT_NOFILE", 100, "ulimit -n allows 100 open files"),
        ("RLIMIT_AS", 4 << 30, "ulimit -v allows 4 GiB of address space"),
        ("RLIMIT_FSIZE", 256 << 20, "ulimit -f allows 0.25 GiB in a file"),
    ],
)
def test_a_small_limit_is_named(name: str, value: int, option: str) -> None:
    command = [sys.executable, "-c", LIMITED, name, str(value)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.startswith(option), said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value"), [("RLIMIT_NPROC", 60_000), ("RLIMIT_NOFILE", 1024), ("RLIMIT_AS", 64 << 30)]
)
def test_a_usual_limit_is_accepted(name: str, value: int) -> None:
    _, hard = resource.getrlimit(getattr(resource, name))
    if hard != resource.RLIM_INFINITY and hard < value:
        pytest.skip("this machine allows less")
    command = [sys.executable, "-c", LIMITED, name, str(value)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "accepted\n"


@pytest.mark.parametrize(
    ("most", "used", "refused"), [("300", "20", True), ("100000", "20", False), ("max", "20", False)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_is_named(tmp_path: Path, most: str, used: str, refused: bool, version: int) -> None:
    place = tmp_path if version == 2 else tmp_path / "pids"
    place.mkdir(exist_ok=True)
    (place / "pids.max").write_text(most + "\n")
    (place / "pids.current").write_text(used + "\n")
    said = list(limits._cgroup(tmp_path))
    assert [f"{place}/pids.max is 300, and 20 " in line for line in said] == ([True] if refused else [])


def test_a_full_file_system(tmp_path: Path) -> None:
    """A file system of 2 MiB, of which 1.5 are taken."""
    disk = tmp_path / "small"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems can be mounted by root alone")
    try:
        assert disks.full([disk, tmp_path]) == []
        (disk / "file").write_bytes(bytes(1536 << 10))
        assert disks.full([disk / "not/yet/there", disk, tmp_path]) == [str(disk / "not/yet/there"), str(disk)]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
