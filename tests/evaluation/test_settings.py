"""Models are sampled as their runs validate, all alike."""

from pathlib import Path

import pytest

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.evaluation import settings
from gtpo_verl.evaluation.grading import MATH, TASKS, Reward
from gtpo_verl.evaluation.models import Model
from gtpo_verl.evaluation.settings import Sampling


def run(label: str, *overrides: str) -> Model:
    return Model(label, Path(label), Path(label), compose_config(["model=dapo_math", "scale=gpu", *overrides]))


BASE = Model("base", Path("base"))


def test_a_run_is_sampled_as_it_validates() -> None:
    found = settings.sampling([BASE, run("a")], {}, on_cpu=False)
    assert found == Sampling(temperature=1.0, top_p=0.7, top_k=-1, max_tokens=20480, seed=0, dtype="bfloat16")
    given = {"top_p": 0.9, "max_tokens": 64, "seed": 3}
    assert settings.sampling([run("a")], given, on_cpu=True) == Sampling(1.0, 0.9, -1, 64, 3, "float32")
    assert settings.sampling([BASE], {}, on_cpu=False) == Sampling()


@pytest.mark.parametrize("given", ["", "pkg://"])
def test_a_reward_without_a_name_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"--reward '.*': names no file"):
        settings.reward([BASE], given)


def test_runs_that_differ_must_be_told() -> None:
    other = run("b", "actor_rollout_ref.rollout.val_kwargs.top_p=1.0")
    with pytest.raises(ValueError, match=r"--top-p: the runs differ \(a has 0.7, b has 1.0\); say which"):
        settings.sampling([run("a"), other], {}, on_cpu=False)
    assert settings.sampling([run("a"), other], {"top_p": 0.8}, on_cpu=False).top_p == 0.8


def test_the_reward_is_the_runs_or_the_command_lines() -> None:
    tasks = run("b", f"reward.custom_reward_function.path={TASKS}")
    assert settings.reward([BASE], None) == Reward(MATH)
    assert settings.reward([BASE, tasks], None) == Reward(TASKS)
    with pytest.raises(ValueError, match="--reward: the runs differ"):
        settings.reward([run("a"), tasks], None)
    assert settings.reward([run("a"), tasks], "pkg://my.rewards:grade") == Reward("pkg://my.rewards", "grade")
    assert settings.reward([BASE], "pkg://my.rewards") == Reward("pkg://my.rewards")
    assert settings.reward([BASE], "/some/file.py:grade") == Reward("/some/file.py", "grade")
    assert settings.reward([BASE], "file.py") == Reward("file.py")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("max_tokens", 0),
        ("seed", -1),
        ("seed", 1 << 32),
    ],
)
def test_values_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} .*: out of range"):
        settings.sampling([BASE], {name: value}, on_cpu=True)


def test_every_sample_has_a_seed_of_its_own() -> None:
    seeds = {settings.sample_seed(s, d, p, i) for s in range(2) for d in "ab" for p in range(100) for i in range(32)}
    assert len(seeds) == 2 * 2 * 100 * 32
    assert all(0 <= seed < 2**48 for seed in seeds)
