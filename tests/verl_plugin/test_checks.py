"""Refusals of a configuration and of a batch, by name, and the numbering of groups."""

import pytest
from tensordict import TensorDict

from gtpo_verl.verl_plugin.checks import check_config, check_entropies, check_single_row_sessions, raw_success
from gtpo_verl.verl_plugin.composition import compose_config


def extra(**metrics) -> dict:
    return {"reward_extra_info": metrics}


def test_right_is_decided_by_the_metric_and_its_threshold() -> None:
    fields = [extra(acc=1.0, score=-1.0), extra(acc=0.5, score=1.0), extra(acc=True)]
    assert raw_success(fields, [False] * 3, "acc", 0.5) == [True, False, True]
    assert raw_success(fields[:2], [False] * 2, "score", 0.0) == [False, True]


def test_padding_rows_are_wrong_whatever_they_hold() -> None:
    assert raw_success([extra(acc=1.0), extra()], [True, True], "acc", 0.5) == [False, False]


@pytest.mark.parametrize("fields", [extra(score=1.0), {}, None])
def test_a_missing_metric_is_named(fields) -> None:
    with pytest.raises(ValueError, match=r"response 1 has no `acc`.*algorithm.gtpo.success.key"):
        raw_success([extra(acc=1.0), fields], [False, False], "acc", 0.5)


def test_several_rows_a_session_are_refused() -> None:
    check_single_row_sessions(["a_0_0", "a_1_0", "b_0_0"])
    with pytest.raises(ValueError, match=r"session a_1"):
        check_single_row_sessions(["a_0_0", "a_1_0", "a_1_1"])


def test_missing_entropies_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no `entropy`.*actor.strategy"):
        check_entropies(TensorDict({}, batch_size=2))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("trainer.max_actor_ckpt_to_keep=0", r"trainer\.max_actor_ckpt_to_keep=0 must be"),
        ("trainer.max_actor_ckpt_to_keep=1.5", r"trainer\.max_actor_ckpt_to_keep=1\.5 must be"),
        ("trainer.max_critic_ckpt_to_keep=7", r"trainer\.max_critic_ckpt_to_keep=7: .*max_actor_ckpt_to_keep \(here 2"),
        ("actor_rollout_ref.actor.checkpoint.async_save=true", r"async_save=True: .*fsdp2"),
    ],
)
def test_checkpoints_that_cannot_be_kept_or_found_are_refused(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_config(compose_config([override if "async" not in override else f"++{override}"]))


@pytest.mark.parametrize("override", ["trainer.max_actor_ckpt_to_keep=null", "trainer.max_critic_ckpt_to_keep=2"])
def test_checkpoints_that_can(override: str) -> None:
    check_config(compose_config([override]))


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
def test_a_sequence_over_ranks_needs_flash_attention(attention: str) -> None:
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    overrides = ["scale=gpu", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
    check_config(compose_config(overrides))
    check_config(compose_config([*overrides, f"++{key}=flash_attention_3"]))
    check_config(compose_config(["scale=gpu", f"++{key}={attention}"]))
    with pytest.raises(ValueError, match=rf"sequence_parallel_size=2 .*{key}={attention}"):
        check_config(compose_config([*overrides, f"++{key}={attention}"]))
