"""The watch over a job's actors, on a real Ray; tests/e2e/test_cluster.py loses a whole node."""

import time
from collections.abc import Iterator
from threading import Timer

import pytest
import ray
from buffers import synchronous

from gtpo_verl.verl_plugin.actor_watch import ActorWatch
from gtpo_verl.verl_plugin.replay_buffer import BoundedReplayBuffer


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=100_000_000)
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class VllmServer:
    def ping(self) -> bool:
        return True


def started() -> "ray.actor.ActorHandle":
    server = VllmServer.remote()
    assert ray.get(server.ping.remote())
    return server


def check_until_it_raises(watch: ActorWatch, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch.check()
        time.sleep(0.1)


def test_is_silent_while_all_live() -> None:
    server = started()
    watch = ActorWatch(interval=0)
    watch.start()
    for _ in range(5):
        watch.check()
    assert ray.get(server.ping.remote())


def test_names_an_actor_that_died() -> None:
    server = started()
    watch = ActorWatch(interval=0)
    watch.start()
    ray.kill(server)
    with pytest.raises(RuntimeError, match=r"1 of this job's actors died .*VllmServer \(node [\d.]+\)"):
        check_until_it_raises(watch)


def test_who_was_dead_before_is_nobodys_loss() -> None:
    gone = started()
    ray.kill(gone)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(gone.ping.remote())
    watch = ActorWatch(interval=0)
    watch.start()
    watch.check()


def test_looks_seldom() -> None:
    server = started()
    watch = ActorWatch(interval=3600)
    watch.start()
    ray.kill(server)
    check_until_it_raises(watch, seconds=1)


def test_the_replay_buffer_watches_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = BoundedReplayBuffer.adopt(synchronous(), max_groups=0, poll_interval=0.1, group_size=1)
    buffer.watch.interval = 0
    # No TransferQueue: responses that never arrive look the same.
    monkeypatch.setattr(buffer, "_sync_metadata_from_transfer_queue", lambda: None)
    server = started()
    Timer(1, ray.kill, [server]).start()
    with pytest.raises(RuntimeError, match="VllmServer"):
        buffer.sample(global_steps=1, partition_id="train", batch_size=4)
