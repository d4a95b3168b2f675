"""A whole set of runs from a manifest: stopped half-way, gone on with, and reported. That runs are started side by side
is tests/benchmarks/test_reproduction.py's."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from training_run import ROOT, SMALL, Run

from gtpo_verl.report.metrics_log import read_lines

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

ALGORITHMS = ["dapo", "gtpo_v2"]
NAMES = [f"{algorithm}-seed1" for algorithm in ALGORITHMS]
STEPS = 8  # enough that the second run is stopped on its way
VALIDATION = [f"trainer.test_freq={STEPS}", "data.val_max_samples=8", "actor_rollout_ref.rollout.val_kwargs.n=4"]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "manifest.yaml"
    overrides = ["model=tiny", *SMALL, *VALIDATION, f"gtpo_verl.cache_dir={ROOT / '.cache/gtpo-verl'}"]
    given = {
        "set": "small",
        "steps": STEPS,
        "seeds": [1],
        "overrides": overrides,
        "runs": {algorithm: {} for algorithm in ALGORITHMS},
        "scales": {"cpu": {"cards": 0, "side_by_side": 1, "overrides": ["scale=cpu"]}},
    }
    path.write_text(yaml.safe_dump(given, sort_keys=False))
    return path


def start(run: Run, manifest: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.reproduction", "cpu", "--manifest", str(manifest)]
    run.process = subprocess.Popen(
        command,
        cwd=run.folder,
        env={**os.environ, "HOME": str(run.home), "PYTHONPATH": str(ROOT), "GTPO_VERL_TEST": run.mark},
        stdout=(run.folder / "terminal.txt").open("wb"),
        stderr=subprocess.STDOUT,
    )


def test_a_set_is_stopped_gone_on_with_and_reported(run: Run, manifest: Path) -> None:
    results = run.folder / "runs/small/results"
    start(run, manifest)
    run.wait_until(lambda: ": done" in run.terminal, timeout=900)
    second = run.folder / "runs/small" / NAMES[1] / "metrics.jsonl"
    run.wait_until(lambda: second.exists() and second.stat().st_size > 0)  # it has made its first step
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    run.assert_nothing_left()
    assert "2 runs, 0 done" in run.terminal
    # What there is has been reported.
    assert "ended early or still run" in " ".join((results / "report/report.html").read_text().split())
    (done,) = [name for name in NAMES if f"{name}: done" in run.terminal]
    first = (results / f"{done}.jsonl.gz").read_bytes()

    start(run, manifest)
    assert run.wait(timeout=1400) == 0, run.terminal
    run.assert_nothing_left()
    assert "2 runs, 1 done" in run.terminal
    assert f"{done}: started" not in run.terminal
    assert (results / f"{done}.jsonl.gz").read_bytes() == first
    for name in NAMES:
        kept = read_lines(results / f"{name}.jsonl.gz")
        trained = read_lines(run.folder / "runs/small" / name / "metrics.jsonl")
        assert list(kept.steps) == list(range(1, STEPS + 1))
        assert kept.steps[STEPS]["actor/entropy"] == trained.steps[STEPS]["actor/entropy"] > 0
        assert kept.steps[STEPS]["actor/grad_norm"] > 0
        assert ("gtpo/zero_advantage_frac" in kept.steps[STEPS]) == (not name.startswith("dapo"))
        # Each validation prompt's accuracy is there, and together they are what verl logged.
        (accuracies,) = kept.prompts[STEPS].values()
        assert len(accuracies) == 8
        (mean,) = [value for metric, value in kept.steps[STEPS].items() if metric.endswith("/acc/mean@4")]
        assert sum(accuracies.values()) / 8 == pytest.approx(mean)
    assert "ended early" not in " ".join(run.terminal.split())
    assert f"At step {STEPS}" in run.terminal
    assert {path.name for path in (results / "report").iterdir()} >= {"curves.svg", "diagnostics.png", "report.html"}

    start(run, manifest)
    assert run.wait(timeout=300) == 0, run.terminal
    assert "2 runs, 2 done" in run.terminal
    assert "started" not in run.terminal
