"""Every file of `configs/` composes with verl's own configuration, resolves, and passes the checks."""

import subprocess
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from gtpo_verl.configuration.settings import RecipeSettings

CONFIGS = Path(__file__).parents[2] / "configs"


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


GROUPS = sorted(path.name for path in CONFIGS.iterdir() if path.is_dir() and not path.name.startswith("_"))


@pytest.fixture(scope="module")
def composed():
    with initialize_config_module("gtpo_verl.configs", version_base=None):
        yield lambda *overrides: compose("train", list(overrides))


CHOICES = [
    *({"algorithm": algorithm} for algorithm in options("algorithm")),
    *({"algorithm": "dapo", "rollout_correction": choice} for choice in options("rollout_correction")),
    *({"model": model, "scale": scale} for model, scale in product(options("model"), options("scale"))),
]


@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(choices.values()))
def test_composes_and_is_sound(composed, choices: dict[str, str]) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from gtpo_verl.configuration.checks import check_config

    config = composed(*(f"{group}={option}" for group, option in choices.items()))
    if config.actor_rollout_ref.model.path is None:
        config.actor_rollout_ref.model.path = config.data.train_files = config.data.val_files = "from_the_task"
    OmegaConf.resolve(config)
    assert check_config(config) == []
    validate_config(config, need_reference_policy(config), need_critic(config))


def test_every_file_is_reached() -> None:
    """A file outside the groups composed above, or of a new group, must be added to this test."""
    tracked = subprocess.run(["git", "ls-files", "configs"], cwd=CONFIGS.parent, capture_output=True, text=True).stdout
    names = {Path(name).relative_to("configs") for name in tracked.split() if name.endswith(".yaml")}
    groups = {
        Path(group, f"{option}.yaml")
        for group in ("algorithm", "model", "rollout_correction", "scale")
        for option in options(group)
    }
    assert names <= groups | {Path("train.yaml"), Path("gtpo.yaml")}


def test_settings_are_the_defaults_of_the_yaml(composed) -> None:
    in_yaml = OmegaConf.to_container(OmegaConf.load(CONFIGS / "train.yaml").gtpo_verl)
    defaults = OmegaConf.to_container(OmegaConf.structured(RecipeSettings))
    for key in ("run_dir", "token_dump_dir"):
        assert in_yaml.pop(key) != defaults.pop(key)  # in the YAML an interpolation over other keys
    assert in_yaml == defaults


def test_overlong_penalty_is_dapos_for_every_method(composed) -> None:
    for algorithm in options("algorithm"):
        overlong = composed(f"algorithm={algorithm}", "model=tiny").reward.reward_kwargs
        assert overlong.max_resp_len == 112
        assert overlong.overlong_buffer_cfg == {"enable": True, "len": 32, "penalty_factor": 1.0, "log": False}


def test_verl_keys_stay_overridable(composed) -> None:
    config = composed("trainer.total_training_steps=7", "algorithm.gtpo.alpha=0.3", "actor_rollout_ref.rollout.n=3")
    assert config.trainer.total_training_steps == 7
    assert config.algorithm.gtpo.alpha == 0.3
    assert config.actor_rollout_ref.rollout.n == 3
