"""The main job with the real pretrained model: both algorithms, checkpoints, and the figure of both curves."""

from pathlib import Path

import pytest
from training_run import Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_quickstart_with_smollm2(run: Run) -> None:
    overrides = ["model=smollm2", "trainer.total_training_steps=1", "trainer.test_freq=1", "trainer.save_freq=1"]
    # 135M parameters are slow on a CPU: few and short responses, and no groups thrown away.
    overrides += ["data.max_response_length=40", "algorithm.filter_groups.enable=false", "data.train_batch_size=2"]
    overrides += ["actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    run.start(*overrides, command="quickstart")
    assert run.wait(timeout=1700) == 0, run.terminal
    run.assert_nothing_left()
    for name in ("dapo", "gtpo_v1"):
        folder = run.folder / "runs/smollm2" / f"{name}-seed1"
        assert (folder / "checkpoints/global_step_1/actor/model_world_size_1_rank_0.pt").exists()
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2  # validation before training, one step
        assert str(folder / "metrics.jsonl") in run.terminal
        assert str(folder / "checkpoints") in run.terminal
    for record in run.metrics():
        if record["step"] > 0:
            assert record["data"]["training/rollout_probs_diff_mean"] < 1e-4
    curves = run.folder / "runs/smollm2/report/curves.png"
    assert str(curves) in run.terminal
    assert curves.read_bytes().startswith(b"\x89PNG")
    assert Path(curves).with_suffix(".svg").exists()
