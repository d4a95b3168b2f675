"""A Ray cluster of this one machine and its GPUs, with the job server that `scripts/submit.sh` submits to."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_SECONDS = 180
# Ray counts an actor as a CPU: fewer cores than a run has actors must not keep it waiting.
_SLOTS = 16
_STOP_SECONDS = 60


def environment() -> dict[str, str]:
    """Of Ray and of what is submitted to it: this interpreter's commands first, no token in the home folder."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # It compares what is used with the memory that it saw at its start, which grows on some virtual machines.
        "RAY_memory_monitor_refresh_ms": "0",
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def ray_head(gpus: int, object_store_bytes: int | None = None) -> Iterator[str]:
    """The job server's address; the cluster ends with the block.

    Args:
        gpus: that Ray declares.
        object_store_bytes: of shared memory; None: Ray's own choice, a share of the memory that it sees.

    Raises:
        RuntimeError: it does not start; with Ray's words.
    """
    folder = Path(tempfile.mkdtemp(prefix="gv-", dir="/tmp"))  # Ray's sockets need short paths
    dashboard = free_port()
    command = ["ray", "start", "--block", "--head", f"--num-gpus={gpus}", f"--port={free_port()}"]
    command.append(f"--num-cpus={max(os.cpu_count() or 1, _SLOTS)}")
    command += [f"--dashboard-port={dashboard}", f"--temp-dir={folder}", "--node-ip-address=127.0.0.1"]
    if object_store_bytes is not None:
        command.append(f"--object-store-memory={object_store_bytes}")
    with (folder / "start.log").open("w") as log:
        head = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
    server = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + _START_SECONDS
        # The server answers before there is an agent to run a job.
        trial = ["ray", "job", "submit", f"--address={server}", "--", "true"]
        while subprocess.run(trial, env=environment(), capture_output=True).returncode:
            if head.poll() is not None or time.monotonic() > deadline:
                said = (folder / "start.log").read_text(errors="replace")
                raise RuntimeError(f"Ray did not start:\n{said[-4000:]}")
            time.sleep(1)
        yield server
    finally:
        head.terminate()
        try:
            head.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            head.kill()
            head.wait()
        shutil.rmtree(folder, ignore_errors=True)
