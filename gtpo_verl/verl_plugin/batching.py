"""Calls that are made at the same time travel together."""

import asyncio
import pickle
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Batch: TypeAlias = list[tuple[Any, asyncio.Future]]


class Batcher:
    """Collects what is asked for within `linger` seconds and hands it on as one batch.

    Batches do not wait for each other: a slow one delays nobody else. Calls of another event loop, as of a thread that
    has its own, are batches of their own.

    Args:
        send: gets a batch of (item, future) and sets the result of every future. What it raises, or a future that it
            leaves open, is an error of all that are still open.
        linger: seconds that the first item of a batch waits for others.
    """

    def __init__(self, send: Callable[[Batch], Awaitable[None]], linger: float = 0.005):
        self._send = send
        self._linger = linger
        self._waiting: dict[asyncio.AbstractEventLoop, Batch] = {}
        self._deliveries: set[asyncio.Task] = set()

    def __call__(self, item: Any) -> asyncio.Future:
        """The future result of `item`."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if loop not in self._waiting:
            self._waiting[loop] = []
            loop.call_later(self._linger, self._flush, loop)
        self._waiting[loop].append((item, future))
        return future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        delivery = loop.create_task(self._deliver(self._waiting.pop(loop)))
        self._deliveries.add(delivery)  # the loop itself keeps weak references only
        delivery.add_done_callback(self._deliveries.discard)

    async def _deliver(self, batch: Batch) -> None:
        error: BaseException = RuntimeError("a batch of calls came back without this one")
        try:
            await self._send(batch)
        except Exception as failure:
            error = failure
        finally:  # where the delivery is cancelled, too
            for _, future in batch:
                settle(future, error)


def settle(future: asyncio.Future, result: Any) -> None:
    """Sets the result, or the exception that `result` is or carries; a caller that was cancelled wants neither."""
    if future.done():
        return
    if isinstance(result, Failure):
        result = result.error()
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


class Failure:
    """An exception on its way to another process, beside the answers to others.

    Of an exception as it is, that process may not know the class, as that of a file with a reward function, or not be
    able to make it, and can then read none of the answers. Its traceback would stay behind.
    """

    def __init__(self, error: BaseException):
        self._says = f"{type(error).__name__}: {error}"
        self._trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            self._error: bytes | None = pickle.dumps(error)
        except Exception:
            self._error = None

    def error(self) -> Exception:
        """The exception, or a RuntimeError that names it; it has the traceback as its cause."""
        try:
            error = pickle.loads(self._error)  # type: ignore[arg-type]
        except Exception:
            error = None
        if not isinstance(error, Exception):
            error = RuntimeError(self._says)
        error.__cause__ = RuntimeError(f"in the process that was asked:\n\n{self._trace}")
        return error
