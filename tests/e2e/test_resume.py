"""A run that was stopped and goes on sees the prompts that it would have seen; what it leaves behind is what is kept,
and converts to the model that it trained. On the way, two trackers log a whole run."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from actors import write_actor
from omegaconf import OmegaConf
from training_run import COMMAND, SMALL, Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

# Two steps an epoch. Without dynamic sampling a step takes the next 4 prompts, no more.
TWO_STEPS_AN_EPOCH = [
    *SMALL,
    "algorithm=dapo",
    "algorithm.filter_groups.enable=false",
    "data.train_max_samples=8",
    "data.max_response_length=32",
    "actor_rollout_ref.rollout.n=4",
    "trainer.rollout_data_dir=rollouts",
]
LOWER = "actor_rollout_ref.actor.optim.lr=1e-6"
SAVE_EACH = ["trainer.save_freq=1", "trainer.max_actor_ckpt_to_keep=2"]


def prompts(folder: Path) -> dict[int, list[str]]:
    """The prompts of each step, from verl's dump of its rollouts, sorted: within a step they have no order."""
    return {
        int(path.stem): sorted({json.loads(line)["input"] for line in path.read_text().splitlines()})
        for path in (folder / "rollouts").glob("*.jsonl")
    }


def train_until(run: Run, step: int, *overrides: str, **environment: str) -> None:
    run.start(*TWO_STEPS_AN_EPOCH, f"trainer.total_training_steps={step}", *overrides, **environment)
    assert run.wait() == 0, run.terminal


@pytest.fixture(scope="module")
def stopped_twice(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Stopped within the first epoch, after step 1, and at its end, after step 2; gone on until 4."""
    run = Run(tmp_path_factory.mktemp("resumed"))
    for step in (1, 2, 4):
        others = ["trainer.logger=[console,file,tensorboard,wandb]", *([LOWER] if step == 4 else [])]
        train_until(run, step, *SAVE_EACH, *others, WANDB_MODE="offline")
    return run


def test_goes_on_within_an_epoch_and_in_the_next(stopped_twice: Run) -> None:
    """That the order is the one of a run that was never stopped is tested on the loader (test_data_order.py)."""
    assert stopped_twice.steps() == [1, 2, 3, 4]
    assert [record["data"]["training/epoch"] for record in stopped_twice.metrics()] == [0, 0, 1, 1]
    seen = prompts(stopped_twice.folder)
    assert [len(seen[step]) for step in (1, 2, 3, 4)] == [4, 4, 4, 4]
    assert not set(seen[1]) & set(seen[2])
    assert sorted(seen[1] + seen[2]) == sorted(seen[3] + seen[4])  # an epoch is an epoch
    assert seen[1] not in (seen[3], seen[4])  # in another order than the one before


def test_a_learning_rate_that_is_changed_holds(stopped_twice: Run) -> None:
    """The checkpoint holds the old one, in the optimizer's options and in the schedule."""
    rates = [record["data"]["actor/lr"] for record in stopped_twice.metrics()]
    assert rates == [5e-4, 5e-4, 1e-6, 1e-6]
    assert "actor_rollout_ref.actor.optim.lr: 0.0005 -> 1e-06" in stopped_twice.terminal
    assert "      lr: 1.0e-06\n" in (stopped_twice.run_dir() / "config.yaml").read_text()


def test_trackers_log_what_the_metrics_file_holds(stopped_twice: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = stopped_twice
    events = EventAccumulator(str(run.run_dir() / "tensorboard"))
    events.Reload()
    records = list((run.run_dir() / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(records) == 3  # a resumed run is a new one for wandb
    assert all(record.stat().st_size > 5_000 for record in records)
    metrics = [(record["step"], record["data"]) for record in run.metrics()]
    for name in metrics[0][1]:
        logged = [(event.step, event.value) for event in events.Scalars(name)]
        assert logged == [(step, pytest.approx(data[name], rel=1e-6)) for step, data in metrics], name
    run.assert_nothing_left()
    assert {path.name for path in run.folder.iterdir()} <= {"home", "rollouts", "runs", "terminal.txt", ".cache"}


def test_keeps_the_last_two_across_resumes(stopped_twice: Run) -> None:
    checkpoints = stopped_twice.run_dir() / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        ".lock",  # which keeps another run out
        "global_step_3",
        "global_step_4",
        "latest_checkpointed_iteration.txt",
    ]
    assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == "4"


def test_converts_to_what_the_actor_holds(stopped_twice: Run, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = stopped_twice
    command = [str(COMMAND), "convert", str(run.run_dir()), str(tmp_path / "model")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path / 'model'}\n"

    actor = run.run_dir() / "checkpoints/global_step_4/actor"
    shard = torch.load(actor / "model_world_size_1_rank_0.pt", weights_only=False)
    trained = {name: weight.to_local() for name, weight in shard.items()}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    converted = model.state_dict()
    assert converted.keys() == trained.keys()
    for name, weight in trained.items():
        assert torch.equal(converted[name], weight.bfloat16()), name

    tokens = AutoTokenizer.from_pretrained(tmp_path / "model")("2+3-1=?", return_tensors="pt").input_ids
    exact = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    exact.load_state_dict(trained)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits.float(), exact(tokens).logits, atol=0.2, rtol=0.05)


def test_is_evaluated_as_it_validates(stopped_twice: Run, tmp_path: Path) -> None:
    run = stopped_twice
    config = OmegaConf.load(run.run_dir() / "config.yaml")
    command = [str(COMMAND), "eval", str(run.run_dir()), f"{run.run_dir()}@3", "--data", config.data.val_files]
    command += ["--n", "1", "--out", "out"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    name = run.run_dir().name
    assert list(summary["data"]["val"]["models"]) == [f"{name}@4", f"{name}@3"]
    expected = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 32, "seed": 0, "dtype": "float32"}
    assert summary["sampling"] == expected
    assert summary["reward"] == "pkg://gtpo_verl.tasks.rewards:compute_score, right where acc > 0.5"
    # Converted once: two checkpoints.
    assert len(list((tmp_path / ".cache/gtpo-verl").glob("converted-*/model/model.safetensors"))) == 2


def test_a_finished_run_keeps_the_configuration_that_it_was_trained_with(tmp_path: Path) -> None:
    run = Run(tmp_path)
    folder = tmp_path / "runs/arithmetic/gtpo_v1-seed1"
    write_actor(folder / "checkpoints/global_step_4/actor")
    torch.save({}, folder / "checkpoints/global_step_4/data.pt")
    (folder / "checkpoints/latest_checkpointed_iteration.txt").write_text("4")
    (folder / "config.yaml").write_text("as it was")
    run.start(*SMALL, "algorithm=gtpo_v1", "trainer.total_training_steps=4", "algorithm.gtpo.alpha=0.5")
    assert run.wait() == 0, run.terminal
    assert "all 4 steps are done" in run.terminal
    assert (folder / "config.yaml").read_text() == "as it was"
    run.assert_nothing_left()
