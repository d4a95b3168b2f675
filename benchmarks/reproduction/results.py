"""The folder of what a set has given: published as it is under benchmarks/results."""

import fcntl
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

from benchmarks.reproduction.manifest import Planned
from gtpo_verl.report import prompts
from gtpo_verl.report.metrics_log import METRICS_FILE, PROMPTS_PREFIX, read_lines
from gtpo_verl.report.runs import RECORD_FILE
from gtpo_verl.run_folder.checkpoints import TRACKER
from gtpo_verl.runtime.whole_file import whole_file

# Of some 110 numbers a step those that say what was learnt, how and how fast: 40 kB a run of 100 steps.
_KEPT = re.compile(
    r"actor/(?!perf/)|critic/(score|rewards)/mean|gtpo/|response_length/|perf/|training/(filter_groups|rollout_probs)"
    r"|timing_s/(step|gen|old_log_prob|update_actor|testing)$|val-(core|aux)/.+/acc/"
)


_MADE_WITH = "made_with.json"  # in a run's own folder


class Results:
    """The folder of what a set has given: a log of each run, `<name>-seed<k>.jsonl.gz`, and a record of all.

    Raises:
        ValueError: another process has it, and makes the same runs.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = os.open(folder, os.O_RDONLY)  # until this process ends
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: a start of this set is at work there") from None
        self._record = folder / RECORD_FILE

    def record(self) -> dict[str, dict[str, Any]]:
        """What is known of each run that was started, by its name.

        Raises:
            ValueError: the file is damaged; it is named.
        """
        found = _read(self._record)
        if not all(isinstance(facts, dict) for facts in found.values()):
            raise ValueError(f"{self._record}: no record of runs by their names")
        return found

    def log(self, run: Planned) -> Path:
        return self.folder / f"{run.name}.jsonl.gz"

    def has(self, run: Planned, runs_dir: Path, steps: int) -> bool:
        """Whether all steps of a run are on record, here or in the run's own folder."""
        logs = (runs_dir / run.name / METRICS_FILE, self.log(run))
        return any(read_lines(path).last_step >= steps for path in logs if path.exists())

    def behind(self, run: Planned, runs_dir: Path) -> bool:
        """Whether a run's own folder has steps that are not on record here."""
        metrics, log = runs_dir / run.name / METRICS_FILE, self.log(run)
        if not metrics.exists():
            return False
        return not log.exists() or read_lines(metrics).last_step > read_lines(log).last_step

    def begin(self, run: Planned, runs_dir: Path, **facts: Any) -> None:
        """Says in a run's own folder what it is started with, for whoever finds it after this process was killed."""
        with whole_file(runs_dir / run.name / _MADE_WITH) as part:
            part.write_text(json.dumps({**facts, "overrides": run.overrides}) + "\n", encoding="utf-8")

    def made_with(self, run: Planned, runs_dir: Path) -> dict[str, Any]:
        """What `begin` said of a run when it was started last; nothing of one that was not.

        Raises:
            ValueError: the file is damaged; it is named.
        """
        return _read(runs_dir / run.name / _MADE_WITH)

    def stays(self, run: Planned, runs_dir: Path, steps: int) -> bool:
        """Whether what a run's own folder holds becomes a part of the set: all steps, or a checkpoint to go on from.
        Else the run begins anew."""
        metrics = runs_dir / run.name / METRICS_FILE
        whole = metrics.exists() and read_lines(metrics).last_step >= steps
        return whole or (runs_dir / run.name / "checkpoints" / TRACKER).exists()

    def keep(self, run: Planned, runs_dir: Path, **facts: Any) -> None:
        """Keeps a run's metrics, with the accuracy of each validation prompt, and the facts in its record, in whose
        place those of `begin` stand; of a run without metrics an empty log, so that it is not forgotten."""
        facts = {**facts, "overrides": run.overrides} | self.made_with(run, runs_dir)
        folder = runs_dir / run.name
        metrics = folder / METRICS_FILE
        lines = []
        for line in metrics.read_bytes().splitlines(keepends=True) if metrics.exists() else []:
            if line.endswith(b"\n"):  # else a killed run was about to write it
                record = json.loads(line)
                record["data"] = {name: value for name, value in record["data"].items() if _KEPT.match(name)}
                lines.append(record)
        for step in prompts.steps(folder):
            found = prompts.accuracies(folder, step)
            data = {PROMPTS_PREFIX + source: accuracies for source, accuracies in found.items()}
            lines += [{"step": step, "data": data}] if data else []
        text = "".join(json.dumps(line) + "\n" for line in lines)
        with whole_file(self.log(run)) as part:
            part.write_bytes(gzip.compress(text.encode(), mtime=0))
        records = self.record() | {run.name: facts}
        with whole_file(self._record) as part:
            part.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: no record")
    return found
