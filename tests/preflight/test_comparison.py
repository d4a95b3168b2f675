"""Nodes compared: every red line names the node, and what to change."""

from dataclasses import replace
from itertools import zip_longest

import pytest

from gtpo_verl.preflight.cluster import RayNode, Survey
from gtpo_verl.preflight.comparison import (
    check_answers,
    check_communication,
    check_gpu_counts,
    check_node,
    check_versions,
)
from gtpo_verl.preflight.findings import Finding, Status, refused
from gtpo_verl.preflight.memory import GIB
from gtpo_verl.preflight.node import NodeFacts

VERSIONS = {"python": "3.11.9", "torch": "2.11.0", "verl": "0.9.1"}
GOOD = NodeFacts(VERSIONS, gpus=[80 * GIB] * 8, shared_memory=64 * GIB, interfaces=["lo", "eth0"])


def nodes(*gpus: int, dead: tuple[int, ...] = (), held: tuple[int, ...] = ()) -> list[RayNode]:
    return [
        RayNode(f"id{i}", f"10.0.0.{i}", f"10.0.0.{i}", number, number - taken, i not in dead)
        for i, (number, taken) in enumerate(zip_longest(gpus, held, fillvalue=0))
    ]


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        ((8, 8), (2, 8)),
        ((0, 8, 8), (2, 8)),  # a head without GPUs
        ((8, 8, 8), (2, 8)),
        ((16,), (2, 8)),  # two groups on one node
        ((1,), (1, 1)),
    ],
)
def test_enough_gpus(gpus: tuple[int, ...], wanted: tuple[int, int]) -> None:
    (finding,) = check_gpu_counts(nodes(*gpus), *wanted)
    assert finding.status is Status.OK


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        ((8,), (2, 8)),
        ((4, 4, 4, 4), (2, 8)),  # as many, but no node has room for a group
        ((8, 7), (2, 8)),
        ((0, 0), (1, 1)),
        ((), (1, 8)),
    ],
)
def test_too_few_gpus(gpus: tuple[int, ...], wanted: tuple[int, int]) -> None:
    (red,) = refused(check_gpu_counts(nodes(*gpus), *wanted))
    assert "trainer.nnodes" in red.key
    assert f"asked for {wanted[0]} nodes with {wanted[1]}" in red.detail


@pytest.mark.parametrize(
    ("gpus", "held", "named"),
    [
        ((8, 8), (0, 4), "hold 4 of 8 on 10.0.0.1"),
        ((8, 8, 8), (8, 0, 1), "hold 8 of 8 on 10.0.0.0, 1 of 8 on 10.0.0.2"),
        ((8, 8, 8), (4, 4, 0), "hold 4 of 8 on 10.0.0.0, 4 of 8 on 10.0.0.1"),  # 16 are free, no node but one has room
    ],
)
def test_gpus_that_another_job_holds(gpus: tuple[int, ...], held: tuple[int, ...], named: str) -> None:
    (red,) = refused(check_gpu_counts(nodes(*gpus, held=held), 2, 8))
    assert named in red.detail
    assert "other jobs" in red.key


def test_gpus_that_another_job_holds_elsewhere() -> None:
    (finding,) = check_gpu_counts(nodes(8, 8, 8, held=(0, 8, 0)), 2, 8)
    assert finding.status is Status.OK


def test_a_dead_node_does_not_count() -> None:
    findings = [*check_gpu_counts(nodes(8, 8, 8, dead=(1,)), 2, 8)]
    assert [(f.status, f.where) for f in findings] == [(Status.WARN, "10.0.0.1"), (Status.OK, "driver")]
    (red,) = refused(check_gpu_counts(nodes(8, 8, dead=(1,)), 2, 8))
    assert "1 with 8" in red.detail


def test_the_same_versions_everywhere() -> None:
    (finding,) = check_versions({"a": GOOD, "b": GOOD}, VERSIONS)
    assert (finding.status, "torch 2.11.0" in finding.detail) == (Status.OK, True)


@pytest.mark.parametrize(
    ("package", "found"),
    [("torch", "2.10.0"), ("python", "3.12.1"), ("verl", "not installed")],
)
def test_another_version_names_node_and_package(package: str, found: str) -> None:
    other = replace(GOOD, versions={**VERSIONS, package: found})
    (red,) = refused(check_versions({"a": GOOD, "b": other}, VERSIONS))
    assert red.where == "b"
    assert red.detail == f"{package} {found}, the driver has {VERSIONS[package]}"
    assert red.key


