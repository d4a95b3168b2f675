"""The main job: the same model and task under several algorithms, one after another, and one figure."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gtpo_verl.launch.terminal import train_with_progress
from gtpo_verl.report import write_report


def quickstart(algorithms: Sequence[str], overrides: Sequence[str]) -> int:
    """Trains each preset of `configs/algorithm`, then draws the curves of all.

    Args:
        algorithms: names of presets.
        overrides: Hydra overrides for every run.

    Returns:
        0, or the exit code of the first run that failed; the same command then goes on where it stopped.
    """
    console = Console()
    runs = []
    for algorithm in algorithms:
        code, info = train_with_progress([f"algorithm={algorithm}", *overrides], console)
        if code != 0 or info is None:
            return code or 1
        runs.append(info)
    figure = write_report([Path(run.run_dir) for run in runs], Path(runs[0].run_dir).parent / "report", console=console)
    for run in runs:
        console.print(
            f"{run.name}: metrics {run.metrics}, checkpoints {run.checkpoints}", highlight=False, soft_wrap=True
        )
    console.print(f"curves: {figure}", highlight=False, soft_wrap=True)
    return 0
