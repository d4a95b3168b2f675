"""The backends of `trainer.logger`, for real: verl's Tracking on our configuration takes every name that we log, and
its files lie in the run's folder."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from gtpo_verl.algorithms import GtpoConfig, compute_advantages
from gtpo_verl.run_folder.trackers import PACKAGES, WITHOUT_PACKAGE, check_trackers, tracker_variables

pytestmark = pytest.mark.timeout(600)

LOGINS = ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_CONFIG_DIR", "NETRC"]
LOGINS += ["SWANLAB_API_KEY", "SWANLAB_MODE", "SWANLAB_ROOT", "SWANLAB_SAVE_DIR"]


def metrics() -> dict[str, float]:
    """Every name of ours, and of verl's those with unlike characters."""
    ours = compute_advantages(
        "gtpo_v1",
        entropy=torch.tensor([0.1, 0.9, 0.4, 0.7, 0.2, 0.5]),
        offsets=torch.tensor([0, 3, 6]),
        group=torch.tensor([0, 0]),
        success=torch.tensor([True, False]),
        config=GtpoConfig(),
    ).metrics
    assert all(name.startswith("gtpo/") for name in ours)
    verls = ["actor/entropy", "timing_s/gen", "val-core/arithmetic/acc/best@8/mean", "perf/mfu/actor_infer"]
    return {**{name: float(value) for name, value in ours.items()}, **dict.fromkeys(verls, 0.25)}


