"""The sets of runs that this repository ships, and what a manifest says."""

import dataclasses
import functools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from benchmarks.reproduction.__main__ import MANIFESTS
from benchmarks.reproduction.manifest import Manifest
from benchmarks.reproduction.provenance import check, source_digest
from benchmarks.reproduction.results import Results
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.report.figure import colour

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(MANIFESTS.glob("*.yaml"))
SCALES = [(path, scale) for path in SHIPPED for scale in Manifest.read(path).scales]


def write(tmp_path, **changes):
    given = {
        "set": "small",
        "steps": 2,
        "seeds": [1, 2],
        "overrides": ["model=tiny"],
        "runs": {"dapo": {}, "ablation": {"algorithm": "gtpo_v2", "seeds": [2], "overrides": ["a=1"]}},
        "scales": {"cpu": {"cards": 0, "side_by_side": 1, "overrides": ["scale=cpu"]}},
        **changes,
    }
    (tmp_path / "set.yaml").write_text(
        yaml.safe_dump({key: value for key, value in given.items() if value is not None}, sort_keys=False)
    )
    return tmp_path / "set.yaml"


def test_all_runs_of_a_seed_come_before_those_of_the_next(tmp_path):
    manifest = Manifest.read(write(tmp_path))
    planned = list(manifest.planned(manifest.scales["cpu"]))
    assert [run.name for run in planned] == ["dapo-seed1", "dapo-seed2", "ablation-seed2"]
    assert planned[2].overrides == (
        "algorithm=gtpo_v2",
        "model=tiny",
        "scale=cpu",
        "a=1",
        "trainer.project_name=small",
        "trainer.experiment_name=ablation",
        "data.seed=2",
        "trainer.total_training_steps=2",
    )
    assert [run.name for run in manifest.planned(manifest.scales["cpu"], seeds=[2])] == ["dapo-seed2", "ablation-seed2"]
    assert [run.name for run in manifest.planned(manifest.scales["cpu"], runs=["dapo"])] == ["dapo-seed1", "dapo-seed2"]
    twice = manifest.planned(manifest.scales["cpu"], seeds=[2, 1, 2], runs=["dapo", "dapo"])
    assert [run.name for run in twice] == ["dapo-seed2", "dapo-seed1"]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"seeds": [1, 3]}, "seed 3; it has 1, 2"),
        ({"runs": ["dpo"]}, "run dpo"),
        ({"runs": ["ablation"], "seeds": [1]}, "seed 1 of ablation; it has 2"),
    ],
)
def test_what_the_set_does_not_have_is_named(tmp_path, chosen, words):
    manifest = Manifest.read(write(tmp_path))
    with pytest.raises(ValueError, match=f"small has no {words}"):
        list(manifest.planned(manifest.scales["cpu"], **chosen))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": None}, "steps"),
        ({"scales": None}, "scales"),
        ({"sede": [1]}, "sede"),
        ({"runs": {"dapo": {"sedes": [1]}}}, "runs.dapo: unknown sedes"),
        ({"scales": {"cpu": {"kards": 0}}}, "kards"),
        ({"sources": "sorts"}, "sources: no list"),
        ({"alike": "c1a7627592afd9c4"}, "alike: no list"),
        ({"seeds": 8}, "seeds: no list"),
        ({"overrides": "a=1"}, "overrides: no list"),
        ({"prepare": "prepare arithmetic"}, "prepare: no list"),
        ({"runs": {"dapo": {"seeds": 8}}}, "runs.dapo.seeds: no list"),
        ({"runs": {"dapo": {"overrides": "a=1"}}}, "runs.dapo.overrides: no list"),
        ({"scales": {"cpu": {"cards": 0, "side_by_side": 1, "overrides": "a=1"}}}, "scales.cpu.overrides: no list"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path, changes, words):
    with pytest.raises(ValueError, match=rf"set\.yaml: .*{words}"):
        Manifest.read(write(tmp_path, **changes))


