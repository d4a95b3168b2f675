"""Notices that an actor of this job died, whether or not its result is awaited."""

import ray
from ray._private import state  # the table of actors without the dashboard; `ray.util.state` needs one


class ActorWatch:
    """Compares the job's actors with those that were alive before."""

    def __init__(self) -> None:
        self._known: dict[str, dict] = {}

    def start(self) -> None:
        """Takes note of who is there, dead or alive. Does nothing outside of Ray."""
        if not ray.is_initialized():
            return
        self._job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
        self._known = dict(state.actors(job_id=self._job))

    def _remember(self, table: dict[str, dict]) -> None:
        # Not those first seen dead: who was born and died between two looks stays a loss at the next.
        for key, actor in table.items():
            if actor["State"] != "DEAD" and self._known.get(key, {}).get("State") not in ("ALIVE", "DEAD"):
                self._known[key] = actor

    def died(self) -> str | None:
        """One sentence with the classes and nodes of those that are gone; None while all live."""
        if not ray.is_initialized():
            return None
        table = state.actors(job_id=self._job)
        dead = [actor for key, actor in (self._known | table).items() if _is_lost(self._known.get(key), table.get(key))]
        self._remember(table)  # some start while the first responses are awaited
        if not dead:
            return None
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        return f"{len(dead)} of this job's actors died: " + ", ".join(
            sorted({_describe(actor, nodes) for actor in dead})
        )


def _is_lost(before: dict | None, now: dict | None) -> bool:
    """Whether an actor died that nobody ended. One that Ray has started again has forgotten what it was asked for."""
    was = "new" if before is None else before["State"]
    if was == "DEAD":
        return False
    if now is None:
        return True
    if now["State"] != "DEAD":
        return before is not None and was == now["State"] == "ALIVE" and now["Pid"] != before["Pid"]
    cause = now["DeathCause"].actor_died_error_context
    return cause.reason in (cause.WORKER_DIED, cause.NODE_DIED) and "INTENDED" not in cause.error_message


def _describe(actor: dict, nodes: dict[str, dict]) -> str:
    node = nodes.get(actor["Address"]["NodeID"], {})
    lost = "" if node.get("Alive", True) else ", a node that Ray lost"
    return f"{actor['ActorClassName']} (node {actor['Address']['IPAddress']}{lost})"
