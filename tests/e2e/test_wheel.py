"""Installed from a wheel into an environment of its own, from a directory that is no checkout: nothing is missing."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from training_run import ROOT, SMALL

from gtpo_verl import tasks
from gtpo_verl.launch import supervise

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it, and the rest of the stack from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    # A path file adds the folder alone: the checkout's editable installation in it, a path file too, is not followed.
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(site, "stack.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_package_is_the_wheels(python: Path, tmp_path: Path) -> None:
    code = "import gtpo_verl, gtpo_verl.configs; print(gtpo_verl.__file__); print(gtpo_verl.configs.__path__[0])"
    out = subprocess.run([python, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert str(ROOT) not in out
    configs = Path(out.splitlines()[1])
    for original in (ROOT / "configs").rglob("*.yaml"):
        assert (configs / original.relative_to(ROOT / "configs")).read_text() == original.read_text()


def test_the_recipe_trains(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [str(python.with_name("gtpo-verl")), "train", *SMALL, "algorithm=gtpo_v1"]
    command += [f"gtpo_verl.cache_dir={ROOT / '.cache/gtpo-verl'}", "trainer.total_training_steps=1"]
    command += ["gtpo_verl.token_dump_freq=1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    assert '"gtpo/uniform_groups_frac"' in metrics.read_text()
    command = [str(python.with_name("gtpo-verl")), "inspect", str(metrics.parent)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "inspect.html\n"), result.stderr
    assert "old_log_probs" in (tmp_path / "inspect.html").read_text()


def test_models_are_evaluated(python: Path, tmp_path: Path) -> None:
    prepared = tasks.prepare("arithmetic", ROOT / ".cache/gtpo-verl")
    command = [str(python.with_name("gtpo-verl")), "eval", str(prepared.model), "--data", str(prepared.val), "--n", "1"]
    result = subprocess.run(
        [*command, "--max-tokens", "112"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "evals/val/model/val/responses.parquet").exists()


def test_verls_own_entry_point_trains(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line of a verl user, `+algorithm.gtpo.alpha=0.2` and all, with the keys that CPU needs."""
    monkeypatch.chdir(tmp_path)
    prepared = tasks.prepare("arithmetic", ROOT / ".cache/gtpo-verl")
    scale = OmegaConf.load(ROOT / "configs/scale/cpu.yaml")
    for name, value in scale.pop("gtpo_verl").env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    overrides = [f"++{key}={value}" for key, value in leaves(OmegaConf.to_container(scale))]
    overrides += [
        *SMALL,
        "data.max_prompt_length=48",
        "algorithm.adv_estimator=gtpo_v1",
        "+algorithm.gtpo.alpha=0.2",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gtpo",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.model.path={prepared.model}",
        f"data.train_files={prepared.train}",
        f"data.val_files={prepared.val}",
        "reward.custom_reward_function.path=pkg://gtpo_verl.tasks.rewards",
        "trainer.logger=[file]",
        "trainer.total_training_steps=2",
    ]
    code, _ = supervise([str(python), "-m", "verl.trainer.main_ppo", *overrides])
    assert code == 0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert all('"gtpo/entropy_right_mean"' in line for line in lines)


def leaves(node: dict, prefix: str = "") -> list[tuple[str, object]]:
    """Dotted keys and values, as Hydra overrides want them."""
    result = []
    for key, value in node.items():
        if isinstance(value, dict):
            result += leaves(value, f"{prefix}{key}.")
        else:
            result.append(
                (prefix + key, "null" if value is None else str(value).lower() if value in (True, False) else value)
            )
    return result
