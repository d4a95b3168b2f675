"""Notices that an actor of this job died, whether or not its result is awaited."""

import ray
from ray._private import state  # the table of actors without the dashboard; `ray.util.state` needs one


class ActorWatch:
    """Compares the job's actors with those that were alive at the start."""

    def __init__(self) -> None:
        self._alive: dict[str, dict] = {}

    def start(self) -> None:
        """Takes note of who is alive. Does nothing outside of Ray."""
        if not ray.is_initialized():
            return
        self._job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
        table = state.actors(job_id=self._job)
        self._alive = {key: actor for key, actor in table.items() if actor["State"] == "ALIVE"}

    def died(self) -> str | None:
        """One sentence with the classes and nodes of those that are gone; None while all live."""
        if not self._alive:
            return None
        table = state.actors(job_id=self._job)
        dead = [actor for key, actor in self._alive.items() if key not in table or table[key]["State"] == "DEAD"]
        if not dead:
            return None
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        return f"{len(dead)} of this job's actors died: " + ", ".join(
            sorted({_describe(actor, nodes) for actor in dead})
        )


def _describe(actor: dict, nodes: dict[str, dict]) -> str:
    node = nodes.get(actor["Address"]["NodeID"], {})
    lost = "" if node.get("Alive", True) else ", a node that Ray lost"
    return f"{actor['ActorClassName']} (node {actor['Address']['IPAddress']}{lost})"
