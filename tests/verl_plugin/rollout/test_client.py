"""The client of the servers over a real Ray: answers find their requests, errors theirs, and servers are given back."""

import os
import subprocess
import sys
import tempfile

import pytest

SCRIPT = """
import asyncio, sys, time
from gtpo_verl.verl_plugin import cpu
cpu.install()
import ray
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin.rollout.client import BatchingClient
from gtpo_verl.verl_plugin.rollout.server import BatchingServer

ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=80_000_000, _temp_dir=sys.argv[1])

class Engineless:
    "Sends as our server does, and answers by itself."

    def __init__(self, name):
        self.name = name

    generate_many = BatchingServer.generate_many

    async def generate(self, request_id, prompt_ids, sampling_params, image_data=None, video_data=None):
        class OfThisProcess(Exception):
            pass

        await asyncio.sleep(prompt_ids[0] % 7 / 100)
        if prompt_ids[0] % 10 == 3:
            raise OfThisProcess(f"no answer to {prompt_ids[0]}")
        return TokenOutput(token_ids=[2 * prompt_ids[0]], log_probs=[0.0], extra_fields={"server": self.name})

servers = {name: ray.remote(Engineless).remote(name) for name in ("first", "second")}
balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers)
client = BatchingClient.adopt(LLMServerClient(compose_config(["model=tiny", "scale=cpu"]), balancer))
client.start()

async def ask():
    requests = [client.generate(f"r{i}", prompt_ids=[i], sampling_params={}) for i in range(60)]
    outputs = await asyncio.gather(*requests, return_exceptions=True)
    used = set()
    for i, output in enumerate(outputs):
        if i % 10 == 3:
            assert f"OfThisProcess: no answer to {i}" in f"{type(output).__name__}: {output}", repr(output)
        else:
            assert output.token_ids == [2 * i], repr(output)
            used.add(output.extra_fields["server"])
    assert used == set(servers)
    again = await client.generate("r1", prompt_ids=[1], sampling_params={})  # another turn goes where the first was
    assert again.extra_fields["server"] == outputs[1].extra_fields["server"]
    deadline = time.monotonic() + 60
    while await balancer.get_total_inflight.remote():  # nobody waits for that
        assert time.monotonic() < deadline, "servers are not given back"
        await asyncio.sleep(0.05)

asyncio.run(ask())
ray.shutdown()
"""


@pytest.mark.e2e  # Ray gives a node 30 s to start, too little beside other tests on a busy machine
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everyone_gets_an_answer_and_servers_are_given_back() -> None:
    """In a process of its own: verl's server is imported under the platform `cpu`."""
    pytest.importorskip("vllm")
    environment = {**os.environ, "VERL_PLATFORM": "cpu", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="c-") as folder:  # paths of sockets are short
        subprocess.run([sys.executable, "-c", SCRIPT, folder], check=True, timeout=550, env=environment)
