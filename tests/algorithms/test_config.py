"""The configuration: what it is read from, and what is refused by name."""

import dataclasses

import pytest
import torch
from batches import flat, mixed_rows
from omegaconf import OmegaConf

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig, compute_advantages, gtpo_section, unused_keys
from gtpo_verl.algorithms.config import ClipConfig, LengthPenaltyConfig

BATCH = torch.ones(3), torch.tensor([0, 1, 3]), torch.tensor([0, 0]), torch.tensor([True, False])


@pytest.mark.parametrize(
    "given",
    [
        {"alpha": 0.2, "clip": {"kappa": 1.5}},
        OmegaConf.create({"alpha": 0.2, "clip": {"kappa": 1.5}}),
        GtpoConfig(alpha=0.2, clip=ClipConfig(kappa=1.5)),
        dataclasses.make_dataclass("Other", [("alpha", float, 0.2), ("clip", dict, None)])(clip={"kappa": 1.5}),
    ],
    ids=["dict", "DictConfig", "GtpoConfig", "dataclass"],
)
def test_forms(given):
    config = GtpoConfig.from_any(given)
    assert (config.alpha, config.clip.kappa, config.clip.alpha1, config.beta) == (0.2, 1.5, 0.9, 0.1)


def test_none_is_the_defaults():
    assert GtpoConfig.from_any(None) == GtpoConfig.from_any({}) == GtpoConfig()


def test_interpolations_are_resolved():
    config = OmegaConf.create({"gtpo": {"alpha": "${weight}"}, "weight": 0.3})
    assert GtpoConfig.from_any(gtpo_section(config)).alpha == 0.3


def test_an_unquoted_on_in_yaml():
    config = OmegaConf.create("length_penalty: {enable: true, max_length: 8, buffer: 4, on: all}")
    assert GtpoConfig.from_any(config).length_penalty.on == "all"


@pytest.mark.parametrize(
    "algorithm",
    [
        {"gtpo": {"alpha": 0.4}},
        OmegaConf.create({"gtpo": {"alpha": 0.4}}),
        dataclasses.make_dataclass("Algorithm", [("gtpo", dict)])({"alpha": 0.4}),
    ],
    ids=["dict", "DictConfig", "dataclass"],
)
def test_section(algorithm):
    assert GtpoConfig.from_any(gtpo_section(algorithm)).alpha == 0.4


@pytest.mark.parametrize("algorithm", [None, {}, OmegaConf.create({"gamma": 1.0}), object()])
def test_no_section(algorithm):
    assert gtpo_section(algorithm) is None


REFUSED = {
    "alpha": [-0.1, float("nan"), float("inf"), "0.1", None, True],
    "beta": [-0.1],
    "alpha1": [0.0, -1.0],
    "alpha2": [-0.1],
    "beta1": [0.0],
    "beta2": [-0.1],
    "entropy_floor": [0.0, -1e-6],
    "epsilon": [0.0],
    "relative_to": ["token", None],
    "sequence_entropy": ["harmonic"],
    "uniform_groups": ["drop"],
    "sign_guard": ["yes", 1],
    "normalize": [{"scope": "prompt"}, {"over": "sequence"}, {"unknown": 1}, None, 3],
    "success": [{"key": ""}, {"key": None}, {"threshold": "half"}],
    "clip": [
        {"enable": True, "alpha1": 0.9, "alpha2": 0.2},
        {"enable": True, "kappa": 1.0},
        {"enable": True, "alpha1": 0.3, "alpha2": 0.7, "kappa": 3.0},
        {"enable": "on"},
        {"alpha3": 1.0},
    ],
    "length_penalty": [
        {"enable": True, "max_length": 8, "buffer": 8},
        {"enable": True, "max_length": 8, "buffer": 0},
        {"enable": True, "denominator": "length"},
        {"enable": True, "on": "failure"},
        {"enable": True, "kind": "linear"},
        {"kind": None},
        {"max_length": 8.5},
        {"max_len": 8},
    ],
    "gamma": [1.0],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values])
def test_refused_by_name(key, value):
    with pytest.raises(ValueError, match=rf"algorithm\.gtpo\.{key}"):
        GtpoConfig.from_any({key: value})


def test_the_full_name_of_a_nested_key():
    with pytest.raises(ValueError, match=r"algorithm\.gtpo\.clip\.kappa must be above 1, not 0\.5"):
        GtpoConfig.from_any({"clip": {"enable": True, "kappa": 0.5}})
    with pytest.raises(ValueError, match=r"unknown.*algorithm\.gtpo\.clip\.gamma.*alpha1"):
        GtpoConfig.from_any({"clip": {"gamma": 0.5}})


def test_not_a_mapping():
    with pytest.raises(ValueError, match=r"algorithm\.gtpo must be a mapping"):
        GtpoConfig.from_any(0.1)


def test_ranges_of_a_disabled_part_are_not_checked():
    GtpoConfig.from_any({"clip": {"enable": False, "kappa": 0.5}, "length_penalty": {"buffer": -1}})


