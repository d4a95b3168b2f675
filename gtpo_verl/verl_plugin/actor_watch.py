"""Notices that an actor of this job died while its result is awaited without a `ray.get`.

verl's replay buffer waits for responses by looking at TransferQueue. A response whose vLLM server, agent loop or node
is gone never arrives there, and nothing says so: the job would wait for ever.
"""

import time

import ray
from ray._private import state  # the table of actors without the dashboard; `ray.util.state` needs one


class ActorWatch:
    """Compares the job's actors with those that were alive at the start of a wait.

    Args:
        interval: seconds between two looks at Ray's table of actors.
    """

    def __init__(self, interval: float = 5.0):
        self.interval = interval
        self._looked_at = 0.0
        self._alive: dict[str, dict] = {}

    def start(self) -> None:
        """Takes note of who is alive. Does nothing outside of Ray."""
        table = self._actors() if ray.is_initialized() else {}
        self._alive = {key: actor for key, actor in table.items() if actor["State"] == "ALIVE"}
        self._looked_at = time.monotonic()

    def check(self) -> None:
        """Looks once every `interval` seconds.

        Raises:
            RuntimeError: actors are gone; names their classes and nodes.
        """
        if not self._alive or time.monotonic() - self._looked_at < self.interval:
            return
        self._looked_at = time.monotonic()
        table = self._actors()
        dead = [actor for key, actor in self._alive.items() if key not in table or table[key]["State"] == "DEAD"]
        if dead:
            nodes = {node["NodeID"]: node for node in ray.nodes()}
            raise RuntimeError(
                f"{len(dead)} of this job's actors died while responses were awaited: "
                + ", ".join(sorted({_describe(actor, nodes) for actor in dead}))
                + ". The same command goes on from the last checkpoint"
            )

    @staticmethod
    def _actors() -> dict[str, dict]:
        job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
        return state.actors(job_id=job)


def _describe(actor: dict, nodes: dict[str, dict]) -> str:
    node = nodes.get(actor["Address"]["NodeID"], {})
    lost = "" if node.get("Alive", True) else ", a node that Ray lost"
    return f"{actor['ActorClassName']} (node {actor['Address']['IPAddress']}{lost})"
