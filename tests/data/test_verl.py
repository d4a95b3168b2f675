"""verl's own data set reads what is written, several files at once."""

import pytest
from omegaconf import OmegaConf

from gtpo_verl.data.command import Request, make
from gtpo_verl.rewards.prompts import dapo_prompt
from gtpo_verl.tasks.tiny_model import build_tokenizer


@pytest.mark.timeout(120)
def test_two_validation_sets_in_one_run(samples, tmp_path):
    from verl.utils.dataset.rl_dataset import RLHFDataset

    (tmp_path / "aime24.parquet").write_bytes(samples.dapo([("Find $x$.", "7")] * 32))
    (tmp_path / "math500.jsonl").write_bytes(samples.lines([("Find $y$.", r"\frac{1}{2}"), ("Find $z$.", "3")]))
    make(Request(["aime24", "math500"], output=tmp_path / "out", place=str(tmp_path)))
    config = OmegaConf.create(
        {
            "cache_dir": str(tmp_path / "cache"),
            "max_prompt_length": 2048,
            "filter_overlong_prompts": True,
            "filter_overlong_prompts_workers": 1,
            "return_raw_chat": True,
        }
    )
    files = [str(tmp_path / f"out/{name}.parquet") for name in ("aime24", "math500")]
    dataset = RLHFDataset(files, build_tokenizer(), config)
    rows = [dataset[index] for index in range(len(dataset))]
    assert [(row["data_source"], row["reward_model"]["ground_truth"], row["index"]) for row in rows] == [
        ("aime24", "7", 0),
        ("math500", r"\frac{1}{2}", 0),
        ("math500", "3", 1),
    ]
    assert rows[0]["raw_prompt"][0]["content"] == dapo_prompt("Find $x$.")
