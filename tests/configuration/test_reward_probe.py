"""What the reward function gives is looked at before anything starts."""

from pathlib import Path

import pandas as pd
import pytest
from omegaconf import DictConfig

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.refusals import probe_reward


def configured(gives: str, folder: Path, algorithm: str) -> DictConfig:
    row = {
        "data_source": "x",
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    pd.DataFrame([row]).to_parquet(folder / "train.parquet")
    (folder / "reward.py").write_text(f"def compute_score(data_source, solution_str, **_):\n    return {gives}\n")
    function = "reward.custom_reward_function"
    data = f"data.train_files={folder}/train.parquet"
    return compose_config([f"algorithm={algorithm}", data, f"{function}.path={folder}/reward.py"])


@pytest.mark.parametrize("algorithm", ["gtpo_v1", "dapo"])
@pytest.mark.parametrize(
    ("gives", "named"),
    [
        ("float('nan')", "reward of a response must be a finite number, not nan"),
        ("'1.0'", "not '1.0'"),
        ("None", "not None"),
        ("{'score': 1.0, 'acc': 'yes'}", r"`acc` of a response, which .*filter_groups\.metric asks for.* not 'yes'"),
        ("{'score': 1.0, 'acc': None}", "`acc` of a response.* not None"),
        ("{'score': 1.0}", "no `acc`"),
    ],
)
def test_what_is_no_number_is_refused(gives: str, named: str, algorithm: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"reward\.py\).*{named}"):
        probe_reward(configured(gives, tmp_path, algorithm))


@pytest.mark.parametrize("gives", ["1", "-0.5", "{'score': -1.0, 'acc': False}", "{'score': 0, 'acc': 0, 'pred': 'x'}"])
def test_numbers_are_taken(gives: str, tmp_path: Path) -> None:
    probe_reward(configured(gives, tmp_path, "gtpo_v1"))


@pytest.mark.parametrize(
    ("given", "said"),
    [("name=nothing", "nothing"), ("path=/nowhere.py", "/nowhere"), ("path=pkg://nowhere.at.all", "nowhere")],
)
def test_a_function_that_is_not_there(tmp_path: Path, given: str, said: str) -> None:
    config = configured("1", tmp_path, "dapo")
    key, value = given.split("=")
    config.reward.custom_reward_function[key] = value
    with pytest.raises(ValueError, match=rf"reward\.custom_reward_function \(.*\) cannot be loaded: .*{said}"):
        probe_reward(config)
