"""The sockets by which verl hands weights to vLLM, apart from those of other runs on the machine.

verl names them after Ray's job (`/tmp/rl-colocate-zmq-<job>-replica-0-rank-0.sock`), and the first job of every Ray is
01000000. Of two runs with a Ray of their own, whichever begins or ends a hand-over removes the other's socket: that one
waits for ever and in silence, or vLLM gets the other run's weights.
"""

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

_SCHEME = "ipc://"


def install(transfer: ModuleType) -> None:
    """Patches both ends in verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py, in the actor's process
    (`BucketedWeightSender`) and in vLLM's worker (`BucketedWeightReceiver`)."""
    for end in (transfer.BucketedWeightSender, transfer.BucketedWeightReceiver):
        _meet_in_run(end)


def _meet_in_run(end: Any) -> None:
    initialize = end.__init__
    if hasattr(initialize, "__wrapped__"):
        return

    @functools.wraps(initialize)
    def in_run(self: Any, zmq_handle: str, *args: Any, **kwargs: Any) -> None:
        initialize(self, of_run(zmq_handle), *args, **kwargs)

    end.__init__ = in_run


def of_run(address: str) -> str:
    """ZMQ's `address`, if it is a Unix socket's, in the folder of temporary files of this supervised run, which is
    removed after it. On a node without that folder, which has the run's name in the environment alone: beside it."""
    temporary = os.environ.get("GTPO_VERL_TMP")
    if temporary is None or not address.startswith(_SCHEME):
        return address
    folder, name = Path(temporary), Path(address.removeprefix(_SCHEME)).name
    return f"{_SCHEME}{folder / name if folder.is_dir() else f'/tmp/{folder.name}-{name}'}"
