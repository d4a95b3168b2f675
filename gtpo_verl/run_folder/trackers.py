"""What the backends of `trainer.logger` need around verl's `Tracking` (verl/utils/tracking.py), which starts them
minutes after the start of a run: their packages and log-ins, checked before; their files, kept in the run's folder."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gtpo_verl.runtime.disks import unwritable

# backend: (module that verl imports, what to install)
PACKAGES = {
    "wandb": ("wandb", "wandb"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "swanlab": ("swanlab", "swanlab"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
    "clearml": ("clearml", "clearml"),
    "vemlp_wandb": ("volcengine_ml_platform", "volcengine-ml-platform"),
    "rl_insight": ("rl_insight", "rl-insight"),
}
WITHOUT_PACKAGE = ("console", "file")

# backend: (variable of the mode, what else to say than a log-in, variable of a log-in, a program that asks the
# backend's own library whether it could start and prints "ready", or why not). In a process of its own: the libraries
# remember what they have read.
_LOGINS = {
    "wandb": (
        "WANDB_MODE",
        "offline",
        "WANDB_API_KEY",
        """
from wandb.sdk import wandb_setup
settings = wandb_setup.singleton().settings
if settings._offline or settings._noop:
    print("ready")
else:
    from wandb.sdk.lib import wbauth
    found = wbauth.authenticate_session(
        host=settings.base_url, source="gtpo-verl", no_offline=True, prompt=False, update_session=False
    )
    print("ready" if found else f"no log-in for {settings.base_url}")
""",
    ),
    "swanlab": (
        "SWANLAB_MODE",
        "offline",
        "SWANLAB_API_KEY",
        """
from swanlab.sdk.internal.settings import create_settings
settings = create_settings()
print("ready" if settings.mode != "online" or settings.api_key else f"no log-in for {settings.api_host}")
""",
    ),
}


def backends(loggers: str | Sequence[str]) -> list[str]:
    """`trainer.logger`, which may be one name or a list."""
    return [loggers] if isinstance(loggers, str) else list(loggers)


def modules_of(loggers: str | Sequence[str] | None) -> list[str]:
    """What verl imports for them; nothing for a backend that it does not know, which `check_trackers` refuses."""
    return [PACKAGES[backend][0] for backend in backends(loggers or []) if backend in PACKAGES]


def is_installed(module: str) -> bool:
    """Whether Python finds this top-level package. A folder of that name in the working directory, as wandb and swanlab
    leave one there, is found as a package without a file, and is none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


# backend: variable that the user may have set, of a folder or, with a suffix, a file.
_PLACES = {"file": "VERL_FILE_LOGGER_PATH", "tensorboard": "TENSORBOARD_DIR", "swanlab": "SWANLAB_LOG_DIR"}


def place_problem(backend: str) -> str | None:
    """Why a backend's files cannot go where the environment says; None where they can, or it says nothing."""
    name = _PLACES.get(backend, "")
    value = os.environ.get(name)
    if not value:
        return None
    place = Path(value).expanduser().absolute()
    folder = place.parent if backend == "file" else place
    if backend == "file" and place.is_dir():
        return f"{name}={value}: a folder, no file"
    problem = unwritable(folder)
    return None if problem is None else f"{name}={value}: {problem}"


