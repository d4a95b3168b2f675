"""Tasks to train on: data sets, their rewards, and the small models that start them.

Importing the package imports nothing else, so that verl's reward workers load ``gtpo_verl.tasks.rewards`` without torch
or transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtpo_verl.tasks.preparation import Prepared

TASKS = ("arithmetic", "smollm2", "smollm2_steps")


def prepare(task: str, cache_dir: Path) -> Prepared:
    """Makes the model and data of a task, or finds them in the cache.

    Args:
        task: one of `TASKS`.
        cache_dir: where prepared tasks lie.

    Raises:
        ValueError: no such task.
        RuntimeError: it could not be made; the message says what is missing.
    """
    from gtpo_verl.tasks.preparation import prepare_arithmetic, prepare_smollm2, prepare_smollm2_steps

    makers: dict[str, Callable[[Path], Prepared]] = {
        "arithmetic": prepare_arithmetic,
        "smollm2": prepare_smollm2,
        "smollm2_steps": prepare_smollm2_steps,
    }
    if task not in makers:
        raise ValueError(f"gtpo_verl.task={task} is not a task; the tasks are {', '.join(TASKS)}")
    return makers[task](cache_dir)
