"""Files of problems: in verl's form and in MATH's, or refused with file and row."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from gtpo_verl.evaluation.problems import read, read_all
from gtpo_verl.rewards.prompts import dapo_prompt
from gtpo_verl.tasks import data_files, reasoning
from gtpo_verl.tasks.data_files import DataFileError

VERL = {
    "data_source": "mine",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 0, "entry": "kept"},
}
MATH = {"problem": r"What is $\{1\}$?", "answer": "1", "level": 5, "solution": r"\boxed{1}"}


def written(folder: Path, name: str, rows: list[Any]) -> Path:
    path = folder / name
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n\n")
    return path


def test_a_problem_that_is_repeated_counts_once(tmp_path: Path) -> None:
    """As in DAPO's AIME 2024, where each stands 32 times: intervals are over problems."""
    again = {**VERL, "extra_info": {"index": 1, "entry": "kept"}}
    harder = {**VERL, "reward_model": {"style": "rule", "ground_truth": "3"}}
    file = read(written(tmp_path, "some.jsonl", [VERL, again, harder, VERL]))
    assert [(problem.row, problem.truth) for problem in file.problems] == [(0, "2"), (2, "3")]
    assert file.repeated == 2
    easy = read(written(tmp_path, "math.jsonl", [MATH, {**MATH, "answer": "2"}, {**MATH, "level": 1}]))
    assert ([problem.row for problem in easy.problems], easy.repeated) == ([0, 1], 1)


@pytest.mark.parametrize("name", ["some.parquet", "some.jsonl", "some.json"])
def test_all_kinds_of_file_are_the_same_problems(name: str, tmp_path: Path) -> None:
    file = read(written(tmp_path, name, [VERL, VERL | {"reward_model": {"style": "rule", "ground_truth": "3"}}]))
    assert file.name == "some"
    assert [(problem.row, problem.truth) for problem in file.problems] == [(0, "2"), (1, "3")]
    assert file.problems[0].messages == VERL["prompt"]
    assert file.problems[0].extra_info == VERL["extra_info"]
    assert (
        file.fingerprint
        == read(written(tmp_path, "other.jsonl", [VERL, {**VERL, "reward_model": {"ground_truth": "3"}}])).fingerprint
    )
    assert file.fingerprint != read(written(tmp_path, "other.jsonl", [VERL])).fingerprint


@pytest.mark.parametrize("name", ["math.parquet", "math.jsonl", "math.json"])
def test_problems_of_math_get_the_prompt_that_the_reward_reads(name: str, tmp_path: Path) -> None:
    (problem,) = read(written(tmp_path, name, [MATH])).problems
    assert problem.messages == [{"role": "user", "content": dapo_prompt(MATH["problem"])}]
    assert (problem.data_source, problem.truth) == ("math", "1")
    (problem,) = read(written(tmp_path, name, [MATH]), "Q: {problem}\nA:").problems
    assert problem.messages[0]["content"] == f"Q: {MATH['problem']}\nA:"


def test_a_file_of_reasoning_gym_keeps_what_its_verifier_needs(tmp_path: Path) -> None:
    rows = reasoning.rows("validation", 2, 0)
    data_files.write_data_file(rows, tmp_path / "gym.parquet")
    for problem, row in zip(read(tmp_path / "gym.parquet").problems, rows, strict=True):
        assert reasoning.score(problem.data_source, str(problem.truth), problem.extra_info)[0] == 1.0
        assert problem.messages == row["prompt"]


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("a.jsonl", [MATH, "", "{"], r"a.jsonl: line 3: not JSON"),
        ("a.jsonl", [MATH, "[1]"], r"a.jsonl: line 2: not a JSON object"),
        ("a.jsonl", [MATH, {"problem": "1?"}], r"a.jsonl: line 2: answer is neither"),
        ("a.jsonl", [MATH, {"problem": " ", "answer": "1"}], r"a.jsonl: line 2: problem is not a text"),
        (
            "a.jsonl",
            [MATH, {"problem": "1?", "answer": "see the solution"}],
            r"a.jsonl: line 2: the answer cannot be graded",
        ),
        ("a.jsonl", [VERL, {"prompt": "1?"}], r"a.jsonl: line 2: missing data_source, reward_model"),
        ("a.json", [VERL, VERL | {"prompt": "1?"}], r"a.json: row 1: prompt is not a list of chat messages"),
        ("a.json", [], r"a.json: no rows"),
        ("a.json", [{"text": "1?"}], r"a.json: neither verl's columns .* nor MATH's .*; there are text"),
        (
            "a.parquet",
            [VERL, VERL | {"reward_model": {"style": "rule", "ground_truth": None}}],
            r"a.parquet: row 1: reward_model",
        ),
        ("a.csv", [MATH], r"a.csv: neither of .parquet, .jsonl, .json"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, rows: list[Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=said):
        read(written(tmp_path, name, rows))


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing more")
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    for name in ("a.parquet", "a.jsonl"):
        with pytest.raises(DataFileError, match=f"{name}: not "):
            read(tmp_path / name)


def test_data_sets_of_the_command_are_found_or_made(tmp_path: Path) -> None:
    names = ["reasoning-gym:leg_counting"]
    (made,) = read_all(names, None, tmp_path / "data", tmp_path / "cache")
    assert made.path == tmp_path / "data/reasoning-gym-leg_counting-validation.parquet"
    before = made.path.stat().st_mtime_ns
    (found,) = read_all(names, None, tmp_path / "data", tmp_path / "cache")
    assert found.fingerprint == made.fingerprint
    assert found.path.stat().st_mtime_ns == before


def test_names_and_templates_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    there = str(written(tmp_path, "some.jsonl", [VERL]))
    (tmp_path / "b").mkdir()
    again = str(written(tmp_path / "b", "some.json", [VERL]))
    with pytest.raises(DataFileError, match=r"--data aime23: no such file, and no data set .*aime24"):
        read_all(["aime23"], None, tmp_path, tmp_path)
    with pytest.raises(ValueError, match="both named some"):
        read_all([there, again], None, tmp_path, tmp_path)
    with pytest.raises(ValueError, match=r"no \{problem\} in it"):
        read_all([there], "Solve this", tmp_path, tmp_path)
    with pytest.raises(ValueError, match="no file here is in MATH's form"):
        read_all([there], "Q: {problem}", tmp_path, tmp_path)
