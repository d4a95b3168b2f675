"""What the nodes said, compared with each other and with what the configuration asks for. Pure functions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gtpo_verl.preflight.cluster import RayNode, Survey
from gtpo_verl.preflight.findings import Finding, Status
from gtpo_verl.preflight.memory import GIB
from gtpo_verl.preflight.network import interface_problems
from gtpo_verl.preflight.node import NodeFacts

# NCCL and vLLM's workers exchange through /dev/shm; the 64 MiB that containers start with is too little.
_LEAST_SHARED_MEMORY = GIB
_SIZE_KEYS = "trainer.nnodes, trainer.n_gpus_per_node"


def check_gpu_counts(nodes: Sequence[RayNode], wanted_nodes: int, wanted_gpus: int) -> Iterator[Finding]:
    """Whether enough living nodes have enough GPUs, whether another job holds them, and which nodes are dead."""
    for node in nodes:
        if not node.alive:
            yield Finding("Ray node", Status.WARN, "Ray lists it as dead", node.name)
    living = [node for node in nodes if node.alive]
    counts = Counter(node.gpus for node in living)
    seen = ", ".join(f"{count} with {gpus}" for gpus, count in sorted(counts.items(), reverse=True)) or "none"
    detail = f"asked for {wanted_nodes} nodes with {wanted_gpus} each; living nodes: {seen}"
    # verl places a group of ranks wherever a node has room for it, two on a node with twice the GPUs.
    if sum(node.gpus // wanted_gpus for node in living) < wanted_nodes:
        yield Finding("Ray GPUs", Status.FAIL, detail, key=_SIZE_KEYS)
    elif sum(node.free // wanted_gpus for node in living) < wanted_nodes:
        # verl counts those of the whole cluster, and would wait for ever for a node with room for a group.
        busy = [node for node in living if node.free < node.gpus]
        held = ", ".join(f"{node.gpus - node.free} of {node.gpus} on {node.name}" for node in busy)
        yield Finding("Ray GPUs", Status.FAIL, f"{detail}; other jobs hold {held}", key="ray job stop (other jobs)")
    else:
        yield Finding("Ray GPUs", Status.OK, detail)


def check_answers(survey: Survey) -> Iterator[Finding]:
    """Nodes that gave no answer, and pairs without a connection."""
    for name, why in survey.silent.items():
        yield Finding("answer", Status.FAIL, why, name, "that Ray node: gtpo-verl installed there, ray status")
    for name, other, why in survey.unreachable:
        yield Finding("network", Status.FAIL, f"{other}: {why}", name, "the firewall between them")
    if len(survey.facts) > 1 and not survey.unreachable and not survey.silent:
        yield Finding("network", Status.OK, f"{len(survey.facts)} nodes reach one another by TCP")


def check_versions(facts: Mapping[str, NodeFacts], reference: Mapping[str, str]) -> list[Finding]:
    """One finding for every node and package that differs from the driver's.

    Args:
        reference: the driver's versions.
    """
    findings = []
    for name, node in facts.items():
        for package, expected in reference.items():
            found = node.versions.get(package, "not installed")
            if found != expected:
                detail = f"{package} {found}, the driver has {expected}"
                findings.append(Finding("versions", Status.FAIL, detail, name, "that node's Python environment"))
    if findings or not facts:
        return findings
    same = ", ".join(f"{package} {version}" for package, version in reference.items())
    return [Finding("versions", Status.OK, f"{len(facts)} node(s) have {same}")]


def check_communication(facts: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Variables of NCCL and gloo: the interfaces they name exist, and they say the same on every node."""
    values: dict[str, dict[str, list[str]]] = {}
    for name, node in facts.items():
        for problem in interface_problems(node.environment, node.interfaces):
            yield Finding("interfaces", Status.FAIL, problem, name, problem.partition("=")[0])
        for variable in {variable for other in facts.values() for variable in other.environment}:
            value = node.environment.get(variable, "unset")
            values.setdefault(variable, {}).setdefault(value, []).append(name)
    for variable, by_value in sorted(values.items()):
        # Interfaces may be called differently on different machines; the check above has looked at each.
        if len(by_value) > 1 and not variable.endswith("_IFNAME"):
            listed = "; ".join(f"{value} on {', '.join(names)}" for value, names in sorted(by_value.items()))
            yield Finding("NCCL variables", Status.WARN, f"{variable} differs: {listed}", key=variable)


def check_node(
    name: str, facts: NodeFacts, model_given: bool, gpus: int | None, data_given: bool = True
) -> Iterator[Finding]:
    """What one node said about itself.

    Args:
        model_given: whether the model is a folder, that the node has looked at.
        gpus: how many NVIDIA GPUs it must have; None: none is needed there.
        data_given: whether there are data files to look for.
    """

    def judge(what: str, problem: str | None, success: str, key: str) -> Finding:
        if problem:
            return Finding(what, Status.FAIL, problem, name, key)
        return Finding(what, Status.OK, success, name)

    yield judge(
        "plugin", facts.registration, "registered with verl", "VERL_USE_EXTERNAL_PLUGINS, pip install gtpo-verl"
    )
    if model_given:
        yield judge("model files", "; ".join(facts.model), "whole", "actor_rollout_ref.model.path")
    else:
        yield Finding("model files", Status.UNKNOWN, "the model is no folder", name)
    if data_given:
        missing = ", ".join(facts.missing_data)
        problem = f"no such file: {missing}" if missing else None
        yield judge("data files", problem, "there", "data.train_files, data.val_files")
    else:
        yield Finding("data files", Status.UNKNOWN, "none are given", name)
    if facts.missing_modules:
        # The driver has them, and Ray prefers its node for the trainer, but may place it anywhere.
        detail = f"not installed: {', '.join(facts.missing_modules)}; the trainer may be placed there"
        yield Finding("trackers", Status.WARN, detail, name, "trainer.logger")
    yield judge("run folder", facts.run_folder, "the driver's, and writable", "gtpo_verl.run_dir")
    if gpus is not None:
        found = len(facts.gpus or [])
        problem = None if found >= gpus else f"nvidia-smi finds {found} of {gpus}"
        yield judge("GPUs", problem, str(found), "trainer.n_gpus_per_node")
    if facts.shared_memory is not None and facts.shared_memory < _LEAST_SHARED_MEMORY:
        detail = f"{facts.shared_memory / GIB:.2f} GiB in /dev/shm, at least 1 is wanted"
        yield Finding("shared memory", Status.WARN, detail, name, "--shm-size of the container")
