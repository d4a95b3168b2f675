"""Each prompt's accuracy, from what verl writes of a validation."""

import pandas
import pytest
import yaml

from gtpo_verl.report import prompts


def write_validation(run, step, responses, questions, **config):
    """`responses`: (prompt, accuracy of each response); `questions`: by data source. Written by verl itself."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    rows = [
        (prompt, acc, f"uid{index}_{session}_0")
        for index, (prompt, accuracies) in enumerate(responses)
        for session, acc in enumerate(accuracies)
    ]
    inputs, accuracies, uids = (list(column) for column in zip(*rows, strict=True))
    PPOTrainer._write_generations(
        inputs=inputs,
        outputs=["out"] * len(rows),
        gts=["1"] * len(rows),
        scores=accuracies,
        reward_extra_infos_dict={"acc": accuracies, "uid": uids},
        dump_path=str(run / prompts.FOLDER),
        global_steps=step,
    )
    table = [
        {"data_source": source, "prompt": [{"role": "system", "content": "Count."}, {"role": "user", "content": asked}]}
        for source, texts in questions.items()
        for asked in texts
    ]
    pandas.DataFrame(table).to_parquet(run / "val.parquet")
    data = {"val_files": [str(run / "val.parquet")], "prompt_key": "prompt", **config}
    (run / "config.yaml").write_text(yaml.safe_dump({"data": data}))


def by_source(found):
    return {source: sorted(values.values()) for source, values in found.items()}


def test_means_of_each_prompts_responses_by_source(tmp_path):
    responses = [
        ("user\n1 + 1\nassistant", [1.0, 0.0]),
        ("user\n1 + 10\nassistant", [1.0, 1.0]),
        ("user\nspell\n", [0.0]),
    ]
    write_validation(tmp_path, 4, responses, {"sums": ["1 + 1", "1 + 10"], "letters": ["spell", "not asked"]})
    assert by_source(prompts.accuracies(tmp_path, 4)) == {"sums": [0.5, 1.0], "letters": [0.0]}
    assert prompts.steps(tmp_path) == [4]


def test_a_prompt_has_one_name_in_all_runs_and_steps(tmp_path):
    found = []
    for folder, step in (("a", 0), ("b", 8)):
        (tmp_path / folder).mkdir()
        write_validation(
            tmp_path / folder, step, [("one", [0.0]), ("two", [1.0])][:: 1 if step else -1], {"t": ["one", "two"]}
        )
        found.append(prompts.accuracies(tmp_path / folder, step)["t"])
    assert found[0] == found[1]


def test_a_prompt_asked_twice_is_one_prompt(tmp_path):
    write_validation(
        tmp_path, 1, [("same", [1.0, 1.0]), ("same", [0.0, 0.0]), ("other", [0.0])], {"t": ["same", "other"]}
    )
    assert by_source(prompts.accuracies(tmp_path, 1)) == {"t": [0.0, 0.5]}


@pytest.mark.parametrize("broken", ["validation/1.jsonl", "val.parquet", "config.yaml"])
def test_what_is_missing_gives_no_values(tmp_path, broken):
    write_validation(tmp_path, 1, [("one", [0.0])], {"t": ["one"]})
    (tmp_path / broken).unlink()
    assert prompts.accuracies(tmp_path, 1) == {}


def test_a_file_that_is_being_written_gives_no_values(tmp_path):
    write_validation(tmp_path, 1, [("one", [0.0, 1.0])], {"t": ["one"]})
    path = tmp_path / "validation/1.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert prompts.accuracies(tmp_path, 1) == {}


def test_prompts_that_are_not_in_the_validation_file_give_no_values(tmp_path):
    write_validation(tmp_path, 1, [("one", [0.0]), ("two", [1.0])], {"t": ["one"]})
    assert prompts.accuracies(tmp_path, 1) == {}
