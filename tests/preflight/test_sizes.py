"""Sizes that do not fit are named by the key that holds them."""

import pytest

from gtpo_verl.preflight.findings import Status, refused
from gtpo_verl.preflight.sizes import (
    LOG_PROB_BATCH,
    UPDATE_BATCH,
    VERL_DTYPES,
    VLLM_DTYPES,
    check_sizes,
    check_values,
    micro_batch_tokens,
    sharding_ranks,
)


@pytest.mark.parametrize("scale", ["32b_16x8", "32b_8x8", "7b_1x8"])
def test_the_scales_fit(configured, scale: str) -> None:
    findings = check_sizes(configured(scale=scale), 131_072)
    assert {finding.status for finding in findings} == {Status.OK}


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BAD = {
    f"{ACTOR}.ulysses_sequence_parallel_size": [f"{ACTOR}.ulysses_sequence_parallel_size=3"],
    f"{ACTOR}.ppo_mini_batch_size": [f"{ACTOR}.ppo_mini_batch_size=3", f"{ROLLOUT}.n=5"],
    f"{ACTOR}.fsdp_config.fsdp_size": [f"{ACTOR}.fsdp_config.fsdp_size=48"],
    f"{ROLLOUT}.tensor_model_parallel_size": [f"{ROLLOUT}.tensor_model_parallel_size=6"],
    f"{ROLLOUT}.max_model_len": ["data.max_response_length=30000"],
    f"{ACTOR}.ppo_max_token_len_per_gpu": [f"{ACTOR}.ppo_max_token_len_per_gpu=2815"],
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": [f"{ROLLOUT}.log_prob_max_token_len_per_gpu=2815"],
}


@pytest.mark.parametrize("key", BAD)
def test_a_size_that_does_not_fit_is_named(configured, key: str) -> None:
    red = refused(check_sizes(configured(*BAD[key]), 131_072))
    assert [finding.key for finding in red] == [key]


@pytest.mark.parametrize(("size", "ranks"), [(-1, 128), (8, 8), (128, 128), (1000, 128)])
def test_ranks_that_share_the_parameters(configured, size: int, ranks: int) -> None:
    """As verl has it: negative, or more than there are, is all of them."""
    config = configured(f"{ACTOR}.fsdp_config.fsdp_size={size}")
    assert sharding_ranks(config) == ranks
    assert refused(check_sizes(config, 131_072)) == []


def test_shards_of_no_rank_are_red(configured) -> None:
    """verl divides by it."""
    assert f"{ACTOR}.fsdp_config.fsdp_size" in {
        f.key for f in check_values(configured(f"{ACTOR}.fsdp_config.fsdp_size=0"))
    }


FIXED = [
    *(f"{ACTOR}.{key}" for key in ("use_dynamic_bsz=false", "ppo_micro_batch_size_per_gpu=2")),
    *(f"{ROLLOUT}.{key}" for key in ("log_prob_use_dynamic_bsz=false", "log_prob_micro_batch_size_per_gpu=4")),
]


def test_micro_batches_of_so_many_sequences(configured) -> None:
    """22,528 tokens a sequence over 8 ranks."""
    unused = [f"{ACTOR}.ppo_max_token_len_per_gpu=null", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=null"]
    config = configured(*FIXED, *unused)
    assert check_values(config) == []
    assert (micro_batch_tokens(config, UPDATE_BATCH), micro_batch_tokens(config, LOG_PROB_BATCH)) == (5632, 11264)
    missing = configured(*FIXED, f"{ACTOR}.ppo_micro_batch_size_per_gpu=null")
    assert [finding.key for finding in check_values(missing)] == [f"{ACTOR}.ppo_micro_batch_size_per_gpu"]


def test_the_smallest_token_budget_is_one_sequence_over_its_ranks(configured) -> None:
    """22,528 tokens over 8 ranks are 2,816 each; the mini-batch is the product with the responses."""
    budgets = [
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2816",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    ]
    assert refused(check_sizes(configured(*budgets), 131_072)) == []


def test_the_models_context_counts(configured) -> None:
    (red,) = refused(check_sizes(configured(), 16_384))
    assert red.key == "actor_rollout_ref.rollout.max_model_len"
    assert "22528" in red.detail
    assert "16384" in red.detail


def test_without_model_or_limit_the_context_is_unknown(configured) -> None:
    findings = check_sizes(configured("actor_rollout_ref.rollout.max_model_len=null"))
    assert [finding.what for finding in findings if finding.status is Status.UNKNOWN] == ["context"]


def test_a_budget_that_verl_ignores_is_not_judged(configured) -> None:
    fixed = [f"{ACTOR}.use_dynamic_bsz=false", f"{ACTOR}.ppo_max_token_len_per_gpu=1"]
    config = configured(*fixed, "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true")
    assert refused(check_sizes(config)) == []


def test_the_dtypes_are_those_of_verl_and_of_vllm() -> None:
    from typing import get_args

    from verl.utils.torch_dtypes import BFLOAT_LIST, FLOAT_LIST, HALF_LIST
    from vllm.config.model import ModelDType

    known = {name: size for names, size in ((FLOAT_LIST, 4), (BFLOAT_LIST, 2), (HALF_LIST, 2)) for name in names}
    assert {name: size for name, size in known.items() if isinstance(name, str)} == VERL_DTYPES
    assert {*VLLM_DTYPES, "auto"} == set(get_args(ModelDType))
