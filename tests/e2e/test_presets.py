"""Every other preset of `configs/algorithm` trains: two real steps each."""

from pathlib import Path

import pytest
from training_run import ROOT, SMALL, Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

# test_training.py, test_cluster.py, test_reproduction.py
TRAINED_ELSEWHERE = {"dapo", "gtpo_v1", "gtpo_v2", "grpo_s_v2", "gtpo_v3", "grpo_s_v3"}
PRESETS = sorted({path.stem for path in Path(ROOT, "configs/algorithm").glob("*.yaml")} - TRAINED_ELSEWHERE)


@pytest.mark.parametrize("preset", PRESETS)
def test_trains(preset: str, run: Run) -> None:
    run.start(*SMALL, f"algorithm={preset}", "trainer.total_training_steps=2")
    assert run.wait() == 0, run.terminal
    run.assert_nothing_left()
    assert run.steps() == [1, 2]
    for record in run.metrics():
        data = record["data"]
        assert data["actor/grad_norm"] > 0
        assert data["gtpo/zero_advantage_frac"] < 1
        assert 0 < data["actor/entropy"] < 7
