"""Calls that travel together: each gets its own answer, whatever becomes of the others."""

import asyncio

import pytest

from gtpo_verl.verl_plugin.batching import Batcher, settle


def test_calls_of_one_moment_are_one_batch_and_later_ones_another() -> None:
    sizes = []

    async def double(batch):
        sizes.append(len(batch))
        for item, future in batch:
            settle(future, 2 * item)

    async def ask():
        call = Batcher(double)
        assert await asyncio.gather(*(call(i) for i in range(100))) == [2 * i for i in range(100)]
        assert await call(7) == 14

    asyncio.run(ask())
    assert sizes == [100, 1]


def test_a_slow_batch_delays_nobody() -> None:
    released = asyncio.Event()

    async def send(batch):
        if batch[0][0] == "slow":
            await released.wait()
        for item, future in batch:
            settle(future, item)

    async def ask():
        call = Batcher(send)
        slow = asyncio.ensure_future(call("slow"))
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(call("quick"), 5) == "quick"
        assert not slow.done()
        released.set()
        assert await slow == "slow"

    asyncio.run(ask())


def test_an_error_belongs_to_its_call_or_to_all_that_are_open() -> None:
    async def send(batch):
        for item, future in batch:
            if item != "lost":
                settle(future, ValueError("of mine") if item == "bad" else item)
        if len(batch) > 3:
            raise ConnectionError("the line is dead")

    async def ask(*items):
        call = Batcher(send)
        return await asyncio.gather(*(call(item) for item in items), return_exceptions=True)

    good, bad, lost = asyncio.run(ask("good", "bad", "lost"))
    assert good == "good"
    assert str(bad) == "of mine"
    assert isinstance(lost, RuntimeError)
    answers = asyncio.run(ask("good", "lost", "lost", "lost"))
    assert answers[0] == "good"
    assert all(isinstance(answer, ConnectionError) for answer in answers[1:])


def test_a_caller_that_gave_up_harms_nobody() -> None:
    async def send(batch):
        await asyncio.sleep(0.02)
        for item, future in batch:
            settle(future, item)

    async def ask():
        call = Batcher(send)
        gone, stays = call("gone"), call("stays")
        await asyncio.sleep(0.01)
        gone.cancel()
        assert await stays == "stays"
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(ask())
