"""Formulas and configuration together: what does not fit is red, and names the key that makes it fit."""

from dataclasses import replace

import pytest
from omegaconf import DictConfig

from gtpo_verl.preflight import budget
from gtpo_verl.preflight.architecture import ModelShape, published_shape
from gtpo_verl.preflight.findings import Finding, Status, refused
from gtpo_verl.preflight.memory import GIB

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def shape(configured) -> ModelShape:
    return published_shape(configured().gtpo_verl.architecture)


def gpu(config: DictConfig, shape: ModelShape, gib: float | None = 80) -> list[Finding]:
    return budget.check_gpu_memory(config, shape, None if gib is None else int(gib * GIB), "node-3")


@pytest.mark.parametrize("algorithm", ["gtpo_v1", "gmpo", "grpo"])  # token budgets, fixed micro-batches, a reference
@pytest.mark.parametrize("scale", ["32b_16x8", "32b_8x8", "7b_1x8"])
def test_the_scales_fit_into_80_gb(configured, scale: str, algorithm: str) -> None:
    config = configured(f"algorithm={algorithm}", scale=scale)
    findings = budget.check_gpu_memory(config, published_shape(config.gtpo_verl.architecture), 80 * 10**9, "")
    assert [finding.what for finding in findings] == [
        "GPU memory, rollout",
        "GPU memory, log-prob",
        "GPU memory, update",
        "KV cache",
    ]
    assert {finding.status for finding in findings} == {Status.OK}