def check_trackers(loggers: str | Sequence[str] | None) -> None:
    """Refuses a backend that could not be started on this machine.

    Args:
        loggers: `trainer.logger`.

    Raises:
        ValueError: naming `trainer.logger`, the backend, and the package to install or the variable to export.
    """
    if not loggers:
        raise ValueError(
            f"trainer.logger={'null' if loggers is None else loggers}: verl needs a backend, e.g. [console, file]"
        )
    for backend in backends(loggers):
        if (problem := place_problem(backend)) is not None:
            raise ValueError(f"trainer.logger={backend}: {problem}")
        if backend in WITHOUT_PACKAGE:
            continue
        if backend not in PACKAGES:
            known = ", ".join((*WITHOUT_PACKAGE, *PACKAGES))
            raise ValueError(f"trainer.logger={backend} is no backend of verl's; there are {known}")
        module, package = PACKAGES[backend]
        if not is_installed(module):
            raise ValueError(
                f"trainer.logger={backend} needs the package {package}, which is not installed: pip install {package} "
                "(wherever the trainer may run, on a cluster on every node), or leave it out of trainer.logger"
            )
        if backend in _LOGINS and (problem := _login_problem(backend)) is not None:
            mode, without, variable, _ = _LOGINS[backend]
            raise ValueError(
                f"trainer.logger={backend} finds no log-in: export {variable}, or run `{backend} login`; or export "
                f"{mode}={without} to log into the run's folder alone ({problem})"
            )


def tracker_variables(run_dir: Path, loggers: str | Sequence[str]) -> dict[str, str]:
    """Environment variables that keep a backend's files in the run's folder, but for those the user has set.

    The folders of log-ins and settings in the home folder stay where they are.

    Args:
        run_dir: absolute.
    """
    wanted: dict[str, dict[str, object]] = {
        "wandb": {
            "WANDB_DIR": run_dir,
            "WANDB_CACHE_DIR": run_dir / "wandb/cache",
            "WANDB_DATA_DIR": run_dir / "wandb/data",
        },
        "tensorboard": {"TENSORBOARD_DIR": run_dir / "tensorboard"},
        "swanlab": {"SWANLAB_LOG_DIR": run_dir / "swanlab"},
        "mlflow": {
            "MLFLOW_TRACKING_URI": f"sqlite:///{run_dir / 'mlflow/mlflow.db'}",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
    }
    return {
        name: str(value)
        for backend in backends(loggers)
        for name, value in wanted.get(backend, {}).items()
        if name not in os.environ
    }


def prepare_trackers(run_dir: Path, project: str, loggers: str | Sequence[str]) -> None:
    """To be called in the process that will start the backends, before it does.

    Args:
        run_dir: absolute.
        project: `trainer.project_name`.

    Raises:
        ValueError: as `check_trackers`, or the MLflow store cannot be opened; verl would train without it.
    """
    check_trackers(loggers)
    ours = tracker_variables(run_dir, loggers)
    os.environ.update(ours)
    for backend in {"wandb", "swanlab"} & set(backends(loggers)):
        (run_dir / backend).mkdir(parents=True, exist_ok=True)
    if "mlflow" in backends(loggers):
        _prepare_mlflow(run_dir / "mlflow", project, own_store="MLFLOW_TRACKING_URI" in ours)


def _prepare_mlflow(folder: Path, project: str, own_store: bool) -> None:
    """Opens the store; in one of the run's own, makes the experiment that verl would make with its artifacts in the
    current folder."""
    import mlflow

    if own_store:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        mlflow.set_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
        experiment = mlflow.get_experiment_by_name(project)
        if experiment is None and own_store:
            mlflow.create_experiment(project, artifact_location=(folder / "artifacts").as_uri())
    except Exception as error:
        # The address may hold a password; its text stays out of the log.
        raise ValueError(
            f"trainer.logger=mlflow: the store of MLFLOW_TRACKING_URI cannot be used: {type(error).__name__}"
        ) from None


def _login_problem(backend: str) -> str | None:
    """What the backend's library says of its settings and log-ins; None where it would start."""
    program = _LOGINS[backend][-1]
    try:
        asked = subprocess.run(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            encoding="utf-8", errors="replace", timeout=120,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{backend} gives no answer"
    said = (asked.stdout if asked.returncode == 0 else asked.stderr).splitlines()
    answer = next((line.strip() for line in reversed(said) if line.strip()), "")
    if answer.startswith(("ImportError", "ModuleNotFoundError", "AttributeError")):
        return None  # another version of it, which has nothing of that name to be asked
    return None if answer == "ready" else answer or f"{backend} ended with exit code {asked.returncode}"
