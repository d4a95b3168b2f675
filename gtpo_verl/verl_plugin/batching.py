"""Calls that are made at the same time travel together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Batch: TypeAlias = list[tuple[Any, asyncio.Future]]


class Batcher:
    """Collects what is asked for within `linger` seconds and hands it on as one batch.

    Batches do not wait for each other: a slow one delays nobody else. Belongs to one event loop.

    Args:
        send: gets a batch of (item, future) and sets the result of every future. What it raises, or a future that it
            leaves open, is an error of all that are still open.
        linger: seconds that the first item of a batch waits for others.
    """

    def __init__(self, send: Callable[[Batch], Awaitable[None]], linger: float = 0.005):
        self._send = send
        self._linger = linger
        self._waiting: Batch = []
        self._deliveries: set[asyncio.Task] = set()

    def __call__(self, item: Any) -> asyncio.Future:
        """The future result of `item`."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self._waiting:
            loop.call_later(self._linger, self._flush)
        self._waiting.append((item, future))
        return future

    def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        delivery = asyncio.get_running_loop().create_task(self._deliver(batch))
        self._deliveries.add(delivery)  # the loop itself keeps weak references only
        delivery.add_done_callback(self._deliveries.discard)

    async def _deliver(self, batch: Batch) -> None:
        error: BaseException = RuntimeError("a batch of calls came back without this one")
        try:
            await self._send(batch)
        except Exception as failure:
            error = failure
        for _, future in batch:
            if not future.done():
                future.set_exception(error)


def settle(future: asyncio.Future, result: Any) -> None:
    """Sets the result, or the exception that `result` is; a caller that was cancelled wants neither."""
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
