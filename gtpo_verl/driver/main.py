"""The Hydra entry point: `gtpo-verl train ...` runs it under a supervisor (`gtpo_verl.launch`).

It checks what can be checked before Ray starts, then hands over to verl's own `run_ppo`.
"""

import ctypes
import fcntl
import os
import re
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf, open_dict

from gtpo_verl.configuration.composition import changed, to_yaml, verl_search_path
from gtpo_verl.configuration.preparation import forwarded_variables, prepare, set_environment
from gtpo_verl.configuration.restored import refuse_other_optimizer, remarks, without_effect
from gtpo_verl.configuration.settings import RecipeSettings
from gtpo_verl.runtime import limits, stage
from gtpo_verl.runtime.ending import without_teardown
from gtpo_verl.runtime.run_info import VARIABLE, RunInfo
from gtpo_verl.runtime.text import start_over_in_utf8, terminal_encoding
from gtpo_verl.verl_plugin import cpu, fork_server, hooks

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@hydra.main(config_path="pkg://gtpo_verl.configs", config_name="train", version_base=None)
def main(config: DictConfig) -> None:
    """Composes, checks, trains. Exit code 1 and one line on the terminal where something is wrong."""
    signal.signal(signal.SIGTERM, _stop)
    _die_with_supervisor()
    terminal = os.fdopen(os.dup(2), "w", buffering=1, encoding=terminal_encoding(), errors="replace")
    temporary = os.environ.get("GTPO_VERL_TMP")
    info = None
    try:
        set_environment(config)
        if temporary is not None:  # under a supervisor
            fork_server.start(config, temporary, str(_early_log(temporary)))
        prepare(config)
        cpu.install()
        info = check(config)
        if info.finished:
            print(
                f"{info.name}: all {info.total_steps} steps are done (trainer.resume_mode=disable starts over)",
                file=terminal,
            )
            return
        train(config)
    except Exception as error:
        cause = root_cause(error)
        if info is None and not isinstance(cause, ValueError | OSError | RuntimeError):
            traceback.print_exc(file=terminal)  # no refusal of ours
        reason = stage.read_cause() or f"{type(cause).__name__}: {one_line(cause)}"
        print(f"error: {reason}", file=terminal)
        if info is not None:
            with suppress(OSError):  # the disk may be full on which the log lies
                traceback.print_exc()  # the terminal has got one line
        sys.exit(1)
    except SystemExit:  # the supervisor's SIGTERM
        if said := stage.read_cause():
            print(f"error: {said}", file=terminal)
        raise


def check(config: DictConfig) -> RunInfo:
    """Refuses what cannot work, before Ray starts. Where all is well, says where the run writes and opens its log.

    Raises:
        ValueError, OSError, RuntimeError: naming the key, file or missing registration.
    """
    temporary = os.environ.get("GTPO_VERL_TMP")
    early_log = _early_log(temporary) if temporary else None
    if early_log is not None:
        _redirect_output(early_log)  # verl greets with a page of warnings; a refused run leaves no log
    stage.say("checking configuration, model and data")
    limits.check_limits(on_gpu=config.trainer.device == "cuda")
    hooks.check_registration()
    from verl.utils.device import auto_set_device

    from gtpo_verl.configuration.checks import validates_only
    from gtpo_verl.run_folder.checkpoints import CheckpointFolder, resumed_step

    settings = RecipeSettings.from_config(config)
    auto_set_device(config)
    notes = refuse(config)
    run_dir = Path(settings.run_dir).absolute()
    checkpoints = Path(config.trainer.default_local_dir).absolute()
    resolved, text = run_dir / "config.yaml", to_yaml(config)
    step = resumed_step(config)
    differing: list[str] = []
    if step and resolved.exists():
        differing, text = _differing(resolved.read_text(encoding="utf-8", errors="replace"), config, temporary)
    if step and config.trainer.resume_mode == "auto":
        notes += [note for note in [CheckpointFolder.of_run(config).passed_over()] if note is not None]
    info = RunInfo(
        name=config.trainer.experiment_name,
        run_dir=str(run_dir),
        log=str(run_dir / "train.log"),
        metrics=os.environ["VERL_FILE_LOGGER_PATH"],
        checkpoints=str(checkpoints),
        total_steps=config.trainer.total_training_steps,
        resumed_step=step,
        changes=differing,
        remarks=notes,
        validates_only=validates_only(config),
    )
    if settings.preflight and not info.finished:
        from gtpo_verl.preflight.command import refuse_unfit

        refuse_unfit(config)
    new = not run_dir.exists()
    run_dir.mkdir(parents=True, exist_ok=True)
    if not info.finished:
        hold(Path(info.log), f"gtpo_verl.run_dir={run_dir}")
        if not info.validates_only:  # which may lie elsewhere, or in the folder of another run
            checkpoints.mkdir(parents=True, exist_ok=True)
            try:
                hold(checkpoints / ".lock", f"trainer.default_local_dir={checkpoints}")
            except ValueError:
                if new:
                    Path(info.log).unlink()
                    run_dir.rmdir()
                raise
    if not info.finished and not (info.validates_only and resolved.exists()):  # else the file says what was trained
        # Not by Hydra, which would write before a credential is refused.
        resolved.write_text(text, encoding="utf-8")
    info.publish()
    _redirect_output(Path(info.log))
    if temporary is not None:
        _print_early_log(temporary)
    return info


