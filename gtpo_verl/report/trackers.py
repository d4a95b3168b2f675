"""Metrics as trackers keep them: tensorboard's event files, and exports of a wandb run's history."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from gtpo_verl.report.metrics_log import LARGEST, MetricsError, MetricsLog, refuse_step

if TYPE_CHECKING:
    from pandas import DataFrame

EVENTS = "*tfevents*"


def read_events(folder: Path) -> MetricsLog:
    """Read the tensorboard event files of a folder, as one run.

    A resumed run writes a second file. Steps of the first that were trained again, or lie beyond where the run stands
    now, are not the run's any more and are left out. Values are those of single precision.

    Raises:
        MetricsError: the files cannot be read.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    try:
        accumulator.Reload()
    except Exception as error:  # of the record reader, the protocol buffers or the file system
        raise MetricsError(f"{folder}: tensorboard cannot read its event files ({error})") from error
    steps: dict[int, dict[str, float]] = {}
    for tag in accumulator.Tags()["scalars"]:
        first = math.inf  # of the steps that were logged later
        events = sorted(accumulator.Scalars(tag), key=lambda event: event.wall_time)
        for event in events[::-1]:  # of equal times, as converters write them, the later in the file first
            refuse_step(event.step, str(folder))
            if event.step < first:
                first = event.step
                if abs(event.value) <= LARGEST:
                    steps.setdefault(event.step, {})[tag] = event.value
    return MetricsLog(folder, dict(sorted(steps.items())))


def read_wandb_export(path: Path) -> MetricsLog:
    """Read the history of one wandb run, exported as CSV or parquet: a row a step, a column a metric, and ``_step``.

    Raises:
        MetricsError: the file cannot be read, or has no column ``_step``.
    """
    import pandas

    try:
        table: DataFrame = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except Exception as error:  # pandas and pyarrow raise a dozen kinds
        raise MetricsError(f"{path}: cannot be read as {path.suffix[1:]} ({error})") from error
    if "_step" not in table:
        raise MetricsError(
            f"{path}: no column _step, so not the history of a wandb run (which "
            "`pandas.DataFrame(wandb.Api().run(path).scan_history())` gives; a chart's export holds one metric)"
        )
    try:
        numbers = table.apply(pandas.to_numeric, errors="coerce").dropna(subset=["_step"])
    except Exception as error:  # two columns of one name, or of a type that pandas makes no numbers of
        raise MetricsError(f"{path}: its columns are no numbers by step ({error})") from error
    steps: dict[int, dict[str, float]] = {}
    for number, row in zip(numbers["_step"], numbers.to_dict("records"), strict=True):
        refuse_step(number, str(path))
        values = {
            str(name): float(value)
            for name, value in row.items()
            if not str(name).startswith("_") and abs(value) <= LARGEST
        }
        steps.setdefault(int(number), {}).update(values)
    return MetricsLog(path, dict(sorted(steps.items())))
