"""What cannot work is refused before Ray starts: one line that names the key or file, exit code 1, nothing left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from training_run import ROOT, SMALL, Run

from gtpo_verl.driver.main import hold

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CACHE = ROOT / ".cache/gtpo-verl"
# What a driver sets before it imports verl.
ON_CPU = {name: str(value) for name, value in OmegaConf.load(ROOT / "configs/scale/cpu.yaml").gtpo_verl.env.items()}
del ON_CPU["HYDRA_FULL_ERROR"]  # by which Hydra says what it refuses in a traceback

# Through the whole command, one of each stage: composing, registration, configuration, reward, data, disk. Each costs
# an import of verl; the others are tried on the driver alone, in one process.
QUICK = {
    "plugin not registered",
    "reward without acc",
    "no entropies in bypass mode",
    "unknown key of the method",
    "data without prompts",
    "no such model",
    "disk too full",
}

NO_ACC = (
    'def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n    return {"score": 1.0}\n'
)
BROKEN = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n    return solution_str[7]\n"
)


def data_without(column: str, folder: Path) -> str:
    row = {
        "data_source": "x",
        "prompt": [{"role": "user", "content": "1+1="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 0},
    }
    path = folder / f"without_{column}.parquet"
    pd.DataFrame([{key: value for key, value in row.items() if key != column}] * 8).to_parquet(path)
    return str(path)


def reward(code: str, folder: Path) -> str:
    path = folder / "reward.py"
    path.write_text(code)
    return str(path)


def held(folder: Path) -> Path:
    """A folder of checkpoints into which another run, this process, writes."""
    folder.mkdir()
    hold(folder / ".lock", "theirs")
    return folder


# name: (overrides, given the test's folder; environment; what the message must name)
CASES = {
    "plugin not registered": (lambda _: [], {"VERL_USE_EXTERNAL_PLUGINS": "none"}, ["VERL_USE_EXTERNAL_PLUGINS=none"]),
    "reward without acc": (
        lambda folder: [f"reward.custom_reward_function.path={reward(NO_ACC, folder)}"],
        {},
        ["`acc`", "algorithm.gtpo.success.key", "reward.py"],
    ),
    "reward that fails": (
        lambda folder: [f"reward.custom_reward_function.path={reward(BROKEN, folder)}"],
        {},
        ["IndexError", "reward.py"],
    ),
    "no entropies in bypass mode": (
        lambda _: ["algorithm.rollout_correction.bypass_mode=true"],
        {},
        ["algorithm.rollout_correction.bypass_mode"],
    ),
    "kl in reward": (lambda _: ["algorithm.use_kl_in_reward=true"], {}, ["algorithm.use_kl_in_reward"]),
    "asynchronous trainer": (
        lambda _: ["trainer.v1.trainer_mode=colocate_async"],
        {},
        ["trainer.v1.trainer_mode=colocate_async"],
    ),
    "checkpoints of a run that goes on": (
        lambda folder: [f"trainer.default_local_dir={held(folder / 'theirs')}"],
        {},
        ["trainer.default_local_dir=", "theirs: another run writes there"],
    ),
    "old trainer": (lambda _: ["trainer.use_v1=false"], {}, ["trainer.use_v1"]),
    "unknown key of the method": (lambda _: ["+algorithm.gtpo.alhpa=0.2"], {}, ["algorithm.gtpo.alhpa"]),
    "unknown key of the recipe": (lambda _: ["+gtpo_verl.rundir=x"], {}, ["gtpo_verl.rundir"]),
    "unknown key of verl": (lambda _: ["trainer.total_steps=3"], {}, ["total_steps"]),
    "unknown key of the actor": (lambda _: ["+actor_rollout_ref.actor.colour=red"], {}, ["colour"]),
    "value out of range": (lambda _: ["algorithm.gtpo.alpha=-1"], {}, ["algorithm.gtpo.alpha"]),
    "unknown algorithm": (lambda _: ["algorithm=gtpo_v9"], {}, ["gtpo_v9", "gtpo_v1"]),
    "unknown task": (lambda _: ["gtpo_verl.task=chess"], {}, ["gtpo_verl.task=chess"]),
    "data without prompts": (
        lambda folder: [f"data.train_files={data_without('prompt', folder)}"],
        {},
        ["without_prompt.parquet", "prompt"],
    ),
    "data without ground truth": (
        lambda folder: [f"data.val_files={data_without('reward_model', folder)}"],
        {},
        ["without_reward_model.parquet", "reward_model"],
    ),
    "no such data": (lambda _: ["data.train_files=nowhere.parquet"], {}, ["data.train_files", "nowhere.parquet"]),
    "no such model": (
        lambda _: ["actor_rollout_ref.model.path=./nowhere"],
        {},
        ["actor_rollout_ref.model.path=./nowhere"],
    ),
    "tracker without its package": (
        lambda _: ["trainer.logger=[console,file,clearml]"],
        {},
        ["trainer.logger=clearml", "pip install clearml"],
    ),
    "checkpoints of none": (
        lambda _: ["trainer.max_actor_ckpt_to_keep=0"],
        {},
        ["trainer.max_actor_ckpt_to_keep=0"],
    ),
    "disk too full": (lambda _: ["gtpo_verl.min_free_disk_gib=1e9"], {}, ["gtpo_verl.min_free_disk_gib", "GiB free"]),
}


def assert_refused(case: str, terminal: str) -> None:
    for words in CASES[case][2]:
        assert words in terminal, terminal
    assert "Traceback" not in terminal
    assert "Started a local Ray instance" not in terminal


@pytest.mark.parametrize("case", sorted(QUICK))
def test_refused(case: str, run: Run) -> None:
    overrides, environment, _ = CASES[case]
    run.start(*SMALL, "algorithm=gtpo_v1", *overrides(run.folder), **environment)
    assert run.wait(timeout=200) == 1, run.terminal
    assert_refused(case, run.terminal)
    run.assert_nothing_left()


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Path]]:
    """Of the other cases, tried by the driver alone: its exit code, and the folder in which it was started."""
    cases = {}
    for case in CASES.keys() - QUICK:
        folder = tmp_path_factory.mktemp("refused")
        (folder / "home").mkdir()
        overrides, environment, _ = CASES[case]
        cases[case] = {
            "folder": str(folder),
            "overrides": [f"gtpo_verl.cache_dir={CACHE}", *SMALL, "algorithm=gtpo_v1", *overrides(folder)],
            "environment": {"HOME": str(folder / "home"), **environment},
        }
    listed = tmp_path_factory.mktemp("refused") / "cases.json"
    listed.write_text(json.dumps(cases))
    command = [sys.executable, str(Path(__file__).with_name("refused_in_turn.py")), str(listed)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=250, env={**os.environ, **ON_CPU})
    assert result.returncode == 0
    codes = json.loads(result.stdout.splitlines()[-1])
    return {case: (codes[case], Path(cases[case]["folder"])) for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(CASES.keys() - QUICK))
def test_refused_by_the_driver(case: str, refused: dict[str, tuple[int, Path]]) -> None:
    code, folder = refused[case]
    terminal = (folder / "terminal.txt").read_text()
    assert code == 1, terminal
    assert_refused(case, terminal)
    assert list(folder.glob("runs/**/train.log")) == []
    assert sorted((folder / "home").rglob("*")) == []


def test_a_refused_credential_is_written_nowhere(run: Run) -> None:
    run.start(*SMALL, "algorithm=gtpo_v1", "+trainer.wandb_api_key=hunter2")
    assert run.wait(timeout=200) == 1, run.terminal
    assert "trainer.wandb_api_key looks like a credential" in run.terminal
    written = [path for path in run.folder.rglob("*") if path.is_file()]
    assert [path for path in written if b"hunter2" in path.read_bytes()] == []
    run.assert_nothing_left()
