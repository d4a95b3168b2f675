"""The only module that talks to Ray: asks every node about itself, all at once.

A node that fails or does not answer in time is an answer about that node, never an error or a hang.
"""

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gtpo_verl.configuration.ray_cluster import cluster_address
from gtpo_verl.preflight.network import Listener, reach
from gtpo_verl.preflight.node import NodeFacts, Request, collect, existing_folder

# Seconds for a node's whole answer: it starts a Python process and imports verl, from a file system shared by all.
_ANSWER_TIMEOUT = 180.0
_CONNECT_TIMEOUT = 10.0
_CONNECTIONS_AT_ONCE = 32


@dataclass(frozen=True)
class RayNode:
    """A node as Ray lists it. `name` is unique in the cluster: its address, with the id's start where nodes share one.

    Attributes:
        gpus: the resource GPU, which on a CPU is a rank's place.
        free: those of them that no job holds.
    """

    id: str
    name: str
    address: str
    gpus: int
    free: int
    alive: bool = True


@dataclass
class Survey:
    """What came back.

    Attributes:
        facts: by node name.
        silent: by node name, why there is no answer.
        unreachable: (from, to, why) for every pair of nodes without a TCP connection.
    """

    nodes: list[RayNode]
    facts: dict[str, NodeFacts] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    unreachable: list[tuple[str, str, str]] = field(default_factory=list)


class Probe:
    """The actor that looks at one node."""

    def collect(self, request: Request) -> NodeFacts:
        return collect(request)

    def listen(self) -> tuple[int, bytes]:
        self.listener = Listener()
        return self.listener.port, self.listener.answer

    def reach(self, others: Mapping[str, tuple[str, int, bytes]], timeout: float) -> dict[str, str]:
        """By node name, why it cannot be reached."""
        from concurrent.futures import ThreadPoolExecutor

        def one(other: tuple[str, int, bytes]) -> str | None:
            address, port, answer = other
            return reach(address, port, answer, timeout)

        with ThreadPoolExecutor(max_workers=_CONNECTIONS_AT_ONCE) as pool:
            problems = dict(zip(others, pool.map(one, others.values()), strict=True))
        return {name: problem for name, problem in problems.items() if problem is not None}


@contextmanager
def connection(config: DictConfig) -> Iterator[bool]:
    """Joins the Ray cluster that the job would join; false where there is none and the job starts a Ray of its own.

    Raises:
        ConnectionError: the cluster that is named does not answer.
    """
    import ray

    address = cluster_address(config)
    if address is None:
        yield False
        return
    if address.startswith("http"):
        raise ConnectionError(
            f"{address} is the cluster's job server; run this as a job: "
            f"ray job submit --address {address} -- gtpo-verl preflight ..."
        )
    if ray.is_initialized():
        yield True
        return
    _refuse_closed_port(address)
    # The job's own variables decide what its workers see (VERL_PLATFORM, NCCL_...).
    variables = {name: os.environ[name] for name in config.gtpo_verl.env if name in os.environ}
    environment: dict[str, Any] = {"env_vars": variables}
    try:
        ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConnectionError(f"{address}: {error}") from error
    try:
        yield True
    finally:
        ray.shutdown()


def _refuse_closed_port(address: str) -> None:
    """Ray itself tries for many minutes where nothing listens. What Ray finds by itself (`auto`) is left to it.

    Raises:
        ConnectionError: naming the address.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(f"no Ray cluster at {address} ({error.strerror or error})") from error


def survey(request: Request) -> Survey:
    """Asks all living nodes of the cluster that this process has joined, in parallel.

    Raises:
        OSError: the driver itself cannot write where the run's files go.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    result = Survey(_nodes())
    living = [node for node in result.nodes if node.alive]
    actor: Any = ray.remote(num_cpus=0, max_restarts=0)(Probe)
    probes = {}
    for node in living:
        here = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        probes[node.name] = actor.options(scheduling_strategy=here).remote()
    try:
        with _marker(Path(request.checkpoints)) as marker:
            marked = replace(request, marker=marker)
            result.facts = _ask(probes, lambda probe: probe.collect.remote(marked), _ANSWER_TIMEOUT, result.silent)
        answering = {name: probes[name] for name in result.facts}
        ports = _ask(answering, lambda probe: probe.listen.remote(), _ANSWER_TIMEOUT, result.silent)
        targets = {node.name: (node.address, *ports[node.name]) for node in living if node.name in ports}
        patience = _CONNECT_TIMEOUT * (1 + len(targets) / _CONNECTIONS_AT_ONCE) + _ANSWER_TIMEOUT
        reached = _ask(
            {name: answering[name] for name in targets},
            lambda probe: probe.reach.remote(targets, _CONNECT_TIMEOUT),
            patience,
            result.silent,
        )
        result.unreachable = [(name, other, why) for name, them in reached.items() for other, why in them.items()]
    finally:
        for probe in probes.values():
            ray.kill(probe)
    return result


def _nodes() -> list[RayNode]:
    """Of the cluster that this process has joined, dead ones too, by name."""
    import ray

    listed, available = ray.nodes(), _available()
    addresses = [node["NodeManagerAddress"] for node in listed]
    nodes = []
    for node in listed:
        id, address = node["NodeID"], node["NodeManagerAddress"]
        name = address if addresses.count(address) == 1 else f"{address}/{id[:6]}"
        gpus, free = (int(resources.get("GPU", 0)) for resources in (node["Resources"], available.get(id, {})))
        nodes.append(RayNode(id, name, address, gpus, free, node["Alive"]))
    return sorted(nodes, key=lambda node: node.name)


def _available() -> dict[str, dict[str, float]]:
    """By node id, the resources that no job holds; a node without one of them, and a dead node, has no entry for it."""
    import ray
    import ray.util.client
    from ray._private.state import available_resources_per_node  # only the sum over all nodes is public

    if ray.util.client.ray.is_connected():  # `ray://`: the cluster's state is known to processes inside it alone
        inside: Any = ray.remote(num_cpus=0)(available_resources_per_node)
        return ray.get(inside.remote(), timeout=_ANSWER_TIMEOUT)
    return available_resources_per_node()


@contextmanager
def _marker(folder: Path) -> Iterator[str]:
    """Path of a file in `folder`, or in the nearest above it that exists, which is there while the block runs."""
    marker = existing_folder(folder) / f".gtpo-verl-{uuid.uuid4().hex}"
    marker.touch()
    try:
        yield str(marker)
    finally:
        marker.unlink(missing_ok=True)


def _ask(probes: Mapping[str, Any], call: Callable, timeout: float, silent: dict[str, str]) -> dict[str, Any]:
    """Answers by node name; nodes that fail or are late go into `silent`."""
    import ray

    deadline = time.monotonic() + timeout
    references = {call(probe): name for name, probe in probes.items()}
    answers = {}
    waiting = list(references)
    while waiting and (left := deadline - time.monotonic()) > 0:
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=left)
        for reference in ready:
            name = references[reference]
            try:
                answers[name] = ray.get(reference)
            except Exception as error:  # a node that dies, the plugin absent there
                silent[name] = f"{type(error).__name__}: {_last_line(error)}"
    for reference in waiting:
        silent[references[reference]] = f"no answer within {timeout:g} s"
    return answers


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else ""
