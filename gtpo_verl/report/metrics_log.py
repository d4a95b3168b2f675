"""One run's metrics, whichever logger wrote them.

verl's ``file`` logger writes one JSON object a line, ``{"step": n, "data": {"name": value, ...}}``
(verl 0.9.1, ``verl/utils/tracking.py``, ``FileLogger``; it writes NaN as null). What trackers write is read by
`gtpo_verl.report.trackers`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"
# A published log has, beside verl's numbers, what each prompt of a validation earned (`gtpo_verl.report.prompts`).
PROMPTS_PREFIX = "val-prompts/"
# What single precision holds, as metrics are computed and trackers keep them; more is an overflow, as infinity is.
LARGEST = 3.4028234663852886e38
LAST_STEP = 2**31 - 1


class MetricsError(ValueError):
    """Metrics are missing or damaged, or runs do not belong together; the message names the file."""


@dataclass(frozen=True)
class MetricsLog:
    """One run's metrics.

    Attributes:
        path: the file or folder they were read from.
        steps: per training step, in ascending order, the finite numbers logged under it, up to `LARGEST`; step 0 is
            validation before training. What was logged twice for a step (validation after a resume) counts as logged
            last.
        truncated: whether the end was cut off, as a killed run leaves it, and was skipped.
        prompts: per step and data source, the mean accuracy of each validation prompt, by a digest of the prompt.
    """

    path: Path
    steps: dict[int, dict[str, float]]
    truncated: bool = False
    prompts: Mapping[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def series(self, name: str) -> dict[int, float]:
        """Return the values of one metric by step; empty if it was never logged."""
        return {step: values[name] for step, values in self.steps.items() if name in values}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all metrics logged at any step."""
        return frozenset().union(*self.steps.values())

    @cached_property
    def last_step(self) -> int:
        """The last step that was logged; 0 before training, and for a run that logged nothing."""
        return max(self.steps, default=0)


def read_lines(path: Path) -> MetricsLog:
    """Read what verl's file logger wrote, gzipped where the name ends in ``.gz``; a log without steps is none yet.

    Raises:
        MetricsError: the file cannot be read, or is damaged elsewhere than in a cut-off end.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read ({error.strerror})") from error
    truncated = False
    if path.suffix == ".gz":
        content, truncated = _gunzip(content, path)
    *complete, last = content.split(b"\n")
    steps: dict[int, dict[str, float]] = {}
    prompts: dict[int, dict[str, dict[str, float]]] = {}
    for number, line in enumerate(complete, start=1):
        if line.strip():
            _add(steps, prompts, _record(line, f"{path}: line {number}"))
    if last.strip():
        # verl writes object and newline in one call: without the newline the line may, but need not, be whole.
        try:
            _add(steps, prompts, _record(last, ""))
        except MetricsError:
            truncated = True
    return MetricsLog(path, dict(sorted(steps.items())), truncated, prompts)


def _gunzip(content: bytes, path: Path) -> tuple[bytes, bool]:
    """What a gzip file holds, and whether its end is missing."""
    try:
        try:
            return gzip.decompress(content), False
        except EOFError:
            return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(content), True
    except (gzip.BadGzipFile, zlib.error) as error:
        raise MetricsError(f"{path}: not a gzip file, or damaged ({error})") from error


def parse_line(line: bytes, where: str) -> tuple[int, dict[str, float]]:
    """Return step and finite numeric values of one line.

    Raises:
        MetricsError: the line is not in the logger's form; ``where`` names it.
    """
    step, data = _record(line, where)
    return step, _numbers(data)


def _record(line: bytes, where: str) -> tuple[int, dict[str, Any]]:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MetricsError(f"{where}: not JSON ({error})") from error
    if (
        not isinstance(record, dict)
        or not isinstance(record.get("step"), int)
        or isinstance(record["step"], bool)
        or not isinstance(record.get("data"), dict)
    ):
        raise MetricsError(f'{where}: not of the form {{"step": n, "data": {{...}}}}')
    refuse_step(record["step"], where)
    return record["step"], record["data"]


def refuse_step(step: int, where: str) -> None:
    """Raises MetricsError for what is no step of a run, as damage to a number makes it; ``where`` names it."""
    if not 0 <= step <= LAST_STEP:
        raise MetricsError(f"{where}: step {str(step)[:20]} is none from 0 to {LAST_STEP}")


def _numbers(data: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value) for name, value in data.items() if isinstance(value, int | float) and abs(value) <= LARGEST
    }


def _add(
    steps: dict[int, dict[str, float]],
    prompts: dict[int, dict[str, dict[str, float]]],
    record: tuple[int, dict[str, Any]],
) -> None:
    step, data = record
    # Prompts alone are no step: a run can be cut off after its responses were written and before its metrics were.
    if not data or not all(name.startswith(PROMPTS_PREFIX) for name in data):
        steps.setdefault(step, {}).update(_numbers(data))
    for name, values in data.items():
        if name.startswith(PROMPTS_PREFIX) and isinstance(values, dict):
            prompts.setdefault(step, {})[name.removeprefix(PROMPTS_PREFIX)] = _numbers(values)