def test_a_clip_that_only_the_estimator_turns_on_is_checked_then():
    options = {"clip": {"kappa": 0.5}}
    compute_advantages("gtpo_v1", *BATCH, options)
    with pytest.raises(ValueError, match=r"algorithm\.gtpo\.clip\.kappa"):
        compute_advantages("gtpo_v2", *BATCH, options)


def test_the_length_penalty_needs_a_maximum():
    options = {"length_penalty": {"enable": True}}
    with pytest.raises(ValueError, match=r"algorithm\.gtpo\.length_penalty\.max_length"):
        compute_advantages("gtpo_v1", *BATCH, options)
    compute_advantages("grpo_s_v1", *BATCH, options)  # which does not use it
    compute_advantages("gtpo_v1", *BATCH, {"length_penalty": {"enable": True, "kind": "grop"}})  # nor does this kind


def test_the_maximum_can_be_filled_in():
    config = GtpoConfig.from_any({"length_penalty": {"enable": True, "buffer": 4}})
    filled = dataclasses.replace(config, length_penalty=dataclasses.replace(config.length_penalty, max_length=8))
    assert compute_advantages("gtpo_v1", *BATCH, filled).advantages.shape == (3,)
    with pytest.raises(ValueError, match="buffer"):
        dataclasses.replace(config, length_penalty=LengthPenaltyConfig(enable=True, buffer=4, max_length=4))


@pytest.mark.parametrize(
    ("estimator", "options", "unused"),
    [
        ("gtpo_v1", {}, []),
        ("gtpo_v1", {"alpha": 0.3, "relative_to": "group", "length_penalty": {"enable": True}}, []),
        ("gtpo_v1", {"beta": 0.2, "normalize": {"over": "all"}}, ["beta", "normalize.over"]),
        ("gtpo_v1", {"clip": {"enable": True}, "alpha": 0.3}, ["alpha"]),
        ("gtpo_v1", {"clip": {"kappa": 1.5}}, ["clip.kappa"]),
        ("gtpo_v2", {"clip": {"kappa": 1.5}, "alpha": 0.3}, ["alpha"]),
        ("gtpo_v2", {"clip": {"enable": False}, "alpha": 0.3}, []),
        ("gtpo_v3", {"clip": {"enable": True}, "sequence_entropy": "geometric"}, ["clip.enable", "sequence_entropy"]),
        ("grpo_s_v1", {"relative_to": "group", "length_penalty": {"buffer": 32}}, ["relative_to"]),
        ("grpo_s_v1", {"length_penalty": {"enable": True}}, ["length_penalty.enable"]),
        ("gtpo_v1", {"length_penalty": {"kind": "grop"}}, ["length_penalty.kind"]),
        ("gtpo_v1", {"length_penalty": {"enable": True, "kind": "grop", "buffer": 32}}, []),
        (
            "gtpo_v1",
            {"length_penalty": {"enable": True, "kind": "grop", "on": "all", "denominator": "buffer"}},
            ["length_penalty.denominator", "length_penalty.on"],
        ),
        ("grpo_s_v3", {"beta": 0.2, "beta1": 2.0, "normalize": {"over": "all"}}, ["beta"]),
    ],
)
def test_unused_keys(estimator, options, unused):
    found = unused_keys(estimator, GtpoConfig.from_any(options))
    assert sorted(found) == [f"algorithm.gtpo.{key}" for key in unused]


@pytest.mark.parametrize("over", ["all", "polarity"])
@pytest.mark.parametrize("estimator", ["gtpo_v1", "grpo_s_v1"])
def test_the_first_versions_do_not_use_over(estimator, over):
    with_it = compute_advantages(estimator, *BATCH, {"normalize": {"over": over}}).advantages
    assert torch.equal(with_it, compute_advantages(estimator, *BATCH).advantages)


CHANGES = {
    "alpha": 0.7,
    "beta": 0.7,
    "alpha1": 2.0,
    "alpha2": 0.7,
    "beta1": 2.0,
    "beta2": 0.7,
    "clip.enable": True,
    "length_penalty.enable": True,
    "relative_to": "response",
    "sequence_entropy": "geometric",
    "normalize.over": "polarity",
    "normalize.scope": "batch",
    "uniform_groups": "keep",
    "epsilon": 0.5,
}


@pytest.mark.parametrize("key", CHANGES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_key_is_called_unused_just_when_it_changes_nothing(estimator, key):
    rows = mixed_rows(2, groups=4)
    rows += [{"uid": "uniform", "success": True, "entropy": nats} for nats in ([0.1, 2.0], [0.3, 0.2, 0.9])]
    # Clip is off, as only then alpha is used; the length penalty, once on, needs a maximum.
    before = OmegaConf.create({"clip": {"enable": False}, "length_penalty": {"max_length": 10, "buffer": 8}})
    after = before.copy()
    OmegaConf.update(after, key, CHANGES[key], force_add=True)
    same = torch.equal(*(compute_advantages(estimator, *flat(rows), options).advantages for options in (before, after)))
    assert same == (f"algorithm.gtpo.{key}" in unused_keys(estimator, GtpoConfig.from_any(after)))
