"""The recipe's own group: a value of another kind is refused by its key, instead of compared or believed."""

import pytest

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.settings import RecipeSettings


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "-1", "true", "'1'", "[1]"])
@pytest.mark.parametrize("key", ["poll_interval", "stall_timeout", "min_free_disk_gib"])
def test_a_number_that_is_none(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"gtpo_verl\.{key} = .* must "):
        RecipeSettings.from_config(compose_config([f"gtpo_verl.{key}={value}"]))


@pytest.mark.parametrize("key", ["fused_entropy", "fast_rollout", "fork_server", "probe_reward", "preflight"])
def test_a_switch_that_is_none(key: str) -> None:
    with pytest.raises(ValueError, match=rf"gtpo_verl\.{key} = maybe must be true or false"):
        RecipeSettings.from_config(compose_config([f"gtpo_verl.{key}=maybe"]))


def test_the_defaults_and_no_limit() -> None:
    RecipeSettings.from_config(compose_config([]))
    assert RecipeSettings.from_config(compose_config(["gtpo_verl.stall_timeout=0"])).stall_timeout == 0


@pytest.mark.parametrize("value", ["0.9", "nan", "inf", "auto", "true", "[1]"])
def test_a_first_batch_that_is_none(value: str) -> None:
    with pytest.raises(ValueError, match=r"gtpo_verl\.first_batch = .* must be a number of at least 1, or null"):
        RecipeSettings.from_config(compose_config([f"gtpo_verl.first_batch={value}"]))


def test_a_first_batch_is_a_batch_or_more() -> None:
    assert RecipeSettings.from_config(compose_config([])).first_batch is None
    assert RecipeSettings.from_config(compose_config(["gtpo_verl.first_batch=1"])).first_batch == 1
