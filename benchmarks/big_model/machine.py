"""Memory and disk of this machine while a run goes on, and which phase of which step took them."""

import csv
import itertools
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

GIB = 2**30
START = "start"  # of a job, before its first step
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SPARE = 3 * GIB


@dataclass(frozen=True)
class Sample:
    """What was in use at a moment.

    Attributes:
        time: seconds since 1970.
        host, disk: GiB of the machine's memory and of the file system.
        gpus: GiB of each card, by `nvidia-smi`.
    """

    time: float
    host: float
    disk: float
    gpus: tuple[float, ...]


class Sampler:
    """Writes a sample a second to a CSV file while the block runs.

    Args:
        path: of the file; what an earlier job wrote there is replaced.
        folder: on the file system to look at.
    """

    def __init__(self, path: Path, folder: Path, interval: float = 1.0):
        self.path, self.folder, self.interval = path, folder, interval
        self._ended = threading.Event()

    def __enter__(self) -> "Sampler":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8", newline="")
        self._thread = threading.Thread(target=self._run, name="memory sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        writer = csv.writer(self._file)
        gpus = len(gpu_memory())
        writer.writerow(["time", "host_gib", "disk_gib", *(f"gpu{n}_gib" for n in range(gpus))])
        while True:
            used = [size for size, _ in gpu_memory()][:gpus]
            host, disk = psutil.virtual_memory(), shutil.disk_usage(self.folder).used
            row = [(host.total - host.available) / GIB, disk / GIB, *used]
            writer.writerow([f"{time.time():.2f}", *(f"{value:.2f}" for value in row)])
            self._file.flush()
            if self._ended.wait(self.interval):
                return


def gpu_memory() -> list[tuple[float, float]]:
    """GiB in use and in all of each card; empty where `nvidia-smi` finds none."""
    command = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", timeout=30, check=True
        ).stdout
        pairs = [[float(number) / 1024 for number in line.split(",")] for line in output.splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    return [(used, total) for used, total in pairs]


def gpu_name() -> str | None:
    """Of the first card."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", timeout=30, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return names[0].strip() if names else None


def read_samples(path: Path) -> list[Sample]:
    """What a `Sampler` wrote; a torn last line is left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    samples = []
    for row in rows[1:]:
        if len(row) == len(rows[0]):
            now, host, disk, *gpus = map(float, row)
            samples.append(Sample(now, host, disk, tuple(gpus)))
    return samples


def by_phase(
    samples: Sequence[Sample], phases: Iterable[tuple[float, int, str]]
) -> dict[tuple[int, str], list[Sample]]:
    """Samples of one job by step and phase. Those before its first step are (0, START); phases of other jobs, which the
    same log may hold, begin before its first sample or after its last.

    Args:
        phases: beginnings as `gtpo_verl.runtime.stage.phases` finds them.
    """
    found: dict[tuple[int, str], list[Sample]] = {}
    if not samples:
        return found
    marks = sorted(mark for mark in phases if samples[0].time <= mark[0] <= samples[-1].time)
    ends = [began for began, _, _ in marks] + [float("inf")]
    place = -1
    for sample in samples:
        while sample.time >= ends[place + 1]:
            place += 1
        key = (marks[place][1], marks[place][2]) if place >= 0 else (0, START)
        found.setdefault(key, []).append(sample)
    return found


def peaks(found: Mapping[tuple[int, str], Sequence[Sample]]) -> dict[str, dict[str, float]]:
    """The most that any step had in use, by phase: `gpu` of the fullest card (GiB; absent without cards), `host`,
    `disk`."""
    most: dict[str, dict[str, float]] = {}
    for (_, phase), samples in found.items():
        values = most.setdefault(phase, {})
        for sample in samples:
            used = {"host": sample.host, "disk": sample.disk, **({"gpu": max(sample.gpus)} if sample.gpus else {})}
            for name, value in used.items():
                values[name] = max(values.get(name, 0.0), value)
    return most


def seconds(phases: Iterable[tuple[float, int, str]], phase: str) -> dict[int, float]:
    """How long a phase took, by step: until the next one began. Of a step that was taken twice, the last time."""
    marks = sorted(phases)
    following = itertools.pairwise(marks)
    return {step: after - began for (began, step, name), (after, _, _) in following if name == phase}


def check_growth(gib: int, limit_file: Path = _CGROUP_LIMIT) -> None:
    """Refuses to fill more than this machine may have.

    Raises:
        ValueError: the control group's limit is smaller.
    """
    try:
        limit = int(limit_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no control group, or "max"
        return
    if gib * GIB > limit:
        raise ValueError(f"--grow-memory {gib}: {limit_file} allows {limit / GIB:.0f} GiB")


def fill(gib: int) -> None:
    """Fills memory and frees it, for virtual machines that are given theirs as it is used, so that what starts later
    sees all of it. Says what it began and ended with. To be run in a process of its own: that one is killed where the
    memory is not there.
    """
    import torch

    Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    before, blocks = psutil.virtual_memory().total, list[torch.Tensor]()
    patience = time.monotonic() + 30
    while len(blocks) < gib and psutil.virtual_memory().total < gib * GIB:
        if psutil.virtual_memory().available > _SPARE:
            blocks.append(torch.ones(GIB, dtype=torch.uint8))
            patience = time.monotonic() + 30
        elif time.monotonic() > patience:
            break
        else:
            time.sleep(0.1)
    after = psutil.virtual_memory().total
    print(f"memory: {before / GIB:.0f} GiB, after filling {len(blocks)} GiB {after / GIB:.0f} GiB", flush=True)