def environment_with(package: str, folder: Path) -> Path:
    """An environment with a backend that the locks lack, over the one that runs the tests.

    swanlab and mlflow ask for older protobuf, pyarrow and cachetools than those of the locks (docs/dependencies.md).
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    paths = [sysconfig.get_path("purelib"), str(Path(__file__).parents[2])]
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(site, "stack.pth").write_text("\n".join(paths) + "\n")
    # Most of what is installed is never imported: what is, is compiled then.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, package], check=True)
    return python


def track(backend: str, folder: Path, python: str | Path, **variables: str) -> None:
    """A process with nothing of the user's in its environment, in folders that must stay empty."""
    for name in ("home", "current"):
        (folder / name).mkdir()
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "PYTHONPATH")}
    result = subprocess.run(
        [python, Path(__file__).with_name("tracker_process.py"), backend, str(folder / "run"), json.dumps(metrics())],
        cwd=folder / "current",
        env={**kept, "HOME": str(folder / "home"), "TMPDIR": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert list((folder / "current").iterdir()) == []
    # swanlab asks pip and rustup, where they are installed, which leave files of their own.
    written = [path.relative_to(folder / "home") for path in (folder / "home").rglob("*") if path.is_file()]
    assert [path for path in written if path.parts[:2] != (".cache", "pip") and path.parts[0] != ".rustup"] == []


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track("tensorboard", tmp_path, sys.executable)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    for name, value in metrics().items():
        assert [(event.step, event.value) for event in events.Scalars(name)] == [
            (1, pytest.approx(value)),
            (2, pytest.approx(value)),
        ]


def test_wandb(tmp_path: Path) -> None:
    track("wandb", tmp_path, sys.executable, WANDB_MODE="offline")
    (record,) = (tmp_path / "run/wandb").glob("offline-run-*/run-*.wandb")
    written = record.read_bytes()
    for name in metrics():
        # The record is cut into blocks; a name that straddles two is found by its last part.
        assert name.encode() in written or name.rsplit("/", 1)[1].encode() in written, name
    assert b"adv_estimator" in written


REFUSED_STORES = """
import json, os, pathlib, sys, traceback
from gtpo_verl.run_folder.trackers import prepare_trackers
refusals = []
for os.environ["MLFLOW_TRACKING_URI"] in sys.argv[2:]:
    try:
        prepare_trackers(pathlib.Path(sys.argv[1]), "project", "mlflow")
    except ValueError:
        refusals.append(traceback.format_exc())
print(json.dumps(refusals))
"""


@pytest.mark.slow
def test_mlflow(tmp_path: Path) -> None:
    python = environment_with("mlflow", tmp_path / "environment")
    track("mlflow", tmp_path, python)
    assert (tmp_path / "run/mlflow/mlflow.db").exists()
    assert len(list((tmp_path / "run/mlflow/artifacts").rglob("val_step2.json"))) == 1
    code = (
        "import json, sys, mlflow; client = mlflow.MlflowClient(f'sqlite:///{sys.argv[1]}'); "
        "(run,) = client.search_runs([client.get_experiment_by_name('project').experiment_id]); "
        "print(json.dumps([run.data.metrics, run.data.params['algorithm/adv_estimator']]))"
    )
    command = [python, "-c", code, str(tmp_path / "run/mlflow/mlflow.db")]
    logged = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    values, estimator = json.loads(logged.splitlines()[-1])
    assert values == pytest.approx({name.replace("@", "_at_"): value for name, value in metrics().items()})
    assert estimator == "gtpo_v1"

    # A store that cannot be used: verl would train without it.
    addresses = "sqlite:////dev/null/mlflow.db", "nosuchdb://me:hunter2@host/runs"
    command = [python, "-c", REFUSED_STORES, str(tmp_path / "other"), *addresses]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    refusals = json.loads(result.stdout.splitlines()[-1])
    assert len(refusals) == len(addresses)
    for said in refusals:
        assert said.splitlines()[-1].startswith(
            "ValueError: trainer.logger=mlflow: the store of MLFLOW_TRACKING_URI cannot be used: "
        )
    assert "hunter2" not in result.stdout + result.stderr


@pytest.mark.slow
def test_swanlab(tmp_path: Path) -> None:
    python = environment_with("swanlab", tmp_path / "environment")
    track("swanlab", tmp_path, python, SWANLAB_MODE="offline")
    written = b"".join(path.read_bytes() for path in (tmp_path / "run/swanlab").rglob("*") if path.is_file())
    for name in metrics():
        assert name.encode() in written, name


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of someone who never logged in anywhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in LOGINS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_covers_all_that_verl_knows() -> None:
    from verl.utils.tracking import Tracking

    assert {*PACKAGES, *WITHOUT_PACKAGE} == set(Tracking.supported_backend)


@pytest.mark.parametrize("backend", ["clearml", "trackio", "vemlp_wandb", "rl_insight"])
@pytest.mark.parametrize("folder", [False, True])
def test_a_missing_package_is_named(
    backend: str, folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a folder of that name lies in the working directory, as trackers leave one."""
    if folder:
        (tmp_path / PACKAGES[backend][0]).mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"trainer.logger={backend} needs the package {PACKAGES[backend][1]}"):
        check_trackers(["console", backend])


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"trainer\.logger=tensorbord is no backend .* tensorboard"):
        check_trackers("tensorbord")


REFUSED = r"trainer\.logger=wandb finds no log-in: export WANDB_API_KEY.*WANDB_MODE=offline"


@pytest.mark.usefixtures("nobody")
def test_no_log_in() -> None:
    with pytest.raises(ValueError, match=REFUSED):
        check_trackers(["wandb"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("WANDB_MODE", "offline"), ("WANDB_MODE", "disabled"), ("WANDB_MODE", "dryrun"), ("WANDB_API_KEY", "0" * 40)],
)
def test_a_log_in_by_a_variable(nobody: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    check_trackers(["wandb"])


@pytest.mark.parametrize("value", ["short", "0" * 39 + "!", "has a space" * 4])
def test_a_key_that_is_none_is_refused(nobody: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WANDB_API_KEY", value)
    with pytest.raises(ValueError, match=REFUSED) as error:
        check_trackers(["wandb"])
    assert value not in str(error.value)


@pytest.mark.parametrize("name", [".netrc", "elsewhere"])
def test_a_log_in_by_a_file(nobody: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (nobody / name).write_text(f"machine api.wandb.ai\n  login user\n  password {'0' * 40}\n")
    (nobody / name).chmod(0o600)
    if name == "elsewhere":
        monkeypatch.setenv("NETRC", str(nobody / name))
    check_trackers(["wandb"])


@pytest.mark.parametrize(
    "content",
    [
        "",
        f"machine github.com\n  login user\n  password {'0' * 40}\n",
        "machine api.wandb.ai\n",
        "no netrc at all",
        "\x00\x01",
    ],
)
def test_a_file_without_a_log_in_is_none(nobody: Path, content: str) -> None:
    (nobody / ".netrc").write_text(content)
    with pytest.raises(ValueError, match=REFUSED):
        check_trackers(["wandb"])


def test_a_log_in_at_another_server_is_none(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nobody / ".netrc").write_text(f"machine wandb.company.example\n  login user\n  password {'0' * 40}\n")
    with pytest.raises(ValueError, match=REFUSED):
        check_trackers(["wandb"])
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.company.example")
    check_trackers(["wandb"])


@pytest.mark.usefixtures("nobody")
def test_offline_by_the_command(tmp_path: Path) -> None:
    """`wandb offline` writes a file of settings; `wandb online` takes it back."""
    wandb = Path(sys.executable).with_name("wandb")
    subprocess.run([wandb, "offline"], check=True, capture_output=True)
    check_trackers(["wandb"])
    subprocess.run([wandb, "online"], check=True, capture_output=True)
    with pytest.raises(ValueError, match=REFUSED):
        check_trackers(["wandb"])


def test_what_the_user_exports_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    variables = tracker_variables(tmp_path, ["console", "tensorboard", "mlflow"])
    assert variables == {"TENSORBOARD_DIR": str(tmp_path / "tensorboard"), "MLFLOW_DISABLE_TELEMETRY": "true"}


@pytest.mark.parametrize(
    ("backend", "name"),
    [("file", "VERL_FILE_LOGGER_PATH"), ("tensorboard", "TENSORBOARD_DIR")],
)
def test_where_the_environment_has_no_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str, name: str
) -> None:
    monkeypatch.setattr("gtpo_verl.run_folder.trackers.is_installed", lambda _: True)
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere/x", str(tmp_path / "file/x")):
        monkeypatch.setenv(name, place)
        with pytest.raises(ValueError, match=rf"trainer\.logger={backend}: {name}={place}: nothing can be written"):
            check_trackers([backend])
    monkeypatch.setenv(name, str(tmp_path / "new/x"))
    check_trackers([backend])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("loggers", [None, [], ""])
def test_no_backend_at_all(loggers: list | str | None) -> None:
    with pytest.raises(ValueError, match=r"trainer\.logger=.*: verl needs a backend"):
        check_trackers(loggers)