BAD = {
    "activations and logits of a long micro-batch": (
        [f"{ACTOR}.ppo_max_token_len_per_gpu=65536"],
        "GPU memory, update",
        f"{ACTOR}.ppo_max_token_len_per_gpu",
    ),
    "no gradient checkpointing": (
        ["actor_rollout_ref.model.enable_gradient_checkpointing=false"],
        "GPU memory, update",
        "actor_rollout_ref.model.enable_gradient_checkpointing",
    ),
    "too few ranks for the state": (
        ["trainer.nnodes=1"],
        "GPU memory, update",
        "trainer.nnodes",
    ),
    "long log-prob pass": (
        [f"{ROLLOUT}.log_prob_max_token_len_per_gpu=280000"],
        "GPU memory, log-prob",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    ),
    "vLLM takes everything": (
        [f"{ROLLOUT}.gpu_memory_utilization=0.99"],
        "GPU memory, rollout",
        f"{ROLLOUT}.gpu_memory_utilization",
    ),
    "vLLM stays beside the update": (
        [f"{ROLLOUT}.free_cache_engine=false"],
        "GPU memory, update",
        f"{ROLLOUT}.free_cache_engine",
    ),
    "vLLM's weights alone are too large": (
        [f"{ROLLOUT}.tensor_model_parallel_size=1", f"{ROLLOUT}.gpu_memory_utilization=0.5"],
        "KV cache",
        f"{ROLLOUT}.tensor_model_parallel_size",
    ),
    "no room for one sequence": (
        [f"{ROLLOUT}.gpu_memory_utilization=0.22"],
        "KV cache",
        f"{ROLLOUT}.gpu_memory_utilization",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_names_its_key(configured, shape: ModelShape, case: str) -> None:
    overrides, what, key = BAD[case]
    red = {finding.what: finding for finding in refused(gpu(configured(*overrides), shape))}
    assert red[what].key == key
    assert red[what].where == "node-3"


def test_without_a_gpu_the_needs_are_shown_and_not_judged(configured, shape: ModelShape) -> None:
    findings = gpu(configured(), shape, None)
    assert {finding.status for finding in findings} == {Status.UNKNOWN}
    assert "activations 20.6" in findings[1].detail
    assert "one layer 6.9" in findings[0].detail


def test_above_nine_tenths_is_a_warning(configured, shape: ModelShape) -> None:
    total = budget.update_phase(configured(), shape).total + budget.OVERHEAD
    for share, status in ((0.85, Status.OK), (0.95, Status.WARN), (1.01, Status.FAIL)):
        update = gpu(configured(), shape, total / share / GIB)[2]
        assert (update.what, update.status) == ("GPU memory, update", status)
        assert bool(update.key) == (status is not Status.OK)


def test_offloading_moves_the_state_from_gpu_to_node(configured, shape: ModelShape) -> None:
    here = configured(f"{ACTOR}.fsdp_config.param_offload=false")
    there = configured()
    weights = budget.training_state(there, shape)["weights"]
    assert budget.rollout_phase(here, shape, 0).parts["weights"] == weights
    assert budget.rollout_phase(there, shape, 0).parts["weights"] == 0
    assert budget.host_memory(here, shape)["offloaded weights"] == 0
    assert budget.host_memory(there, shape)["offloaded weights"] == 8 * weights


@pytest.mark.parametrize("penalty", ["actor_rollout_ref.actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true"])
def test_a_reference_model_lies_in_the_nodes_memory(configured, shape: ModelShape, penalty: str) -> None:
    without, beside = configured(), configured(penalty)
    weights = budget.training_state(beside, shape)["weights"]
    assert budget.host_memory(without, shape)["reference model"] == 0
    assert budget.host_memory(beside, shape)["reference model"] == 8 * weights
    assert budget.phases(beside, shape, 80 * GIB) == budget.phases(without, shape, 80 * GIB)
    adapters = configured(penalty, "actor_rollout_ref.model.lora_rank=16")
    assert budget.host_memory(adapters, shape)["reference model"] == 0


def test_shards_within_a_node_only(configured, shape: ModelShape) -> None:
    """`fsdp_size=8`: every node holds a whole copy."""
    config = configured(f"{ACTOR}.fsdp_config.fsdp_size=8")
    assert budget.training_state(config, shape)["weights"] == 4 * shape.parameters // 8


def test_a_fixed_micro_batch_takes_the_place_of_the_token_budget(configured, shape: ModelShape) -> None:
    fixed = [f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"]
    equal = configured(f"{ACTOR}.ppo_max_token_len_per_gpu=5632")  # 2 x 22,528 tokens over 8 ranks
    by_sequences = budget.update_phase(configured(*fixed), shape)
    assert by_sequences.parts == budget.update_phase(equal, shape).parts
    assert by_sequences.key_to_change == f"{ACTOR}.ppo_micro_batch_size_per_gpu"


def test_lora_leaves_no_gradient_and_no_moment_of_the_frozen_weights(configured, shape: ModelShape) -> None:
    full, frozen = configured(), configured("actor_rollout_ref.model.lora_rank=16")
    assert budget.training_state(frozen, shape) == {
        **budget.training_state(full, shape),
        "gradients": 0,
        "optimizer": 0,
    }
    assert budget.host_memory(frozen, shape)["offloaded optimizer"] == 0
    assert budget.checkpoint_bytes(frozen, shape)[0] == 4 * shape.parameters
    for config, large in ((frozen, 1), (frozen, 8)):
        parts = budget.update_phase(config, replace(shape, vocabulary=large * shape.vocabulary)).parts
        assert not parts.get("head gradient")
        assert not parts.get("reduced gradient")


def test_fsdp2s_own_offloading_keeps_the_state_on_the_node(configured, shape: ModelShape) -> None:
    config = configured(*(f"{ACTOR}.fsdp_config.{key}" for key in ("offload_policy=true", "param_offload=false")))
    state = budget.training_state(config, shape)
    for phase in (budget.log_prob_phase(config, shape), budget.update_phase(config, shape)):
        assert not any(phase.parts.get(part) for part in state)
    assert not budget.rollout_phase(config, shape, 0).parts["weights"]
    node = budget.host_memory(config, shape)
    assert {part: node[f"offloaded {part}"] for part in state} == {part: 8 * size for part, size in state.items()}
    few = configured("trainer.nnodes=1", f"{ACTOR}.fsdp_config.offload_policy=true")
    for size, status in ((16 * shape.parameters - 1, Status.FAIL), (18 * shape.parameters, Status.OK)):
        assert budget.check_host_memory(few, shape, size, "n").status is status


def test_layers_that_stay_gathered(configured, shape: ModelShape) -> None:
    config = configured(f"{ACTOR}.fsdp_config.reshard_after_forward=false")
    for phase in (budget.log_prob_phase(config, shape), budget.update_phase(config, shape)):
        assert phase.parts["gathered layers"] == 2 * shape.parameters


def test_verls_own_path_holds_the_logits_thrice(configured, shape: ModelShape) -> None:
    ours, verls = (
        budget.log_prob_phase(
            configured(f"gtpo_verl.fused_entropy={fused}"), replace(shape, vocabulary=3 * shape.vocabulary)
        )
        for fused in ("true", "false")
    )
    assert verls.parts["logits"] == 3 * ours.parts["logits"]


def test_the_larger_of_two_moments_counts(configured, shape: ModelShape) -> None:
    """The LM head's logits are gone when a layer's activations are there, and the other way round."""
    small, large = (replace(shape, vocabulary=size * shape.vocabulary) for size in (1, 8))
    update, log_prob = budget.update_phase, budget.log_prob_phase
    assert {"backward", "reduced gradient"} <= update(configured(), small).parts.keys()
    assert {"logits", "head gradient"} <= update(configured(), large).parts.keys()
    assert not {"backward", "reduced gradient"} & update(configured(), large).parts.keys()
    assert "logits" not in log_prob(configured(), small).parts
    assert "one layer" not in log_prob(configured(), large).parts


QWEN_7B_WIDTH = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 2,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "tie_word_embeddings": False,
}
SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49_152,
    "tie_word_embeddings": True,
}
ON_TWO_GPUS = [
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    f"{ACTOR}.ppo_max_token_len_per_gpu=8192",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu=8192",
]


# GiB: the most that PyTorch had allocated (actor/perf/max_memory_allocated_gb) on H200s, docs/performance.md.
@pytest.mark.parametrize(
    ("architecture", "scale", "overrides", "measured"),
    [(QWEN_7B_WIDTH, "32b_16x8", ON_TWO_GPUS, 16.8), (SMOLLM2, "gpu", [], 4.56)],
    ids=["two layers of 7B width on two GPUs", "SmolLM2-135M on one"],
)
def test_the_estimate_is_a_little_above_what_gpus_took(
    configured, architecture: dict, scale: str, overrides: list[str], measured: float
) -> None:
    config, shape = configured(*overrides, scale=scale), published_shape(architecture)
    estimate = max(phase(config, shape).total for phase in (budget.log_prob_phase, budget.update_phase)) / GIB
    assert measured <= estimate <= 1.15 * measured


def test_a_node_must_hold_the_model_while_it_is_loaded(configured, shape: ModelShape) -> None:
    config = configured()
    assert budget.host_memory(config, shape)["loading"] == 4 * shape.parameters
    assert budget.check_host_memory(config, shape, 1000 * GIB, "n").status is Status.OK
    red = budget.check_host_memory(config, shape, 100 * GIB, "n")
    assert (red.status, red.key) == (Status.FAIL, "trainer.n_gpus_per_node")
    tied = replace(shape, tied=True)
    assert budget.host_memory(config, tied)["loading"] == 8 * 4 * shape.parameters
    few = configured("trainer.nnodes=1")
    red = budget.check_host_memory(few, shape, 200 * GIB, "n")
    assert (red.status, red.key) == (Status.FAIL, f"{ACTOR}.fsdp_config.optimizer_offload")


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ([], 3),
        (["trainer.max_actor_ckpt_to_keep=1"], 2),  # the old one goes when the new one is there
        (["trainer.max_actor_ckpt_to_keep=5"], 6),
        (["trainer.max_actor_ckpt_to_keep=5", "trainer.total_training_steps=12"], 3),
        (["trainer.max_actor_ckpt_to_keep=null"], 40),
        (["trainer.max_actor_ckpt_to_keep=null", "trainer.total_training_steps=null"], None),
        (["trainer.save_freq=-1"], 0),
        (["trainer.val_only=true"], 0),
        (["trainer.val_only=true", "trainer.val_before_train=false"], 3),  # verl trains
    ],
)
def test_checkpoints_at_once(configured, shape: ModelShape, overrides: list[str], count: int | None) -> None:
    assert budget.checkpoint_bytes(configured(*overrides), shape) == (12 * shape.parameters, count)


