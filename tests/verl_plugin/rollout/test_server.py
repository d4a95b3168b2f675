"""What becomes of requests that travel together when some of them fail."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, pickle
from gtpo_verl.verl_plugin import cpu
cpu.install()
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from gtpo_verl.verl_plugin.batching import Failure
from gtpo_verl.verl_plugin.rollout.server import BatchingServer

class Unmade(Exception):
    def __init__(self, *, why):
        super().__init__("unmade")

async def generate(self, prompt_ids, sampling_params, request_id, *args, **kwargs):
    await asyncio.sleep(0.01 * (5 - prompt_ids[0]))  # the first one ends last
    if prompt_ids[0] == 1: raise ValueError("too long")
    if prompt_ids[0] == 2: raise Unmade(why=1)
    if prompt_ids[0] == 3: raise asyncio.CancelledError
    return prompt_ids[0]

vLLMHttpServer.generate = generate
server = object.__new__(BatchingServer)
server._submitting = {"r1", "another's"}
requests = [{"prompt_ids": [i], "sampling_params": {}, "request_id": f"r{i}"} for i in range(5)]

async def ask():
    return {index: output async for part in server.generate_many(requests) for index, output in part}

outputs = pickle.loads(pickle.dumps(asyncio.run(asyncio.wait_for(ask(), 60))))
assert (outputs.pop(0), outputs.pop(4)) == (0, 4)
errors = {index: failure.error() for index, failure in outputs.items() if isinstance(failure, Failure)}
assert {index: repr(error) for index, error in errors.items()} == {
    1: "ValueError('too long')", 2: "RuntimeError('Unmade: unmade')", 3: "RuntimeError('CancelledError: ')"
}, errors
assert server._submitting == {"another's"}
"""


@pytest.mark.slow
def test_each_request_has_its_own_end() -> None:
    """In a process of its own: verl's server is imported under the platform `cpu`."""
    pytest.importorskip("vllm")
    environment = {**os.environ, "VERL_PLATFORM": "cpu"}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=300, env=environment)
