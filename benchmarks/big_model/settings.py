"""The runs, and what one node of so few GPUs forces upon the presets of the 32B scripts: a fit, not a recipe."""

from dataclasses import dataclass
from pathlib import Path

PROMPT = 64  # tokens, of the longest one in `inputs.save_data` with its template
MINI_BATCH, BATCH = 8, 16
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Job:
    """One submission.

    Attributes:
        algorithm, engine: for the table; jobs of one algorithm are one run.
        script: of scripts/.
        overrides: beside those that all share.
    """

    algorithm: str
    engine: str
    script: str
    overrides: tuple[str, ...]


# Three steps, the first of which compiles and warms up; then one save.
JOBS = {
    "gtpo": Job(
        "gtpo_v2",
        "gtpo_verl",
        "run_gtpo_v2_qwen2.5_32b.sh",
        ("trainer.total_training_steps=3", "trainer.save_freq=3"),
    ),
    # One step from the checkpoint, which has no moments; it is not saved again.
    "resume": Job(
        "gtpo_v2",
        "gtpo_verl",
        "run_gtpo_v2_qwen2.5_32b.sh",
        ("trainer.total_training_steps=4", "trainer.save_freq=-1"),
    ),
    "dapo": Job(
        "dapo",
        "verl",
        "run_dapo_qwen2.5_32b.sh",
        (
            "trainer.total_training_steps=3",
            "trainer.save_freq=-1",
            # verl's own engine and rollouts.
            "gtpo_verl.fused_entropy=false",
            "gtpo_verl.fast_rollout=false",
        ),
    ),
}
# The last step of `gtpo`, which saves, and that of `resume`, which is sampled with what was saved.
SAVED_STEP, RESUMED_STEP = 3, 4


def forced(gpus: int, response_length: int) -> list[str]:
    """What `scale=32b_16x8` and `model=dapo_math` cannot keep on one node.

    Args:
        gpus: 4 or 8; 1 and 2 to try smaller models.
        response_length: tokens.
    """
    overrides = [
        "trainer.nnodes=1",
        # Resident: pinned copies of all weights and moments would take most of a node's memory, and their way there and
        # back more time than the rest of so short a step.
        f"{_ACTOR}.fsdp_config.param_offload=false",
        f"{_ACTOR}.fsdp_config.optimizer_offload=false",
        # So that vLLM leaves weights and moments their place (46 GiB a card at 32B).
        f"{_ROLLOUT}.gpu_memory_utilization=0.5",
        # 16 prompts x the preset's 16 responses, in two updates: minutes a step.
        f"data.train_batch_size={BATCH}",
        f"{_ACTOR}.ppo_mini_batch_size={MINI_BATCH}",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={response_length}",
        f"{_ROLLOUT}.max_model_len={PROMPT + response_length}",
        # It must be shorter than a response.
        f"reward.reward_kwargs.overlong_buffer_cfg.len={response_length // 8}",
        # No group is uniform, so that asking for more prompts would be surplus and the runs no longer alike.
        "gtpo_verl.first_batch=null",
        # Three steps have no room for a warm-up.
        f"{_ACTOR}.optim.lr_warmup_steps=0",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        # With the moments a checkpoint would be three times as large, and the disk full. A resume has none, then.
        f"{_ACTOR}.checkpoint.save_contents=[model,extra]",
        "trainer.max_actor_ckpt_to_keep=1",
        # For the comparison with fp32.
        "gtpo_verl.token_dump_freq=1",
    ]
    if gpus < 8:
        overrides += [
            f"trainer.n_gpus_per_node={gpus}",
            # A sequence over all of them, as over a node's 8.
            f"{_ACTOR}.ulysses_sequence_parallel_size={gpus}",
            # fp32 weights, gradients and moments are 122 GiB a card at 32B on four, before AdamW's temporaries.
            f"{_ACTOR}.fsdp_config.model_dtype=bf16",
            # A bf16 weight moves by 1 / 256 of itself or not at all: at 1e-6 one in sixty would, at 1e-5 one in seven.
            f"{_ACTOR}.optim.lr=1.0e-5",
        ]
    if gpus < 4:
        overrides.append(f"{_ROLLOUT}.tensor_model_parallel_size={gpus}")
    return overrides


def overrides(job: Job, gpus: int, response_length: int, reward: Path, extra: list[str]) -> list[str]:
    """All that a job's script is given; `extra` comes last and overrides."""
    custom = f"reward.custom_reward_function.path={quoted(reward)}"
    return [*forced(gpus, response_length), custom, *job.overrides, *extra]


def quoted(path: Path) -> str:
    """As Hydra reads it, with nothing special in it."""
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
