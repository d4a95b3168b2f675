"""Calls that travel together: each gets its own answer, whatever becomes of the others."""

import asyncio
import pickle
import sys
import threading
from types import ModuleType

import pytest

from gtpo_verl.verl_plugin.batching import Batcher, Failure, settle


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


def test_whoever_waits_hears_of_a_delivery_that_was_cancelled() -> None:
    async def send(batch):
        raise asyncio.CancelledError

    async def ask():
        with pytest.raises(RuntimeError, match="without this one"):
            await asyncio.wait_for(Batcher(send)(1), 60)

    asyncio.run(ask())


def test_a_thread_with_a_loop_of_its_own_gets_its_answers() -> None:
    """A user's agent loop may ask from there, while others ask from the worker's loop."""
    both_ask = threading.Barrier(2)

    async def send(batch):
        await asyncio.sleep(0.01)
        for item, future in batch:
            settle(future, item)

    call, answers = Batcher(send, linger=0.05), {}

    def thread(name: str) -> None:
        async def ask():
            both_ask.wait(60)
            answers[name] = [await call((name, number)) for number in range(5)]

        asyncio.run(ask())

    threads = [threading.Thread(target=thread, args=(name,), daemon=True) for name in "ab"]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert answers == {name: [(name, number) for number in range(5)] for name in "ab"}


class NeedsMore(Exception):
    """As httpx's and openai's: it can be pickled and not be made again."""

    def __init__(self, *, response: int) -> None:
        super().__init__("no judge")
        self.response = response


class HoldsALock(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


def raised(error: Exception) -> Exception:
    def the_place_that_raises() -> None:
        raise error

    try:
        the_place_that_raises()
    except Exception as same:
        return same


def test_an_exception_of_a_class_that_the_other_process_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a file with a reward function, which is no module elsewhere."""
    module = ModuleType("a_users_reward")
    exec("class NoAnswer(Exception): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "a_users_reward", module)
    sent = pickle.dumps([1.0, Failure(raised(module.NoAnswer("none here")))])
    monkeypatch.delitem(sys.modules, "a_users_reward")
    score, failure = pickle.loads(sent)
    assert score == 1.0
    assert repr(failure.error()) == "RuntimeError('NoAnswer: none here')"


@pytest.mark.parametrize(
    ("error", "arrives"),
    [
        (NeedsMore(response=500), RuntimeError("NeedsMore: no judge")),
        (HoldsALock(), RuntimeError("HoldsALock: locked")),
        (asyncio.CancelledError(), RuntimeError("CancelledError: ")),
        (KeyError("acc"), KeyError("acc")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_what_it_is_or_what_it_says(error: BaseException, arrives: Exception) -> None:
    failure = pickle.loads(pickle.dumps(Failure(error)))

    async def ask():
        future = asyncio.get_running_loop().create_future()
        settle(future, failure)
        with pytest.raises(type(arrives)) as caught:
            await future
        assert repr(caught.value) == repr(arrives)

    asyncio.run(ask())


def test_the_traceback_comes_along() -> None:
    failure = pickle.loads(pickle.dumps(Failure(raised(KeyError("acc")))))
    assert "the_place_that_raises" in str(failure.error().__cause__)
