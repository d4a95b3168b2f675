"""One run in which every step is another algorithm's: presets that no other test trains, and choices beside them."""

import json
import os
from pathlib import Path

from training_run import ROOT, SMALL, Run

TRAINED_ELSEWHERE = {"dapo", "gtpo_v1", "gtpo_v2"}  # test_reproduction.py, test_training.py, test_cluster.py
PRESETS = sorted({path.stem for path in Path(ROOT, "configs/algorithm").glob("*.yaml")} - TRAINED_ELSEWHERE - {"grpo"})
GROP = ["algorithm.gtpo.length_penalty.enable=true", "algorithm.gtpo.length_penalty.kind=grop"]
TURNS = {
    "grpo": ["algorithm=grpo"],  # first of all, while the model is still the reference model
    "gtpo_v2 grop": ["algorithm=gtpo_v2", *GROP],
    **{preset: [f"algorithm={preset}"] for preset in PRESETS},
    "gtpo_v1 token_tis": ["algorithm=gtpo_v1", "rollout_correction=token_tis"],
    "gspo token_tis": ["algorithm=gspo", "rollout_correction=token_tis"],
    "grpo_s_v1 sequence_tis": ["algorithm=grpo_s_v1", "rollout_correction=sequence_tis"],
    "gtpo_v1 forking": ["algorithm=gtpo_v1", "algorithm.forking.share=0.3", "algorithm.forking.scope=response"],
}
# Two mini-batches a step: in the second, the policy is no longer the old one. Small steps, as each pulls elsewhere.
BASE = [*SMALL, "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.lr=1e-4"]


def start(run: Run, keys: Path) -> None:
    """Starts with what some presets need from the beginning: fixed micro-batches, and a reference model."""
    last = len(TURNS)
    run.start(
        *BASE,
        "algorithm=gmpo",
        "actor_rollout_ref.actor.use_kl_loss=true",
        "gtpo_verl.token_dump_freq=1",
        "gtpo_verl.token_dump_dir=tokens",
        f"trainer.total_training_steps={last}",
        f"trainer.test_freq={last}",
        f"trainer.save_freq={last}",
        PYTHONPATH=f"{ROOT / 'tests/e2e/inside_run'}:{os.environ.get('PYTHONPATH', '')}",
        GTPO_VERL_KEYS=str(keys),
        GTPO_VERL_TURNS=json.dumps([BASE, list(TURNS.values())]),
    )
