"""The scripts that launch a cluster's runs, up to the point where they need a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "scripts").rglob("*.sh"), *(ROOT / "scripts").rglob("*.sbatch")])
RUNS = [path for path in SCRIPTS if path.name.startswith("run_")]
PATHS = {"MODEL_PATH": "/models/qwen", "TRAIN_FILE": "/data/train.parquet", "VAL_FILE": "/data/aime24.parquet"}


def run(script: Path, *overrides: str, **variables: str) -> subprocess.CompletedProcess:
    """With a shell's bare environment, from another folder."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/nonexistent", **variables}
    return subprocess.run(
        [str(script), *overrides], cwd="/", env=environment, capture_output=True, text=True, timeout=300
    )


def resolved(result: subprocess.CompletedProcess) -> dict:
    """The YAML that a dry run prints, before the preflight's table."""
    return yaml.safe_load(result.stdout.partition("\n...\n")[0])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_is_silent(script: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    result = subprocess.run([shellcheck, script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert "\nset -euo pipefail\n" in script.read_text()


def test_every_method_of_the_comparison_has_a_script() -> None:
    methods = {"dapo", "gtpo_v1", "gtpo_v2", "gtpo_v3", "grpo_s_v1", "grpo_s_v2"}
    assert {path.name for path in RUNS} == {f"run_{method}_qwen2.5_32b.sh" for method in methods}


@pytest.mark.slow
@pytest.mark.parametrize("script", RUNS, ids=lambda path: path.name)
def test_dry_run_needs_nothing_and_starts_nothing(script: Path) -> None:
    result = run(script, "trainer.total_training_steps=7", "scale=32b_8x8", DRY_RUN="1")
    assert result.returncode == 0, result.stderr
    config = resolved(result)
    assert config["trainer"]["experiment_name"] == script.name.removeprefix("run_").removesuffix("_qwen2.5_32b.sh")
    assert (config["trainer"]["nnodes"], config["trainer"]["total_training_steps"]) == (8, 7)
    assert config["actor_rollout_ref"]["model"]["path"] is None
    assert config["data"]["train_batch_size"] == 512
    preflight = result.stdout.partition("\n...\n")[2]
    assert "32,763,876,352 parameters" in preflight
    (nodes,) = [line for line in preflight.splitlines() if "│ Ray nodes " in line]
    assert "│ unknown │" in nodes


ODD = "/mnt/a b/it's,=1"


@pytest.fixture(scope="module")
def red() -> subprocess.CompletedProcess:
    """A dry run of odd paths and of a budget that is too small."""
    paths = {**PATHS, "MODEL_PATH": ODD, "RUNS_DIR": "/mnt/runs dir"}
    return run(RUNS[0], "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000", DRY_RUN="1", **paths)


def test_dry_run_fails_where_the_preflight_is_red(red: subprocess.CompletedProcess) -> None:
    assert red.returncode == 1
    assert resolved(red)["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"] == 1000
    (line,) = [line for line in red.stdout.splitlines() if "│ fail " in line]
    assert "token budget, update" in line


def test_dry_run_passes_paths_as_they_are(red: subprocess.CompletedProcess) -> None:
    config = resolved(red)
    assert config["actor_rollout_ref"]["model"]["path"] == ODD
    assert config["data"]["train_files"] == PATHS["TRAIN_FILE"]
    assert config["gtpo_verl"]["run_dir"] == "/mnt/runs dir/dapo-math/dapo-seed1"


@pytest.mark.parametrize("missing", ["MODEL_PATH", "TRAIN_FILE", "VAL_FILE", "RUNS_DIR", "RAY_ADDRESS"])
def test_names_the_variable_that_is_missing(missing: str) -> None:
    variables = {**PATHS, "RUNS_DIR": "/mnt/runs", "RAY_ADDRESS": "http://head:8265"}
    del variables[missing]
    result = run(RUNS[0], **variables)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {missing} is not set")


def test_a_run_dir_of_its_own_takes_the_place_of_runs_dir() -> None:
    own = {**PATHS, "RAY_ADDRESS": "http://127.0.0.1:1"}
    assert "RUNS_DIR" not in run(RUNS[0], "gtpo_verl.run_dir=/mnt/runs/mine", **own).stderr
    # A task's model and data are prepared in a cache, which is under RUNS_DIR.
    prepared = run(RUNS[0], "gtpo_verl.run_dir=/mnt/runs/mine", "model=smollm2", "scale=smollm2_1gpu", **own)
    assert prepared.stderr.startswith("error: RUNS_DIR is not set; it gives gtpo_verl.cache_dir")


def test_a_dry_run_of_0_is_none() -> None:
    assert run(RUNS[0], DRY_RUN="0").stderr.startswith("error: MODEL_PATH is not set")


@pytest.mark.parametrize("variable", ["MODEL_PATH", "TRAIN_FILE", "VAL_FILE", "RUNS_DIR"])
def test_refuses_a_path_of_this_machine_alone(variable: str) -> None:
    variables = {**PATHS, "RUNS_DIR": "/mnt/runs", "RAY_ADDRESS": "http://head:8265", variable: "data/here"}
    result = run(RUNS[0], **variables)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {variable}=data/here is not an absolute path")


def test_refuses_a_wheel_that_is_not_there() -> None:
    variables = {**PATHS, "RUNS_DIR": "/mnt/runs", "RAY_ADDRESS": "http://head:8265"}
    result = run(RUNS[0], GTPO_VERL_WHEEL="/nowhere/x.whl", **variables)
    assert result.returncode == 1
    assert "GTPO_VERL_WHEEL=/nowhere/x.whl: no such file" in result.stderr


def test_cluster_definitions_have_the_nodes_of_the_default_scale() -> None:
    """The run scripts' default, 32b_16x8; and what is mounted and checked is named alike."""
    scale = yaml.safe_load((ROOT / "configs/scale/32b_16x8.yaml").read_text())["trainer"]
    kuberay = yaml.safe_load((ROOT / "scripts/kuberay/cluster.yaml").read_text())["spec"]
    (workers,) = kuberay["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert workers["replicas"] == scale["nnodes"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(scale["n_gpus_per_node"])
    sky = yaml.safe_load((ROOT / "scripts/skypilot/train.yaml").read_text())
    assert sky["num_nodes"] == scale["nnodes"]
    assert sky["resources"]["accelerators"].endswith(f":{scale['n_gpus_per_node']}")
    assert {*PATHS, "RUNS_DIR"} <= sky["envs"].keys()
    assert (ROOT / sky["envs"]["SCRIPT"]).exists()
    sbatch = (ROOT / "scripts/slurm/train.sbatch").read_text()
    assert f"#SBATCH --nodes={scale['nnodes']}\n#SBATCH --ntasks-per-node=1" in sbatch
    assert f"#SBATCH --gpus-per-node={scale['n_gpus_per_node']}" in sbatch


def test_versions_of_ray_agree() -> None:
    (locked,) = [line for line in (ROOT / "requirements/cpu.txt").read_text().splitlines() if line.startswith("ray==")]
    version = locked.removeprefix("ray==")
    assert yaml.safe_load((ROOT / "scripts/kuberay/cluster.yaml").read_text())["spec"]["rayVersion"] == version
    assert f'"ray[default]=={version}"' in (ROOT / "Dockerfile").read_text()


READY = {**PATHS, "RUNS_DIR": "/mnt/runs"}


def fake_ray(folder: Path, version: str) -> str:
    """A `ray` of this version that writes its arguments, one a line, and the shell's exceptions from its proxy."""
    script = folder / "bin/ray"
    script.parent.mkdir(parents=True)
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "ray, version {version}"; exit; fi\n'
        f'printf "%s\\n" "$@" > {folder}/arguments\n'
        f'echo "$NO_PROXY $no_proxy" > {folder}/exceptions\nexit ${{EXIT:-0}}\n'
    )
    script.chmod(0o755)
    return f"{script.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def submit(folder: Path, version: str = "99.0.0", **variables: str) -> subprocess.CompletedProcess:
    """The script alone, where no .venv comes first in the path."""
    script = folder / "scripts/submit.sh"
    script.parent.mkdir(parents=True)
    script.write_text((ROOT / "scripts/submit.sh").read_text())
    script.chmod(0o755)
    return run(script, **{**READY, "RAY_ADDRESS": "http://head:8265", "PATH": fake_ray(folder, version), **variables})


def minimum() -> str:
    (line,) = [line for line in (ROOT / "scripts/submit.sh").read_text().splitlines() if line.startswith("minimum=")]
    return line.removeprefix("minimum=")


@pytest.mark.parametrize("version", ["2.9.3", "2.41.0", "2.54.0"])
def test_a_ray_that_breaks_quotes_is_refused(tmp_path: Path, version: str) -> None:
    result = submit(tmp_path, version)
    assert result.returncode == 1
    assert result.stderr == (
        f"error: ray {version} takes the quotes from a job's arguments: pip install 'ray[default]>={minimum()}'\n"
    )
    assert not (tmp_path / "arguments").exists()


@pytest.mark.parametrize("version", ["minimum", "2.60.0", "2.100.1", "3.0.0"])
def test_a_ray_that_keeps_them_is_used(tmp_path: Path, version: str) -> None:
    result = submit(tmp_path, minimum() if version == "minimum" else version, MODEL_PATH="/mnt/a b/it's")
    assert result.returncode == 0, result.stderr
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert "actor_rollout_ref.model.path='/mnt/a b/it\\'s'" in arguments


def test_the_declared_minimum_is_the_one_that_is_checked() -> None:
    declared = f"ray[default]>={minimum()}"
    assert declared in (ROOT / "requirements/cpu.in").read_text().splitlines()
    assert f'"{declared}"' in (ROOT / "pyproject.toml").read_text()


def test_the_installed_ray_keeps_quotes() -> None:
    """As the command line of `ray job submit` joins them (ray/dashboard/modules/job/cli.py)."""
    import inspect

    from ray.dashboard.modules.job import cli

    assert "shlex.join(entrypoint)" in inspect.getsource(cli)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "http://localhost:8265", "http://[::1]:8265/"])
def test_a_proxy_does_not_stand_before_this_machine(tmp_path: Path, address: str) -> None:
    result = submit(tmp_path, RAY_ADDRESS=address, http_proxy="http://proxy:3128", NO_PROXY="a.example")
    assert result.returncode == 0, result.stderr
    host = address.removeprefix("http://").rstrip("/").rsplit(":", 1)[0].strip("[]")
    assert (tmp_path / "exceptions").read_text() == f"a.example,{host} a.example,{host}\n"


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_is_named_where_a_submission_fails(tmp_path: Path, variable: str) -> None:
    result = submit(tmp_path, EXIT="7", **{variable: "http://proxy:3128"})
    assert result.returncode == 7
    assert "through a proxy (http_proxy); NO_PROXY=head reaches it directly" in result.stderr


def test_a_failing_submission_without_a_proxy_says_nothing_of_one(tmp_path: Path) -> None:
    result = submit(tmp_path, EXIT="7")
    assert (result.returncode, result.stderr) == (7, "")
