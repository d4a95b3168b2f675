"""verl's client of the vLLM servers, which asks for many responses in one call."""

from typing import Any

import ray
from verl.workers.rollout.llm_server import LLMServerClient

from gtpo_verl.verl_plugin.batching import Batch, Batcher, settle


class BatchingClient(LLMServerClient):
    """verl's client; `generate` is verl's own, and finds a server behind which calls are gathered."""

    @classmethod
    def adopt(cls, client: LLMServerClient) -> LLMServerClient:
        """Takes over a client that verl made; another class than verl's own has its reasons and stays."""
        if type(client) is not LLMServerClient:
            return client
        batching = cls.__new__(cls)
        vars(batching).update(vars(client))
        return batching

    def start(self) -> None:
        """In the process that asks (a client travels there as an argument)."""
        self._servers: dict[str, BatchingServerHandle] = {}
        self._acquire = Batcher(self._acquire_many)
        self._release = Batcher(self._release_many)
        # A user's own balancer may want to see what it balances (`require_acquire_fields`), and may be asynchronous.
        self._balancer_is_verls = not getattr(self.config.actor_rollout_ref.rollout, "router_config_path", None)

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if self._balancer_is_verls:
            server_id, server = await self._acquire({"request_id": request_id})
        else:
            server_id, server = await super()._acquire_server(request_id, **extra)
        if server_id not in self._servers:
            self._servers[server_id] = BatchingServerHandle(server)
        return server_id, self._servers[server_id]

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        if self._balancer_is_verls:
            self._release(server_id)
        else:
            super()._release_server(server_id, request_id)

    async def _acquire_many(self, batch: Batch) -> None:
        requests = [request for request, _ in batch]
        servers = await self._load_balancer.__ray_call__.remote(_acquire_each, requests)
        for (_, future), server in zip(batch, servers, strict=True):
            settle(future, server)

    async def _release_many(self, batch: Batch) -> None:
        self._load_balancer.__ray_call__.remote(_release_each, [server_id for server_id, _ in batch])
        for _, future in batch:
            settle(future, None)


def _acquire_each(balancer: Any, requests: list[dict[str, Any]]) -> list[Any]:
    return [balancer.acquire_server(**request) for request in requests]


def _release_each(balancer: Any, server_ids: list[str]) -> None:
    for server_id in server_ids:
        balancer.release_server(server_id=server_id)


class BatchingServerHandle:
    """Looks like the Ray handle of a server, as far as verl's client uses one: `handle.generate.remote(...)`."""

    def __init__(self, server: ray.actor.ActorHandle):
        self._server = server
        self._generate = Batcher(self._generate_many)

    @property
    def generate(self) -> "BatchingServerHandle":
        return self

    def remote(self, **request: Any) -> Any:
        return self._generate(request)

    async def _generate_many(self, batch: Batch) -> None:
        outputs = self._server.generate_many.remote([request for request, _ in batch])
        async for ready in outputs:
            for index, output in await ready:
                settle(batch[index][1], output)
