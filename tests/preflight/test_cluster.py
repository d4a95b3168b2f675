"""What Ray says of its nodes: a real Ray of this machine, in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile

import pytest

# Ray gives a node 30 s to start, too little beside other tests on a busy machine.
pytestmark = pytest.mark.e2e
# Without an address of a cluster, and without a token in the home folder.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
    "RAY_AUTH_MODE": "disabled"
}

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
        command = [sys.executable, "-c", PROGRAM, folder]
        run = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [[3, 3, True], [3, 1, True], [3, 3, True]]


# The server that a Ray cluster starts for each client, started here: the cluster's own proxy loses one now and then
# while it forks (Ray's issue 63202).
CLIENT = """
import json, socket, subprocess, sys, time

from ray.cluster_utils import Cluster

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 2, "include_dashboard": False})
where = ["--host", "127.0.0.1", "--port", str(port), "--address", cluster.address]
server = subprocess.Popen([sys.executable, "-m", "ray.util.client.server", *where, "--mode", "specific-server"])
try:
    import ray
    from gtpo_verl.preflight.cluster import _nodes

    deadline = time.monotonic() + 90
    while socket.socket().connect_ex(("127.0.0.1", port)) and server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    ray.init(f"ray://127.0.0.1:{port}", log_to_driver=False)
    print(json.dumps([(node.gpus, node.free, node.alive) for node in _nodes()]))
    ray.shutdown()
finally:
    server.terminate()
    server.wait(60)
    cluster.shutdown()
"""


@pytest.mark.slow
def test_a_cluster_that_is_joined_through_its_client_port() -> None:
    with tempfile.TemporaryDirectory(prefix="gv-", dir="/tmp") as folder:
        environment = {**ENVIRONMENT, "RAY_TMPDIR": folder}
        run = subprocess.run(
            [sys.executable, "-c", CLIENT], env=environment, capture_output=True, text=True, timeout=200
        )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == [[2, 2, True]]


HOLDER = """
import sys
import ray

ray.init(num_gpus=8, num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1])
print("up", flush=True)
sys.stdin.read()
"""
ASKING = """
from omegaconf import OmegaConf
from gtpo_verl.preflight.cluster import connection

with connection(OmegaConf.create({"ray_kwargs": {"ray_init": {}}, "gtpo_verl": {"env": {}}})) as joined:
    print(joined)
"""


def test_the_private_ray_of_another_job_is_not_joined() -> None:
    """`ray.init` would start another one; Ray's `auto` would join it, being the only one that runs."""
    with tempfile.TemporaryDirectory(prefix="gv-", dir="/tmp") as folder:
        for name in ("theirs", "ours"):
            os.mkdir(f"{folder}/{name}")
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, f"{folder}/theirs"],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            assert any(line == "up\n" for line in holder.stdout)
            environment = {**ENVIRONMENT, "RAY_TMPDIR": f"{folder}/ours"}
            command = [sys.executable, "-c", ASKING]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
            assert run.returncode == 0, run.stderr
            assert run.stdout.splitlines()[-1] == "False"
        finally:
            holder.communicate(timeout=60)