def test_a_package_that_a_node_says_nothing_about() -> None:
    (red,) = refused(check_versions({"b": replace(GOOD, versions={})}, {"torch": "2.11.0"}))
    assert "not installed" in red.detail


def test_silent_and_unreachable_nodes() -> None:
    survey = Survey(nodes(8, 8), {"a": GOOD, "b": GOOD}, {"c": "no answer"}, [("a", "b", "refused")])
    red = refused(check_answers(survey))
    assert [(f.what, f.where) for f in red] == [("answer", "c"), ("network", "a")]
    assert "b: refused" in red[1].detail
    assert all(finding.key for finding in red)


def test_nodes_that_reach_one_another() -> None:
    (finding,) = check_answers(Survey(nodes(8, 8), {"a": GOOD, "b": GOOD}))
    assert finding.status is Status.OK
    assert list(check_answers(Survey(nodes(8), {"a": GOOD}))) == []  # one node: nothing to reach


def judged(facts: NodeFacts, gpus: int | None = 8, model_given: bool = True) -> list[Finding]:
    return list(check_node("10.0.0.7", facts, model_given, gpus))


def test_no_data_is_not_good_data() -> None:
    grey = {f.what for f in check_node("n", GOOD, True, 8, data_given=False) if f.status is Status.UNKNOWN}
    assert grey == {"data files"}


def test_a_good_node() -> None:
    assert {finding.status for finding in judged(GOOD)} == {Status.OK}


BAD = {
    "plugin": (replace(GOOD, registration="RuntimeError: not active"), "VERL_USE_EXTERNAL_PLUGINS"),
    "model files": (replace(GOOD, model=["/m/model-00002.safetensors: missing"]), "actor_rollout_ref.model.path"),
    "data files": (replace(GOOD, missing_data=["/d/train.parquet"]), "data.train_files"),
    "run folder": (replace(GOOD, run_folder="/runs is not writable"), "gtpo_verl.run_dir"),
    "GPUs": (replace(GOOD, gpus=[80 * GIB] * 7), "trainer.n_gpus_per_node"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_fault_of_a_node(what: str) -> None:
    facts, key = BAD[what]
    (red,) = refused(judged(facts))
    assert (red.what, red.where) == (what, "10.0.0.7")
    assert key in red.key
    problem = facts.registration or facts.run_folder or "".join([*facts.model, *facts.missing_data]) or "7 of 8"
    assert problem in red.detail


def test_no_driver_of_nvidia() -> None:
    (red,) = refused(judged(replace(GOOD, gpus=None)))
    assert "0 of 8" in red.detail
    assert refused(judged(replace(GOOD, gpus=None), gpus=None)) == []


def test_a_tracker_that_only_the_driver_has_is_a_warning() -> None:
    (yellow,) = [f for f in judged(replace(GOOD, missing_modules=["wandb"])) if f.status is not Status.OK]
    assert (yellow.status, yellow.key, "wandb" in yellow.detail) == (Status.WARN, "trainer.logger", True)


def test_little_shared_memory_is_a_warning() -> None:
    findings = judged(replace(GOOD, shared_memory=64 * 2**20))
    assert [(f.what, f.status) for f in findings if f.status is not Status.OK] == [("shared memory", Status.WARN)]


def test_a_model_of_the_hub_is_unknown() -> None:
    assert [f.what for f in judged(GOOD, model_given=False) if f.status is Status.UNKNOWN] == ["model files"]


def test_an_interface_that_a_node_lacks() -> None:
    wrong = replace(GOOD, environment={"NCCL_SOCKET_IFNAME": "ib0"})
    right = replace(wrong, interfaces=["ib0"])
    (red,) = refused(check_communication({"a": right, "b": wrong}))
    assert (red.where, red.key) == ("b", "NCCL_SOCKET_IFNAME")


def test_variables_that_differ_are_a_warning() -> None:
    one, other = (replace(GOOD, environment=environment) for environment in ({"NCCL_IB_DISABLE": "1"}, {}))
    (finding,) = check_communication({"a": one, "b": other})
    assert (finding.status, finding.key) == (Status.WARN, "NCCL_IB_DISABLE")
    assert finding.detail == "NCCL_IB_DISABLE differs: 1 on a; unset on b"
    assert list(check_communication({"a": one, "b": one})) == []


def test_interfaces_may_have_other_names_on_other_machines() -> None:
    one = replace(GOOD, environment={"NCCL_SOCKET_IFNAME": "eth0"})
    other = replace(GOOD, environment={"NCCL_SOCKET_IFNAME": "eno1"}, interfaces=["eno1"])
    assert list(check_communication({"a": one, "b": other})) == []
