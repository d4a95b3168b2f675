"""Limits of the shell and the container that a run would meet in the middle of its start, as somebody else's error."""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

# Measured with the small model on two cores: 581 threads in all processes of a run together, 111 open files and 4.9 GiB
# of address space in one process. CUDA sets aside address space for the memory of all GPUs and of the machine.
THREADS = 800
FILES = 256
ADDRESS_SPACE, ADDRESS_SPACE_ON_GPU = 8 << 30, 1 << 40
FILE_SIZE = 1 << 30  # Ray's store of objects is one file


def check_limits(on_gpu: bool = False) -> None:
    """Refuses a start that a limit would end.

    Raises:
        OSError: naming the limit and what raises it.
    """
    for problem in _problems(on_gpu):
        raise OSError(problem)


def _problems(on_gpu: bool) -> Iterator[str]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() != 0 and soft != resource.RLIM_INFINITY:
        used = _threads_of_user()
        if soft - used < THREADS:
            yield (
                f"ulimit -u is {soft}, and {used} processes and threads of this user are there: a run starts up to "
                f"{THREADS} of its own. Raise it (ulimit -u {used + THREADS} or more; LimitNPROC, nproc in limits.conf)"
            )
    yield from _cgroup()
    address_space = ADDRESS_SPACE_ON_GPU if on_gpu else ADDRESS_SPACE
    for name, option, least, unit, what in (
        (resource.RLIMIT_NOFILE, "-n", FILES, 1, "open files"),
        (resource.RLIMIT_AS, "-v", address_space, 2**30, "GiB of address space, most of which is never used"),
        (resource.RLIMIT_FSIZE, "-f", FILE_SIZE, 2**30, "GiB in a file"),
    ):
        soft, hard = resource.getrlimit(name)
        if soft == resource.RLIM_INFINITY or soft >= least:
            continue
        if name == resource.RLIMIT_NOFILE and (hard == resource.RLIM_INFINITY or hard >= least):
            continue  # Ray raises it by itself
        yield (
            f"ulimit {option} allows {soft / unit:.3g} {what}; a process of a run takes up to {least / unit:g}. Raise "
            f"it, or take it away (ulimit {option} unlimited)"
        )


def _threads_of_user() -> int:
    """Of the real user id, as the kernel counts for RLIMIT_NPROC."""
    count = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == os.getuid():
                count += process.num_threads()
    return count


def _cgroup(folder: Path = Path("/sys/fs/cgroup")) -> Iterator[str]:
    """The container's limit of processes and threads (cgroup v2, and v1's own folder)."""
    for place in (folder, folder / "pids"):
        with suppress(OSError, ValueError):
            most, used = (int((place / f"pids.{name}").read_text(encoding="utf-8")) for name in ("max", "current"))
            if most - used < THREADS:
                yield (
                    f"{place}/pids.max is {most}, and {used} processes and threads are there: a run starts up to "
                    f"{THREADS} of its own. Raise it (docker run --pids-limit, podPidsLimit)"
                )
