"""Checkpoints of runs: which one is meant, and what comes with it. tests/e2e/test_resume.py evaluates a real run."""

import json
from pathlib import Path

import pytest
import torch

from gtpo_verl.configuration.composition import compose_config, to_yaml
from gtpo_verl.evaluation.models import find
from gtpo_verl.run_folder.checkpoints import TRACKER


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints in the layout that verl writes, of one rank."""
    folder = tmp_path / "runs/gtpo_v2-seed1"
    for step in (2, 4):
        checkpoint = folder / f"checkpoints/global_step_{step}"
        (checkpoint / "actor/huggingface").mkdir(parents=True)
        for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
            (checkpoint / "actor/huggingface" / name).write_text("{}")
        (checkpoint / "actor/fsdp_config.json").write_text(json.dumps({"world_size": 1}))
        torch.save({"weight": torch.full((4,), float(step))}, checkpoint / "actor/model_world_size_1_rank_0.pt")
        torch.save({"state": torch.zeros(4)}, checkpoint / "actor/optim_world_size_1_rank_0.pt")
        torch.save({}, checkpoint / "actor/extra_state_world_size_1_rank_0.pt")
        torch.save({}, checkpoint / "data.pt")
    (folder / "checkpoints" / TRACKER).write_text("4")
    (folder / "config.yaml").write_text(to_yaml(compose_config(["algorithm=gtpo_v2"])))
    return folder


def test_a_run_is_its_last_checkpoint(run: Path) -> None:
    for name in (run, run / "checkpoints", run / "checkpoints/global_step_4", f"{run}@4"):
        (model,) = find([str(name)])
        assert model.label == "gtpo_v2-seed1@4"
        assert model.checkpoint == run / "checkpoints/global_step_4/actor"
        assert model.folder == model.checkpoint / "huggingface"
        assert model.setting("actor_rollout_ref.rollout.val_kwargs.n") == 8


def test_steps_of_a_run_side_by_side(run: Path) -> None:
    first, last, named = find([f"{run}@2", str(run), f"end={run}"])
    assert (first.label, last.label, named.label) == ("gtpo_v2-seed1@2", "gtpo_v2-seed1@4", "end")
    assert first.fingerprint != last.fingerprint == named.fingerprint
    with pytest.raises(FileNotFoundError, match=r"gtpo_v2-seed1@3: no whole checkpoint of that step; there are 2, 4"):
        find([f"{run}@3"])


def test_the_optimizer_is_not_the_model(run: Path) -> None:
    before = find([str(run)])[0].fingerprint
    torch.save({"state": torch.ones(4)}, run / "checkpoints/global_step_4/actor/optim_world_size_1_rank_0.pt")
    assert find([str(run)])[0].fingerprint == before
    torch.save({"weight": torch.ones(4)}, run / "checkpoints/global_step_4/actor/model_world_size_1_rank_0.pt")
    assert find([str(run)])[0].fingerprint != before


def test_what_is_damaged_is_named(run: Path) -> None:
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"config\.yaml: not readable"):
        find([str(run)])
    (run / "checkpoints/global_step_2/actor/model_world_size_1_rank_0.pt").write_bytes(b"cut off")
    with pytest.raises(ValueError, match=r"global_step_2/actor/model_world_size_1_rank_0\.pt: not whole"):
        find([f"{run}@2"])
