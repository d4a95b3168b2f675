"""The watch over a run, on a real Ray; tests/e2e/test_faults.py kills and stops the processes of real runs."""

# ruff: noqa: PT012  # what raises is the wait, and leaving the watch

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pytest
import ray

from gtpo_verl.verl_plugin.actor_watch import ActorWatch
from gtpo_verl.verl_plugin.run_watch import RunWatch

pytestmark = pytest.mark.slow  # most tests start a Ray and wait until something is missed


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=100_000_000)
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class VllmServer:
    def ping(self) -> int:
        return os.getpid()

    def leave(self) -> None:
        ray.actor.exit_actor()

    def never(self) -> None:
        time.sleep(600)


def started(**options: int) -> "ray.actor.ActorHandle":
    server = VllmServer.options(**options).remote()
    assert ray.get(server.ping.remote())
    return server


def kill(server: "ray.actor.ActorHandle", after: float = 0) -> None:
    pid = ray.get(server.ping.remote())
    Timer(after, os.kill, [pid, signal.SIGKILL]).start()


def end(server: "ray.actor.ActorHandle") -> None:
    """Ends an actor on purpose and waits until it is gone; what was asked meanwhile may still be answered."""
    ray.kill(server)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(server.never.remote())


# How verl's trainer waits: for an actor, for TransferQueue (a lock), between two looks.
WAITS: dict[str, Callable[["ray.actor.ActorHandle"], None]] = {
    "for an actor": lambda server: ray.get(server.never.remote()),
    "for a lock": lambda _: threading.Event().wait(600) and None,
    "asleep": lambda _: time.sleep(600),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_in_which_nothing_moves_is_ended(wait: str) -> None:
    server = started()
    watch = RunWatch(stall_timeout=0.5, interval=0.1)
    began = time.monotonic()
    expected = r"nothing has moved for \d+ s, more than gtpo_verl.stall_timeout=0.5; the phase is: update\."
    with pytest.raises(RuntimeError, match=expected), watch:
        watch.enter_phase("update")
        WAITS[wait](server)
    assert time.monotonic() - began < 60
    ray.kill(server)


def test_the_stopped_process_is_named() -> None:
    server = started()
    stopped = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    try:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        with (
            pytest.raises(RuntimeError, match=rf"Stopped processes on this node: .*\({stopped.pid}\)"),
            RunWatch(stall_timeout=0.5, interval=0.1),
        ):
            time.sleep(600)
    finally:
        stopped.kill()
        stopped.wait()
    ray.kill(server)


@pytest.mark.parametrize("how", ["phase", "response"])
def test_what_moves_is_not_ended(how: str) -> None:
    watch = RunWatch(stall_timeout=1, interval=0.1)
    with watch:
        for _ in range(30):
            time.sleep(0.1)
            watch.enter_phase("rollout") if how == "phase" else watch.progress()


def test_without_a_limit_a_wait_may_last() -> None:
    with RunWatch(stall_timeout=0, interval=0.05):
        time.sleep(1)


@pytest.mark.parametrize("wait", ["for a lock", "asleep"])
def test_an_actor_that_died_ends_a_wait_for_something_else(wait: str) -> None:
    server = started()
    kill(server, after=1)
    expected = r"1 of this job's actors died: VllmServer \(node [\d.]+\)"
    with pytest.raises(RuntimeError, match=expected), RunWatch(stall_timeout=0, interval=0.1):
        WAITS[wait](server)


def test_an_error_that_speaks_of_an_actor_gets_its_name() -> None:
    server = started()
    kill(server, after=1)
    expected = r"1 of this job's actors died: VllmServer .*3 problems failed: ActorDiedError"
    with pytest.raises(RuntimeError, match=expected), RunWatch(stall_timeout=0, interval=60):
        try:
            ray.get(server.never.remote())
        except ray.exceptions.RayActorError as error:
            raise RuntimeError(f"3 problems failed: {type(error).__name__}") from error


def test_other_errors_pass_and_leave_the_signal_as_it_was() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(ZeroDivisionError), RunWatch(stall_timeout=0, interval=0.1):
        1 / 0  # noqa: B018
    assert signal.getsignal(signal.SIGUSR2) is before


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_actor_that_started_late_is_watched_too(restarts: int) -> None:
    watch = RunWatch(stall_timeout=0, interval=0.1)
    with pytest.raises(RuntimeError, match="1 of this job's actors died: VllmServer"), watch:
        server = started(max_restarts=restarts)
        time.sleep(1)
        kill(server)
        time.sleep(600)


def test_an_actor_that_dies_between_two_looks_is_a_loss() -> None:
    """Born after the first look, dead before the second, however slow the machine."""
    watch = ActorWatch()
    watch.start()
    server = started()
    kill(server)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(server.never.remote())
    deadline = time.monotonic() + 60
    while (died := watch.died()) is None:  # Ray's table may be a moment late
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert died.startswith("1 of this job's actors died: VllmServer")
    assert watch.died() == died


def test_one_that_ended_on_purpose_between_two_looks_is_nobodys_loss() -> None:
    watch = ActorWatch()
    watch.start()
    end(started())
    assert watch.died() is None


def test_who_is_ended_on_purpose_is_nobodys_loss() -> None:
    first, second, third = started(), started(), started()
    with RunWatch(stall_timeout=0, interval=0.1):
        ray.kill(first)
        second.leave.remote()
        del third
        time.sleep(3)


def test_who_was_dead_before_is_nobodys_loss() -> None:
    end(started())
    watch = ActorWatch()
    watch.start()
    assert watch.died() is None


UNREACHABLE = """
    import threading
    from gtpo_verl.verl_plugin import run_watch

    run_watch._GRACE_SECONDS = 0.5

    def train():
        with run_watch.RunWatch(stall_timeout=0.5, interval=0.1) as watch:
            watch.enter_phase("weights")
            threading.Event().wait(600)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""


def test_a_trainer_that_no_signal_reaches_is_ended_by_force(tmp_path: Path) -> None:
    environment = {**os.environ, "GTPO_VERL_TMP": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(UNREACHABLE)], env=environment, timeout=120)
    assert done.returncode == 1
    said = (tmp_path / "cause").read_text(encoding="utf-8")
    assert said.startswith("nothing has moved for")
    assert "the phase is: weights" in said