def refuse(config: DictConfig) -> list[str]:
    """Refuses what the driver can know to fail, of a configuration that `prepare` has left.

    Returns:
        Warnings: combinations that work but are hardly meant.

    Raises:
        ValueError, OSError: naming the key or file.
    """
    from gtpo_verl.configuration.checks import check_config
    from gtpo_verl.configuration.refusals import check_folders, refuse_on_driver
    from gtpo_verl.preflight.command import refuse_sizes
    from gtpo_verl.run_folder.checkpoints import check_resume, resumed_checkpoint
    from gtpo_verl.run_folder.fit import check_fit
    from gtpo_verl.run_folder.trackers import check_trackers

    check_folders(config)
    refuse_sizes(config)
    notes = check_config(config)
    check_trackers(config.trainer.logger)
    check_resume(config)
    refuse_on_driver(config, RecipeSettings.from_config(config))
    if (checkpoint := resumed_checkpoint(config)) is not None:
        check_fit(config, checkpoint)
    return notes


def _differing(before: str, config: DictConfig, temporary: str | None) -> tuple[list[str], str]:
    """What a resumed run was changed in, with what the checkpoint overrides of it; and its configuration as it holds.

    Raises:
        ValueError: a change that the checkpoint does not bear, naming the key.
    """
    found = changed(before, to_yaml(config))
    # Every start has another folder for its temporary files.
    found = {key: pair for key, pair in found.items() if not temporary or temporary not in str(pair[1])}
    refuse_other_optimizer(found, config)
    said = remarks(found, config)
    holds = config.copy()
    for key in without_effect(said):
        OmegaConf.update(holds, key, found[key][0], force_add=True)
    words = {key: f" ({said[key]})" if key in said else "" for key in found}
    return [f"{key}: {old} -> {new}{words[key]}" for key, (old, new) in found.items()], to_yaml(holds)


def train(config: DictConfig) -> None:
    """verl's `run_ppo` with the recipe's environment in every Ray worker; stops Ray however it ends."""
    import ray
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    from gtpo_verl.run_folder.trackers import prepare_trackers

    run_dir, temporary = Path(config.gtpo_verl.run_dir).absolute(), os.environ.get("GTPO_VERL_TMP")
    with open_dict(config):
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", forwarded_variables(config), merge=True)

    verl_task_runner: Any = TaskRunnerV1.__ray_metadata__.modified_class  # type: ignore[attr-defined]

    class TaskRunner(verl_task_runner):
        """verl's task runner, which first sees that the plugin is active on its node, and prepares the trackers that
        it will start. Their variables are set here: a runtime environment is part of the configuration that is logged,
        and an address may hold a password."""

        def run(self, config: DictConfig) -> None:
            stage.say("starting the trainer")
            if temporary is not None:
                _print_early_log(temporary)
            hooks.check_registration()
            prepare_trackers(run_dir, config.trainer.project_name, config.trainer.logger)
            super().run(config)

    stage.say("starting Ray")
    try:
        run_ppo(config, task_runner_class=ray.remote(TaskRunner))
    finally:
        stage.say(stage.ENDING)
        if temporary is not None:
            _print_early_log(temporary)
        ray.shutdown()


def root_cause(error: BaseException) -> BaseException:
    """The exception under Ray's wrappers (`RayTaskError.cause`), which carry the remote traceback as their text."""
    cause = getattr(error, "cause", None)
    return root_cause(cause) if isinstance(cause, BaseException) and cause is not error else error


def one_line(error: BaseException) -> str:
    """Its text; of an actor's death, which takes a page, the first line and who it was."""
    text = str(error)
    who = dict(re.findall(r"^\s*(class_name|pid|ip): (.*)$", text, re.MULTILINE))
    if "class_name" not in who:
        return text
    named = f"{who['class_name']}, process {who.get('pid')}, node {who.get('ip')}"
    return f"{text.splitlines()[0]} ({named})"


def _stop(_signal: int, _frame) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _die_with_supervisor() -> None:
    """Asks the kernel for SIGTERM when the supervisor is killed in a way it cannot clean up after (SIGKILL)."""
    if VARIABLE in os.environ:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _early_log(temporary: str) -> Path:
    """Where output goes until it is known where the run writes."""
    return Path(temporary, "driver.log")


def _print_early_log(temporary: str) -> None:
    """Prints what came since the last time: the fork server still writes there when the log is open."""
    with suppress(OSError):  # another node than the driver's
        log = _early_log(temporary)
        text = log.read_text(encoding="utf-8", errors="replace")
        os.truncate(log, 0)
        if text:
            print(text, flush=True)


def hold(log: Path, key: str) -> None:
    """Makes this process the only one that writes there, until it ends.

    Args:
        log: a file there, made if it is not there.
        key: the key that names the folder.

    Raises:
        ValueError: another process is.
    """
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)  # never closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"{key}: another run writes there. Wait until it has ended, or give this one another name "
            "(trainer.experiment_name) or folder"
        ) from None
    except OSError as error:  # a file system without locks
        print(f"{log}: not locked: {error}", file=sys.stderr)


def _redirect_output(log: Path) -> None:
    """From here on, everything this process and Ray's workers print goes to the log file."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # what could not be written before cannot be now
            stream.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    start_over_in_utf8()
    sys.argv += verl_search_path(sys.argv[1:])
    with without_teardown():
        main()
