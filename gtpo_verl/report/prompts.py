"""What each prompt of a validation earned, from the responses that verl writes to `trainer.validation_data_dir`.

verl logs the mean over prompts alone; an interval that is to hold for other prompts needs each one's.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gtpo_verl.report.metrics_log import LARGEST

# Where a run's validation responses are looked for, in its folder: `<step>.jsonl`, one response a line.
FOLDER = "validation"
CONFIG_FILE = "config.yaml"

Accuracies = dict[str, dict[str, float]]


def run_config(folder: Path) -> dict[str, Any]:
    """Return the resolved configuration that a run left in its folder.

    Raises:
        OSError, ValueError: there is none, or it is damaged.
    """
    import yaml

    try:
        config = yaml.load((folder / CONFIG_FILE).read_text("utf-8"), yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG_FILE}: no configuration")
    return config


def steps(run_dir: Path) -> list[int]:
    """Return the steps whose validation responses lie in a run's folder, in ascending order."""
    return sorted(int(path.stem) for path in (run_dir / FOLDER).glob("*.jsonl") if path.stem.isdecimal())


@cache
def accuracies(run_dir: Path, step: int) -> Accuracies:
    """Return the mean `acc` of each prompt's responses, by data source and digest of the prompt.

    The responses name no data source; the validation files that the run's `config.yaml` names do.

    Returns:
        Empty where there are no responses, or where the prompts cannot all be found in the validation files.
    """
    try:
        return _accuracies(run_dir, step)
    # None written, cut off, without `acc`, of another form; the files are gone, or damaged in a way that pyarrow has a
    # name for. The report says what it can without them.
    except Exception:
        return {}


def _accuracies(run_dir: Path, step: int) -> Accuracies:
    # Of a session of several outputs every line carries the last one's accuracy.
    sessions: dict[str, tuple[str, float]] = {}
    with (run_dir / FOLDER / f"{step}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            acc = float(row["acc"])
            if not abs(acc) <= LARGEST:
                raise ValueError(f"{acc} is no accuracy")
            sessions[str(row["uid"]).rsplit("_", 1)[0]] = row["input"], acc
    questions = _sources_by_question(run_config(run_dir)["data"])
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for prompt, acc in sessions.values():
        by_prompt[prompt].append(acc)
    found: Accuracies = {}
    for prompt, values in by_prompt.items():
        asked = max((question for question in questions if question in prompt), key=len, default=None)
        if asked is None:
            return {}
        digest = hashlib.blake2b(prompt.encode(), digest_size=6).hexdigest()
        found.setdefault(questions[asked], {})[digest] = float(np.mean(values))
    return found


def _sources_by_question(data: Mapping[str, Any]) -> dict[str, str]:
    """The data source of each question of a run's validation files: the text of the last message."""
    import pyarrow.parquet

    files = data["val_files"] if isinstance(data["val_files"], list) else [data["val_files"]]
    found: dict[str, str] = {}
    for file in files:
        key = data.get("prompt_key", "prompt")
        for row in pyarrow.parquet.read_table(file, columns=["data_source", key]).to_pylist():
            found[str(row[key][-1]["content"])] = row["data_source"]
    return found
