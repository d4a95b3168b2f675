"""scripts/try_32b_4gpu.sh, all stages: with a tiny model on two ranks of a CPU, and the real thing on four GPUs."""

import csv
import json
import subprocess
from pathlib import Path

import pytest
import torch
from training_run import ROOT

from gtpo_verl.runtime import stage

pytestmark = [pytest.mark.e2e]

TINY = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
# After those of the script, which are for GPUs.
ON_CPU = [
    "scale=cpu_cluster",
    "trainer.nnodes=1",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.n=4",
]


def make_table(out: Path, *arguments: str) -> dict[tuple, dict]:
    """Runs the script to its end; what it found against fp32, by algorithm, step and value."""
    result = subprocess.run(
        [ROOT / "scripts/try_32b_4gpu.sh", "--out", out, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-8000:]
    print((out / "table.md").read_text())
    (steps,) = out.glob("training_step_*gpu_32b.csv")
    rows = list(csv.DictReader(steps.open()))
    assert [(row["algorithm"], row["step"], row["first_of_job"]) for row in rows] == [
        ("gtpo_v2", "1", "True"),
        ("gtpo_v2", "2", "False"),
        ("gtpo_v2", "3", "False"),
        ("gtpo_v2", "4", "True"),
        ("dapo", "1", "True"),
        ("dapo", "2", "False"),
        ("dapo", "3", "False"),
    ]
    assert [row["step"] for row in rows if row["save"]] == ["3"]
    found = [row for path in out.glob("check_*.json") for row in json.loads(path.read_text())]
    return {(row["algorithm"], row["step"], row["value"]): row for row in found}


@pytest.mark.by_hand
@pytest.mark.timeout(1800)
def test_the_whole_table_with_a_tiny_model(tmp_path: Path) -> None:
    arguments = [f"--field={key}={value}" for key, value in TINY.items()]
    arguments += [f"--override={override}" for override in ON_CPU]
    out = tmp_path / "out"
    found = make_table(out, "--gpus=2", "--response-length=32", "--object-store=1", *arguments)
    assert 0 < found["gtpo_v2", 3, "share of weights changed"]["mean"] <= 1
    for algorithm, step in (("gtpo_v2", 1), ("gtpo_v2", 4), ("dapo", 1)):
        for value in ("old_log_probs", "entropy", "rollout_log_probs"):
            assert found[algorithm, step, value]["largest"] < 1e-3, (algorithm, step, value)
    began = stage.phases((out / "runs/gtpo_v2/train.log").read_text(errors="replace"))
    a_step = ["rollout", "log-probabilities", "advantages", "update", "weights"]
    for step in (1, 2, 3, 4):
        saves = ["save", "between steps"] if step == 3 else []
        assert [phase for _, of, phase in sorted(began) if of == step] == [*a_step, *saves]
    assert (out / "memory_2gpu_32b.csv").exists()


@pytest.mark.gpu
@pytest.mark.timeout(7200)
@pytest.mark.skipif(
    torch.cuda.device_count() < 4, reason="needs four GPUs of 139 GiB, 512 GiB of memory, 200 GB of disk"
)
def test_the_whole_table_at_32b(tmp_path: Path) -> None:
    gpus = 8 if torch.cuda.device_count() >= 8 else 4
    found = make_table(tmp_path / "out", f"--gpus={gpus}")
    assert found["gtpo_v2", 3, "share of weights changed"]["mean"] > 0.01
    # What bf16 costs over 64 layers is not known before this has run; both engines may cost the same.
    for value in ("old_log_probs", "entropy"):
        ours, stock = (found[algorithm, 1, value]["mean"] for algorithm in ("gtpo_v2", "dapo"))
        assert ours <= 1.2 * stock, value
