"""What Ray says of its nodes: a real Ray of this machine, in a process of its own."""

import json
import subprocess
import sys
import tempfile

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
