"""What Ray says of its nodes: a real Ray of this machine, in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile

import pytest

PROGRAM = """
import json, sys, time
import ray
from gtpo_verl.preflight.cluster import _nodes

ray.init(num_gpus=3, num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1])
holder = ray.remote(num_gpus=2, num_cpus=0)(type("Holder", (), {"ready": lambda self: True}))

def counts(free):
    # Ray's nodes report what is free a moment later.
    deadline = time.monotonic() + 60
    while (node := _nodes()[0]).free != free and time.monotonic() < deadline:
        time.sleep(0.1)
    return node.gpus, node.free, node.alive

seen = [counts(3)]
job = holder.remote()
ray.get(job.ready.remote())
seen.append(counts(1))
ray.kill(job)
seen.append(counts(3))
print(json.dumps(seen))
"""


def test_gpus_that_a_job_holds_are_not_free() -> None:
    with tempfile.TemporaryDirectory(prefix="gv-", dir="/tmp") as folder:  # Ray's sockets need short paths
        run = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [[3, 3, True], [3, 1, True], [3, 3, True]]


CLIENT = """
import json, socket

from ray.cluster_utils import Cluster

with socket.socket() as free:
    free.bind(("", 0))
    port = free.getsockname()[1]
head = {"num_cpus": 1, "num_gpus": 2, "ray_client_server_port": port, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
try:
    import ray
    from gtpo_verl.preflight.cluster import _nodes

    ray.init(f"ray://127.0.0.1:{port}", log_to_driver=False)
    print(json.dumps([(node.gpus, node.free, node.alive) for node in _nodes()]))
    ray.shutdown()
finally:
    cluster.shutdown()
"""


@pytest.mark.slow
def test_a_cluster_that_is_joined_through_its_client_port() -> None:
    with tempfile.TemporaryDirectory(prefix="gv-", dir="/tmp") as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder}
        run = subprocess.run(
            [sys.executable, "-c", CLIENT], env=environment, capture_output=True, text=True, timeout=200
        )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [[2, 2, True]]