def test_a_disk_too_small_is_red(configured, shape: ModelShape) -> None:
    config = configured()  # three checkpoints of 366 GiB
    finding = budget.check_checkpoint_space(config, shape, 700 * GIB, "node-1")
    assert (finding.status, finding.key) == (Status.FAIL, "trainer.max_actor_ckpt_to_keep")
    assert "1098.5 GiB" in finding.detail
    assert "700.0 GiB free" in finding.detail
    assert budget.check_checkpoint_space(config, shape, 1200 * GIB, "node-1").status is Status.OK
    assert budget.check_checkpoint_space(config, shape, None, "").status is Status.UNKNOWN
    endless = configured("trainer.max_actor_ckpt_to_keep=null", "trainer.total_training_steps=null")
    assert budget.check_checkpoint_space(endless, shape, 800 * GIB, "").status is Status.WARN


@pytest.mark.parametrize(
    ("overrides", "resumed", "present", "count"),
    [
        ([], 5, 1, 2),
        ([], 100, 2, 1),  # as many as are kept: one more, and the oldest goes
        ([], 100, 20, 1),  # of a run that kept all: they go once the next one is there
        ([], 100, 0, 3),  # from elsewhere (trainer.resume_from_path)
        (["trainer.max_actor_ckpt_to_keep=5", "trainer.total_training_steps=12"], 5, 1, 2),
        (["trainer.max_actor_ckpt_to_keep=null"], 100, 20, 20),
        (["trainer.max_actor_ckpt_to_keep=null", "trainer.total_training_steps=101"], 100, 20, 1),
    ],
)
def test_checkpoints_that_lie_there_need_no_space_again(
    configured, shape: ModelShape, overrides: list[str], resumed: int, present: int, count: int
) -> None:
    config = configured(*overrides)
    assert budget.checkpoint_bytes(config, shape, resumed, present) == (12 * shape.parameters, count)
    for free, status in ((count - 0.1, Status.FAIL), (count + 0.1, Status.OK)):
        size = int(free * 12 * shape.parameters)
        assert budget.check_checkpoint_space(config, shape, size, "", resumed, present).status is status
