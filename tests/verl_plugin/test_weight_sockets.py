"""Runs side by side hand their weights to their own vLLM, although verl gives their sockets the same name."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
import verl
import zmq

from gtpo_verl.verl_plugin import weight_sockets

MODULE = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
# Of the first job of any Ray.
ADDRESS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
SECONDS = 60


@pytest.fixture(scope="module")
def transfer() -> ModuleType:
    """verl's module by itself; its package imports vLLM."""
    path = Path(verl.__path__[0]).parent.joinpath(*MODULE.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location("bucketed_weight_transfer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    weight_sockets.install(module)
    return module


@pytest.fixture
def runs(transfer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple]]:
    """Both ends of two runs, of which the second has no folder on this node. Paths of sockets are short."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir="/tmp", prefix="w-") as folder:
        ends = []
        for temporary in (folder, f"/nonexistent/{Path(folder).name}"):
            monkeypatch.setenv("GTPO_VERL_TMP", temporary)
            sender = transfer.BucketedWeightSender(ADDRESS, use_shm=True)
            receiver = transfer.BucketedWeightReceiver(ADDRESS, None, use_shm=True)
            for end in (sender, receiver):
                stack.callback(lambda end=end: end.socket and end.socket.close(linger=0))
            stack.callback(Path(sender.zmq_handle.removeprefix("ipc://")).unlink, missing_ok=True)
            ends.append((sender, receiver))
        yield ends


def test_one_hand_over_does_not_end_another(runs: list[tuple]) -> None:
    (mine, to_me), (others, to_others) = runs
    mine._init_socket()
    others._init_socket()
    to_others._init_socket()
    to_me._init_socket()
    for sender, receiver, message in ((mine, to_me, b"mine"), (others, to_others, b"others")):
        assert sender.socket.poll(SECONDS * 1000, zmq.POLLOUT), "nobody has come"
        sender.socket.send(message)
        assert receiver.socket.poll(SECONDS * 1000)
        assert receiver.socket.recv() == message


def test_both_ends_meet_and_elsewhere_it_is_verls(
    transfer: ModuleType, runs: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [[end.zmq_handle for end in ends] for ends in runs]
    assert all(sender == receiver for sender, receiver in handles)
    assert len({*handles[0], *handles[1], ADDRESS}) == 3
    monkeypatch.delenv("GTPO_VERL_TMP")
    assert transfer.BucketedWeightSender(ADDRESS).zmq_handle == ADDRESS
    monkeypatch.setenv("GTPO_VERL_TMP", "/tmp")
    assert transfer.BucketedWeightReceiver("tcp://127.0.0.1:1", None).zmq_handle == "tcp://127.0.0.1:1"


def test_the_longest_path_fits() -> None:
    """A Unix socket's path has at most 107 bytes; a run's folder is in one of at most 20 (`launch.supervisor`)."""
    from gtpo_verl.runtime.leftovers import PREFIX

    name = os.path.basename(ADDRESS).replace("replica-0", "replica-9999").replace("rank-0", "rank-99")
    assert len(f"{'x' * 20}/{PREFIX}{'x' * 8}/{name}") <= 107


@pytest.mark.slow
def test_whoever_imports_verls_module_has_it(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    code = f"from {MODULE} import BucketedWeightSender; print(BucketedWeightSender({ADDRESS!r}).zmq_handle)"
    environment = {**os.environ, "VERL_PLATFORM": "cpu", "GTPO_VERL_TMP": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert result.stdout.splitlines()[-1] == f"ipc://{tmp_path}/{os.path.basename(ADDRESS)}"
