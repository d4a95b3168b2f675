"""The scripts of the 32B runs, on a Ray cluster of two nodes: two raylets on this machine, one rank on each."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from ray.util.state import list_actors
from ray.util.state.exception import RayStateApiException
from training_run import ROOT, SMALL, Run

from benchmarks.big_model.cluster import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

ON_CPU = ["model=tiny", "scale=cpu_cluster", *SMALL, f"gtpo_verl.cache_dir={ROOT / '.cache/gtpo-verl'}"]


class Cluster:
    """A head and a second node, each with a raylet of its own and one GPU, verl's word for a rank's place.

    `inside` is a command that runs the one behind it: what surrounds the second node.
    """

    def __init__(self, home: Path, inside: Sequence[str] = ()) -> None:
        self.inside = inside
        # Ray's sockets need short paths.
        self.folder = Path(tempfile.mkdtemp(prefix="gv-", dir="/tmp"))
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            # Else each node starts a worker for each of its CPUs, whatever the job needs.
            "RAY_prestart_worker_first_driver": "0",
        }
        port, self.dashboard = free_port(), free_port()
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self.gcs = f"127.0.0.1:{port}"
        self.head = self._start(
            "--head", f"--port={port}", f"--dashboard-port={self.dashboard}", f"--temp-dir={self.folder}"
        )
        self.start_second()

    def start_second(self) -> None:
        self._wait(lambda: self._status().returncode == 0)
        self.second = self._start(f"--address={self.gcs}", inside=self.inside)
        self.wait_for(2)

    def wait_for(self, nodes: int) -> None:
        """Until Ray counts this many living nodes; it notices a lost one after some seconds."""
        self._wait(lambda: self._status().stdout.partition("Pending:")[0].count(" node_") == nodes)

    def kill_second(self) -> None:
        """As when the machine is gone: no process of that node gets to say goodbye."""
        for process in psutil.Process(self.second.pid).children(recursive=True):
            process.kill()
        self.second.kill()
        self.second.wait()

    def submit(self, script: str, runs: Path, *overrides: str) -> subprocess.Popen:
        return subprocess.Popen(
            [str(ROOT / "scripts" / script), *ON_CPU, *overrides],
            env={**self.environment, "RAY_ADDRESS": self.address, "RUNS_DIR": str(runs)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def nodes_of_ranks(self) -> set[str]:
        """Nodes where an actor of FSDP ranks lives (verl's WorkerDict); none while the dashboard is too busy."""
        try:
            actors = list_actors(address=self.address, filters=[("state", "=", "ALIVE")], limit=1000)
        except RayStateApiException:
            return set()
        return {actor.node_id for actor in actors if "WorkerDict" in actor.class_name}

    def stop(self) -> None:
        for process in (self.second, self.head):
            process.send_signal(signal.SIGTERM)
        for process in (self.second, self.head):
            process.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, *arguments: str, inside: Sequence[str] = ()) -> subprocess.Popen:
        command = [
            *inside,
            "ray",
            "start",
            "--block",
            "--num-cpus=8",
            "--num-gpus=1",
            "--object-store-memory=300000000",
        ]
        log = (self.folder / "start.log").open("ab")
        return subprocess.Popen(
            [*command, "--node-ip-address=127.0.0.1", *arguments], env=self.environment, stdout=log, stderr=log
        )

    def _status(self) -> subprocess.CompletedProcess:
        command = ["ray", "status", f"--address={self.gcs}"]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    def _wait(self, condition, timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "start.log").read_text()
            time.sleep(1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    # Caches of a node are that cluster's affair; here they go to a folder of the test.
    cluster = Cluster(home=tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


def test_trains_across_both_nodes_and_goes_on_after_one_is_lost(cluster: Cluster, run: Run) -> None:
    overrides = ["trainer.total_training_steps=4", "trainer.save_freq=1"]
    job = cluster.submit("run_gtpo_v2_qwen2.5_32b.sh", run.folder / "runs", *overrides)
    nodes: set[str] = set()
    deadline = time.monotonic() + 600
    while len(run.steps()) < 2:
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < deadline
        if len(nodes) < 2 and not run.steps():  # not once it takes steps, which are as quick as the question
            nodes |= cluster.nodes_of_ranks()
        time.sleep(0.5)
    assert len(nodes) == 2, nodes
    cluster.kill_second()
    output = job.communicate(timeout=300)[0]
    assert job.returncode != 0
    assert "error: " in output, output
    assert "node" in output[output.index("error: ") :], output

    cluster.start_second()
    job = cluster.submit("run_gtpo_v2_qwen2.5_32b.sh", run.folder / "runs", *overrides)
    output = job.communicate(timeout=600)[0]
    assert job.returncode == 0, output
    assert run.steps() == [1, 2, 3, 4]
