"""A resumed run's metrics file: everything up to the checkpoint, nothing twice, whenever the run was killed."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from verl.utils.tracking import FileLogger

from gtpo_verl.run_folder.metrics_history import MetricsHistory

TRAINER = SimpleNamespace(logger=["console", "file"], project_name="p", experiment_name="e")


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    return path


def start(resumed_step: int, trains: bool = True) -> FileLogger:
    """What the trainer does: put the history aside, let verl open its logger, write the history back."""
    history = MetricsHistory.take(TRAINER, resumed_step, trains)
    logger = FileLogger("p", "e")
    history.restore(logger)
    return logger


def train(logger: FileLogger, steps: range) -> None:
    for step in steps:
        logger.log({"loss": step / 10}, step)


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_resume_keeps_what_precedes_the_checkpoint(metrics: Path) -> None:
    train(start(0), range(1, 8))
    train(start(5), range(6, 10))
    assert steps(metrics) == list(range(1, 10))


def test_verl_alone_loses_it(metrics: Path) -> None:
    train(FileLogger("p", "e"), range(1, 8))
    train(FileLogger("p", "e"), range(6, 10))
    assert steps(metrics) == list(range(6, 10))


def test_torn_last_line_of_a_killed_run(metrics: Path) -> None:
    train(start(0), range(1, 4))
    with metrics.open("ab") as file:
        file.write(b'{"step": 2, "data": {"lo')
    train(start(3), range(4, 6))
    assert steps(metrics) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("opened", [False, True])
def test_killed_between_putting_aside_and_writing_back(metrics: Path, opened: bool) -> None:
    train(start(0), range(1, 6))
    MetricsHistory.take(TRAINER, resumed_step=4)
    if opened:
        FileLogger("p", "e")  # truncates
    train(start(4), range(5, 7))
    assert steps(metrics) == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in metrics.parent.iterdir()] == ["metrics.jsonl"]


def test_a_new_run_keeps_the_previous_ones_file(metrics: Path) -> None:
    train(start(0), range(1, 4))
    train(start(0), range(1, 3))
    assert steps(metrics) == [1, 2]
    assert steps(metrics.with_name("metrics.jsonl.previous")) == [1, 2, 3]


@pytest.mark.parametrize("checkpoint", [0, 2, 4, 5])
def test_a_validation_of_any_checkpoint_takes_nothing_away(metrics: Path, checkpoint: int) -> None:
    """`trainer.val_only`, also of an earlier checkpoint (`resume_mode=resume_path`) and of none (`disable`)."""
    train(start(0), range(1, 6))
    with metrics.open("ab") as file:
        file.write(b'{"step": 6, "da')
    start(checkpoint, trains=False).log({"val": 1.0}, checkpoint)
    assert steps(metrics) == [1, 2, 3, 4, 5, checkpoint]
    assert [path.name for path in metrics.parent.iterdir()] == ["metrics.jsonl"]


def test_without_a_file_logger_nothing_is_touched(metrics: Path) -> None:
    metrics.write_text("not ours\n")
    trainer = SimpleNamespace(logger=["console"], project_name="p", experiment_name="e")
    MetricsHistory.take(trainer, resumed_step=3).restore(None)
    assert metrics.read_text() == "not ours\n"
