"""Refusals of a configuration, by name."""

import pytest

from gtpo_verl.configuration.checks import check_config
from gtpo_verl.configuration.composition import compose_config


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


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["token_dump_freq=0"], r"gtpo_verl\.token_dump_freq = 0 must be a number of steps, or -1"),
        (["token_dump_freq=1.5"], r"gtpo_verl\.token_dump_freq = 1\.5 must be"),
        (["token_dump_freq=null"], r"gtpo_verl\.token_dump_freq=null"),
        (["token_dump_freq=2", "token_dump_dir=null"], r"gtpo_verl\.token_dump_dir must be set.*token_dump_freq = 2"),
        (["token_dump_groups=0"], r"gtpo_verl\.token_dump_groups = 0 must be"),
        (["token_dump_max_gib=0"], r"gtpo_verl\.token_dump_max_gib = 0 must be positive"),
        (["token_dump_max_gib=much"], r"gtpo_verl\.token_dump_max_gib = much must be positive"),
    ],
)
def test_a_token_dump_that_cannot_be_made_is_refused(overrides: list[str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_config(compose_config([f"gtpo_verl.{override}" for override in overrides]))


def test_a_run_without_a_dump_needs_no_folder_for_it() -> None:
    check_config(compose_config(["gtpo_verl.token_dump_dir=null"]))


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
def test_a_sequence_over_ranks_needs_flash_attention(attention: str) -> None:
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    overrides = ["scale=gpu", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
    check_config(compose_config(overrides))
    check_config(compose_config([*overrides, f"++{key}=flash_attention_3"]))
    check_config(compose_config(["scale=gpu", f"++{key}={attention}"]))
    with pytest.raises(ValueError, match=rf"sequence_parallel_size=2 .*{key}={attention}"):
        check_config(compose_config([*overrides, f"++{key}={attention}"]))
