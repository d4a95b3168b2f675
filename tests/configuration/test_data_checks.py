"""Data files are accepted as verl's own loader and the model's chat template accept them; others are named."""

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedTokenizerFast

from gtpo_verl.configuration.data_checks import check_data, check_templates, read_by_verl
from gtpo_verl.tasks.data_files import DataFileError

QWEN = (
    "{% if messages[0]['role'] != 'system' %}<|system|>You are Qwen.{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}"
    "{% else %}{{ m.content + '' }}{% endif %}{% endfor %}"
)
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


def row(prompt: list | str = "1+1=", truth: object = "2", **others) -> dict:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return {
        "data_source": "sums",
        "prompt": messages,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 0},
        **others,
    }


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([list(rows[0]), *([json.dumps(v) for v in r.values()] for r in rows)])
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def check(*paths: Path, **keys) -> int:
    return check_data("data.train_files", [str(path) for path in paths], "prompt", "data_source", **keys)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "ä b,c=d.jsonl"])
def test_every_form_that_verl_reads(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [row(f"{n}+1=", str(n + 1)) for n in range(5)])
    assert check(path) == 5
    assert read_by_verl([path])[3]["prompt"] == [{"role": "user", "content": "3+1="}]


def test_a_json_file_of_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [row(), row()])
    assert check(path.rename(tmp_path / "a.json")) == 2


def test_forms_may_be_mixed(tmp_path: Path) -> None:
    rows = [row(), row()]
    assert check(write(tmp_path / "a.parquet", rows), write(tmp_path / "b.jsonl", rows)) == 4


@pytest.mark.parametrize("name", ["a.csv", "a.pq", "a.PARQUET", "a"])
def test_a_form_that_verl_does_not_read_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.csv", [row()]) if name == "a.csv" else write(tmp_path / "x.parquet", [row()])
    path = path.rename(tmp_path / name)
    with pytest.raises(DataFileError, match=rf"{path}: not a readable .*Unsupported file format"):
        check(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json"])
@pytest.mark.parametrize("damage", ["cut off", "garbage", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    path = write(tmp_path / name, [row() for _ in range(50)])
    content = path.read_bytes()
    path.write_bytes(
        {"cut off": content[: len(content) // 2 + 7], "garbage": b"\xff\xfe\x00" * 99, "empty": b""}[damage]
    )
    with pytest.raises(DataFileError, match=str(path)) as error:
        check(path)
    assert "\n" not in str(error.value)


def test_files_whose_columns_do_not_go_together_are_named(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [row(truth="2")])
    b = write(tmp_path / "b.jsonl", [row(truth=2)])
    assert check(a) == check(b) == 1
    with pytest.raises(DataFileError, match=rf"{a}, {b}: not a readable jsonl file for verl"):
        check(a, b)


def test_rows_of_json_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [row(), row(), {**row(), "data_source": None}])
    with pytest.raises(DataFileError, match=r"a\.jsonl: row 2: data_source is not a text"):
        check(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.train_files=.*a\.jsonl: no such file"):
        check(tmp_path / "a.jsonl")


CALL = {"type": "function", "function": {"name": "calculator", "arguments": "{}"}}
# name: (messages, whether Qwen's template takes them, whether one without system messages does)
PROMPTS: dict[str, tuple[list[dict], bool, bool]] = {
    "plain": ([{"role": "user", "content": "1+1="}], True, True),
    "an empty system message": ([{"role": "system", "content": ""}, {"role": "user", "content": "1+1="}], True, False),
    "a call of a tool": (
        [
            {"role": "user", "content": "1+1="},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": ""},
        ],
        True,
        True,
    ),
    "an empty question": ([{"role": "user", "content": ""}], True, True),
    "null beside another field": ([{"role": "user", "content": None, "name": "me"}], False, True),
}


def config(folder: Path, template: str, path: Path, **data) -> DictConfig:
    from gtpo_verl.tasks.tiny_model import build_tokenizer

    tokenizer: PreTrainedTokenizerFast = build_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder / "model")
    keys = {"train_files": str(path), "prompt_key": "prompt", "filter_overlong_prompts": False, **data}
    return OmegaConf.create({"data": keys, "actor_rollout_ref": {"model": {"path": str(folder / "model")}}})


@pytest.mark.parametrize("template", ["qwen", "without system"])
@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_chat_template_decides(tmp_path: Path, name: str, template: str, suffix: str) -> None:
    messages, by_qwen, by_strict = PROMPTS[name]
    path = write(tmp_path / f"a.{suffix}", [row("2+2="), row("3+3="), row(messages)])
    assert check(path) == 3
    accepted = by_qwen if template == "qwen" else by_strict
    given = config(tmp_path, QWEN if template == "qwen" else STRICT, path)
    if accepted:
        check_templates(given, "data.train_files")
    else:
        with pytest.raises(
            DataFileError, match=rf"data\.train_files={path}: row 2: the chat template refuses prompt: "
        ):
            check_templates(given, "data.train_files")


def test_verl_leaves_out_what_the_template_refuses_where_it_filters(tmp_path: Path) -> None:
    refused = row(PROMPTS["an empty system message"][0])
    path = write(tmp_path / "a.jsonl", [row(), refused])
    check_templates(config(tmp_path, STRICT, path, filter_overlong_prompts=True), "data.train_files")
    path = write(tmp_path / "b.jsonl", [refused, refused])
    with pytest.raises(DataFileError, match=r"row 0: .*System role not supported"):
        check_templates(config(tmp_path, STRICT, path, filter_overlong_prompts=True), "data.train_files")


@pytest.mark.parametrize(
    "message", [{"role": "user", "content": None}, {"role": "", "content": "x"}, {"role": None, "content": "x"}]
)
def test_a_message_that_says_nothing_is_named(tmp_path: Path, message: dict) -> None:
    path = write(tmp_path / "a.parquet", [row(), row([message])])
    with pytest.raises(DataFileError, match="row 1: prompt has a message without role or content"):
        check(path)


@pytest.mark.parametrize("truth", [["2", "two"], {"target": ["2"]}, True])
def test_truths_of_any_kind_where_the_reward_is_the_users(tmp_path: Path, truth: object) -> None:
    path = write(tmp_path / "a.jsonl", [row(truth=truth)])
    assert check(path) == 1
    with pytest.raises(DataFileError, match="row 0: reward_model has no ground_truth that is text or a number"):
        check(path, problem_with_truth=lambda _: None)