@pytest.mark.parametrize(("path", "scale"), SCALES, ids=lambda value: getattr(value, "stem", value))
def test_every_run_of_every_scale_composes(path, scale):
    manifest = Manifest.read(path)
    first: dict = {}
    for run in manifest.planned(manifest.scales[scale]):
        first.setdefault(run.name.rpartition("-")[0], run)
    assert list(first) == list(manifest.runs)
    for name, run in first.items():
        config = composed(run.overrides)
        assert config.trainer.total_training_steps == manifest.steps
        assert config.trainer.experiment_name == name
        assert (config.trainer.device == "cpu") == (manifest.scales[scale].cards == 0)
        # What is compared is the algorithm: all see the same prompts in the same order.
        assert config.data.seed == config.actor_rollout_ref.rollout.seed == run_seed(run)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_algorithm_of_a_set_has_a_colour_of_its_own(path):
    runs = Manifest.read(path).runs
    assert len({colour(index) for index in range(len(runs))}) == len(runs)


def accepted(manifest, folder):
    """Whether runs may be added to a folder of results, with this code, in an environment of other versions."""
    given = dataclasses.replace(manifest, versions={}, revision=None)
    check(given, source_digest(), Results(folder), list(manifest.planned(next(iter(manifest.scales.values())))))


def test_missing_runs_can_be_added_to_those_that_are_published(tmp_path):
    shutil.copy(ROOT / "benchmarks/results/smollm2/runs.json", tmp_path)
    accepted(Manifest.read(MANIFESTS / "smollm2.yaml"), tmp_path)


BUILT_ON = re.compile(r"DAPO's runs are those of `(\w+)`")


@pytest.mark.parametrize(
    "path", [path for path in SHIPPED if BUILT_ON.search(path.read_text())], ids=lambda it: it.stem
)
def test_runs_that_are_to_be_copied_from_another_set_are_accepted(path, tmp_path):
    of = BUILT_ON.search(path.read_text())[1]
    records = json.loads((ROOT / "benchmarks/results" / of / "runs.json").read_text())
    copied = {name: facts for name, facts in records.items() if name.startswith("dapo-")}
    (tmp_path / "runs.json").write_text(json.dumps(copied))
    manifest, other = Manifest.read(path), Manifest.read(MANIFESTS / f"{of}.yaml")
    assert set(copied) == {f"dapo-seed{seed}" for seed in manifest.seeds}
    assert manifest.versions == other.versions
    accepted(manifest, tmp_path)
    # But for the names, the runs are the same.
    commands = [
        [
            [one for one in run.overrides if not one.startswith("trainer.project_name")]
            for run in one.planned(one.scales["cpu"], runs=["dapo"])
        ]
        for one in (manifest, other)
    ]
    assert commands[0] == commands[1]


@functools.cache
def composed(overrides):
    return compose_config(overrides)


def run_seed(run):
    return int(run.name.rpartition("seed")[2])


def test_every_scale_of_the_script_is_that_of_a_set_that_needs_no_other():
    usage = re.search(r"usage: scripts/reproduce\.sh (\S+)", (ROOT / "scripts/reproduce.sh").read_text())
    first = {scale: path.stem for path, scale in reversed(SCALES)}
    assert first == {scale: "arithmetic" if scale == "cpu" else "smollm2" for scale in usage[1].split("|")}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_versions_are_those_that_the_package_pins(path):
    manifest = Manifest.read(path)
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert manifest.versions
    for package, version in manifest.versions.items():
        assert f'"{package}=={version}"' in pyproject


def test_a_scale_that_no_manifest_has_is_one_line():
    result = subprocess.run([ROOT / "scripts/reproduce.sh", "5gpu"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stderr.startswith("error: no scale 5gpu in ")
    assert len(result.stderr.splitlines()) == 1


def test_the_experiment_that_is_written_down_is_the_one_that_is_run():
    written = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/experiment.md").read_text(), re.DOTALL)
    assert written[1] == (MANIFESTS / "smollm2.yaml").read_text()
