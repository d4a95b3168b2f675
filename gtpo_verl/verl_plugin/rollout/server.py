"""verl's vLLM server, asked for many responses in one call, none of them token by token."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from gtpo_verl.runtime import stage
from gtpo_verl.verl_plugin.batching import Failure
from gtpo_verl.verl_plugin.rollout.scheduler import read_whole

logger = logging.getLogger(__name__)

SCHEDULER = "gtpo_verl.verl_plugin.rollout.scheduler.scheduler"
# Responses that end within this time go back together, in seconds.
_LINGER = 0.005
_ENGINE_INTERVAL = 2.0  # seconds between two looks at whether the engine lives


def install() -> None:
    """Registers the replica under verl's name `vllm`, in this process."""
    RolloutReplicaRegistry.register("vllm", lambda: BatchingReplica)


class BatchingReplica(vLLMReplica):
    """A replica whose servers are `BatchingServer`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(BatchingServer)


class BatchingServer(vLLMHttpServer):
    """verl's server with `generate_many`."""

    def __init__(self, *args: Any, **kwargs: Any):
        self._submitting: set[str] = set()
        super().__init__(*args, **kwargs)

    async def generate_many(self, requests: list[dict[str, Any]]) -> AsyncIterator[list[tuple[int, Any]]]:
        """Keyword arguments of `generate`, a dictionary a response. Yields pairs of the index of a request and its
        `TokenOutput`, or the `Failure` that it ended with, as they become ready."""
        ready: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def generate(index: int, request: dict[str, Any]) -> None:
            try:
                ready.put_nowait((index, await self.generate(**request)))
            except BaseException as error:  # nor does who waits for it hear of a cancellation otherwise
                ready.put_nowait((index, Failure(error)))

        tasks = [asyncio.create_task(generate(index, request)) for index, request in enumerate(requests)]
        left = len(tasks)
        while left:
            outputs = [await ready.get()]
            if left > 1:
                await asyncio.sleep(_LINGER)
            while not ready.empty():
                outputs.append(ready.get_nowait())
            left -= len(outputs)
            yield outputs

    async def generate(
        self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        try:
            return await super().generate(prompt_ids, read_whole(sampling_params), request_id, *args, **kwargs)
        finally:
            self._submitting.discard(request_id)

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        engine_kwargs.setdefault("scheduler_cls", SCHEDULER)

    # ---- which requests an abort must wait for ----
    #
    # verl counts a request as admitted once it has an output, which is now its last: an abort would wait for all
    # responses. Admitted is what vLLM's engine has got.

    @property
    def _admitting(self) -> int:
        return len(self._submitting)

    @_admitting.setter
    def _admitting(self, count: int) -> None:
        pass

    async def _park_until_admitted(self, request_id: str) -> Any:
        rejected = await super()._park_until_admitted(request_id)
        if rejected is None:
            self._submitting.add(request_id)
        return rejected

    async def run_server(self, args: Any) -> None:
        from gtpo_verl.verl_plugin.rollout import logprobs

        logprobs.install()
        stage.say("starting vLLM's engine")
        await super().run_server(args)
        add_request = self.engine.add_request

        async def add(request_id: str, *args: Any, **kwargs: Any) -> Any:
            try:
                return await add_request(request_id, *args, **kwargs)
            finally:
                self._submitting.discard(request_id)

        self.engine.add_request = add  # type: ignore[method-assign]
        self._watching = asyncio.create_task(self._end_with_engine())

    async def _end_with_engine(self) -> None:
        """Ends this actor once its engine or one of its workers has died, which the run watch sees. verl learns of it
        from the next request alone, and never where it waits for the workers to take new weights."""
        while not self.engine.errored:
            await asyncio.sleep(_ENGINE_INTERVAL)
        await asyncio.sleep(_ENGINE_INTERVAL)  # requests under way end first, with the reason
        cause = f"vLLM's engine, or one of its workers, has died (node {ray.util.get_node_ip_address()})"
        logger.error("%s", cause)
        stage.say_cause(f"{cause}. The same command goes on from the last checkpoint")
        os._exit(1)
