"""verl's data files: what is accepted, and errors that name file and fault."""

import contextlib

import pyarrow
import pyarrow.parquet
import pytest

from gtpo_verl.rewards.truth import problem_with_truth
from gtpo_verl.tasks import arithmetic
from gtpo_verl.tasks.data_files import DataFileError, check_data_file, write_data_file

ROWS = arithmetic.rows("train", 5, 0, arithmetic.ArithmeticConfig())


def _write(tmp_path, rows):
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_rows_survive_the_file(tmp_path):
    path = tmp_path / "data.parquet"
    write_data_file(ROWS, path)
    assert check_data_file(path) == 5
    assert pyarrow.parquet.read_table(path).to_pylist() == ROWS


@pytest.mark.parametrize("column", ["data_source", "prompt", "reward_model"])
def test_a_missing_column_is_named(tmp_path, column):
    path = _write(tmp_path, [{key: value for key, value in row.items() if key != column} for row in ROWS])
    with pytest.raises(DataFileError, match=rf"data\.parquet: missing column {column};"):
        check_data_file(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_source": None}, "data_source"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [{"role": "user", "content": None}]}, "role or content"),
        ({"reward_model": {"style": "rule", "ground_truth": None}}, "ground_truth"),
        ({"reward_model": None}, "ground_truth"),
    ],
)
def test_the_first_bad_row_is_named(tmp_path, change, words):
    path = _write(tmp_path, [*ROWS[:3], {**ROWS[3], **change}, {**ROWS[4], **change}])
    with pytest.raises(DataFileError, match=rf"data\.parquet: row 3: .*{words}"):
        check_data_file(path)


def test_a_prompt_that_is_not_a_chat_is_refused(tmp_path):
    path = _write(tmp_path, [{**row, "prompt": "1+1=?"} for row in ROWS])
    with pytest.raises(DataFileError, match="row 0: prompt is not a list"):
        check_data_file(path)


def test_verls_own_names_of_columns_are_respected(tmp_path):
    path = _write(
        tmp_path, [{"question": row["prompt"], "source": "x", "reward_model": row["reward_model"]} for row in ROWS]
    )
    assert check_data_file(path, prompt_key="question", data_source_key="source") == 5
    with pytest.raises(DataFileError, match="missing columns data_source, prompt;"):
        check_data_file(path)


def test_missing_empty_and_corrupt_files_are_named(tmp_path):
    with pytest.raises(DataFileError, match=r"absent\.parquet: no such data file"):
        check_data_file(tmp_path / "absent.parquet")
    corrupt = tmp_path / "corrupt.parquet"
    corrupt.write_bytes(b"PAR1 not really")
    with pytest.raises(DataFileError, match=r"corrupt\.parquet: not a readable parquet file"):
        check_data_file(corrupt)
    empty = tmp_path / "empty.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS).slice(0, 0), empty)
    with pytest.raises(DataFileError, match=r"empty\.parquet: no rows"):
        check_data_file(empty)


def test_a_bad_row_is_not_written_silently(tmp_path):
    with pytest.raises(DataFileError, match="row 0"):
        write_data_file([{**ROWS[0], "data_source": ""}], tmp_path / "data.parquet")


def test_damage_anywhere_in_the_file_is_refused_or_harmless(tmp_path):
    path = tmp_path / "data.parquet"
    write_data_file(ROWS, path)
    content = path.read_bytes()
    for position in range(0, len(content), max(1, len(content) // 200)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        with contextlib.suppress(DataFileError):
            check_data_file(path)


@pytest.mark.parametrize(
    "truths", [[13, 14, 0, -2, 2**40], [0.5, 13.0, -1e-3, 2.25, 7.0], ["13", "x", "", "$$", "a b c"]]
)
def test_ground_truths_may_be_numbers_and_any_text_where_the_reward_is_not_known(tmp_path, truths):
    rows = [
        {**row, "reward_model": {"style": "rule", "ground_truth": truth}}
        for row, truth in zip(ROWS, truths, strict=True)
    ]
    assert check_data_file(_write(tmp_path, rows)) == 5


def test_every_ground_truth_is_tried_where_the_reward_is_known(tmp_path):
    rows = [dict(row, reward_model={"style": "rule", "ground_truth": "13"}) for row in ROWS * 600]
    path = _write(tmp_path, rows)
    assert check_data_file(path, problem_with_truth=problem_with_truth) == len(rows)
    for place, truth in ((1, r"\text{See solution}"), (1500, ""), (2999, "So it is 18.\n#### 18")):
        rows[place] = dict(rows[place], reward_model={"style": "rule", "ground_truth": truth})
    path = _write(tmp_path, rows)
    with pytest.raises(DataFileError) as error:
        check_data_file(path, problem_with_truth=problem_with_truth)
    for words in ("3 of 3000 ground truths", "row 1: ", "row 1500: ", "row 2999: ", "See solution", "empty"):
        assert words in str(error.value)
    assert check_data_file(path) == len(rows)
