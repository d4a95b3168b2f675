"""What a published file may look like, and errors that name file, column and row."""

import contextlib
import functools
import json
import subprocess
import sys

import pyarrow
import pytest

from gtpo_verl.data.reading import read_problems
from gtpo_verl.tasks.data_files import DataFileError

PAIRS = [(f"Problem {row}", str(row)) for row in range(7)]


def read(path, **options):
    return [row for batch in read_problems(path, **options) for row in batch.to_pylist()]


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("batch_rows", [1, 3, 7, 100])
@pytest.mark.parametrize("shape", ["chat.parquet", "plain.parquet", "plain.jsonl", "chat.jsonl", "question.jsonl"])
def test_every_shape_reads_the_same_in_any_batches(samples, tmp_path, shape, batch_rows):
    chat = samples.chat(PAIRS)
    contents = {
        "chat.parquet": samples.parquet(chat),
        "plain.parquet": samples.parquet([{"problem": p, "answer": int(a)} for p, a in PAIRS]),
        "plain.jsonl": samples.lines(PAIRS),
        "chat.jsonl": "\n".join(json.dumps(row) for row in chat),
        "question.jsonl": "\n\n".join(json.dumps({"question": p, "answer": int(a)}) for p, a in PAIRS),
    }
    rows = read(write(tmp_path, shape, contents[shape]), batch_rows=batch_rows)
    assert [(row["truth"], row["row"]) for row in rows] == [(str(row), row) for row in range(7)]
    assert all(f"Problem {row['row']}" in row["text"] for row in rows)


def test_large_types_of_arrow_are_text_and_lists_too(samples, tmp_path):
    message = pyarrow.struct([("role", pyarrow.large_string()), ("content", pyarrow.large_string())])
    table = pyarrow.table(
        {
            "prompt": pyarrow.array([[{"role": "user", "content": "1+1"}]], pyarrow.large_list(message)),
            "reward_model": pyarrow.array(
                [{"ground_truth": "2"}], pyarrow.struct([("ground_truth", pyarrow.large_string())])
            ),
        }
    )
    assert read(write(tmp_path, "a.parquet", samples.parquet(table))) == [{"text": "1+1", "truth": "2", "row": 0}]


def _changed(samples, row, **change):
    rows = samples.chat(PAIRS)
    rows[row] = {**rows[row], **change}
    return samples.parquet(rows)


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("row", "change", "words"),
    [
        (5, {"prompt": [USER, USER]}, "row 5: prompt is not one chat message"),
        (5, {"prompt": []}, "row 5: prompt is not one chat message"),
        (5, {"prompt": None}, "row 5: prompt is not one chat message"),
        (4, {"prompt": [{"role": "system", "content": "x"}]}, "row 4: prompt is not a message of the user"),
        (4, {"prompt": [{"role": None, "content": "x"}]}, "row 4: prompt is not a message of the user"),
        (4, {"prompt": [None]}, "row 4: prompt is not a message of the user"),
        (6, {"prompt": [{"role": "user", "content": None}]}, "row 6: prompt.content is missing"),
        (2, {"reward_model": None}, "row 2: reward_model.ground_truth is missing"),
        (2, {"reward_model": {"ground_truth": None}}, "row 2: reward_model.ground_truth is missing"),
    ],
)
def test_a_bad_row_of_parquet_is_named(samples, tmp_path, row, change, words):
    path = write(tmp_path, "some.parquet", _changed(samples, row, **change))
    with pytest.raises(DataFileError, match=r"some\.parquet: " + words.replace(".", r"\.")):
        read(path, batch_rows=3)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "text", "reward_model": {"ground_truth": "1"}}, "column prompt is string, not a list of messages"),
        ({"prompt": ["text"], "reward_model": {"ground_truth": "1"}}, "column prompt is list"),
        ({"prompt": [{"role": "user"}], "reward_model": {"ground_truth": "1"}}, "column prompt is list"),
        ({"prompt": [USER], "reward_model": "1"}, "column reward_model is string, without ground_truth"),
        ({"prompt": [USER], "reward_model": {"style": "rule"}}, "without ground_truth"),
        ({"prompt": [USER], "reward_model": {"ground_truth": 0.5}}, "reward_model.ground_truth is double, not text"),
        (
            {"prompt": [{"role": "user", "content": 3}], "reward_model": {"ground_truth": "1"}},
            "prompt.content is int64",
        ),
        ({"prompt": [USER]}, "missing column reward_model; there are prompt"),
        ({"reward_model": {"ground_truth": "1"}}, "missing column prompt; there are reward_model"),
        ({"problem": "x"}, "missing column answer; there are problem"),
        ({"answer": "1"}, "missing column problem; there are answer"),
        ({"text": "x", "label": "1"}, "missing columns problem, answer; there are text, label"),
        ({"problem": "x", "answer": [1]}, "column answer is list"),
        ({"problem": 1, "answer": "1"}, "column problem is int64, not text"),
    ],
)
def test_a_wrong_column_of_parquet_is_named(samples, tmp_path, row, words):
    path = write(tmp_path, "some.parquet", samples.parquet([row]))
    with pytest.raises(DataFileError, match=r"some\.parquet: .*" + words.replace(".", r"\.")):
        read(path)


def test_two_columns_of_one_name_are_named(samples, tmp_path):
    table = pyarrow.table([["x"], ["y"], ["1"]], names=["problem", "problem", "answer"])
    with pytest.raises(DataFileError, match=r'some\.parquet: .*"problem" exists 2 times'):
        read(write(tmp_path, "some.parquet", samples.parquet(table)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"problem": "x", "answer": ', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["x", "1"]', "not a JSON object"),
        ('{"problem": "x"}', "missing column answer; there are problem"),
        ('{"problem": null, "answer": "1"}', "problem is not text"),
        ('{"problem": "x", "answer": null}', "answer is neither text nor an integer"),
        ('{"problem": "x", "answer": true}', "answer is neither text nor an integer"),
        ('{"problem": "x", "answer": 0.5}', "answer is neither text nor an integer"),
        ('{"problem": "x\\ud800", "answer": "1"}', "half of a surrogate pair"),
        ('{"prompt": "x", "reward_model": {"ground_truth": "1"}}', "prompt is not one chat message"),
        ('{"prompt": [{"role": "user", "content": "x"}], "reward_model": 1}', "ground_truth is neither"),
        ('{"prompt": [{"role": "system", "content": "x"}], "reward_model": 1}', "prompt is not a message of the user"),
    ],
)
def test_a_bad_line_of_json_is_named(samples, tmp_path, line, words):
    path = write(tmp_path, "some.jsonl", samples.lines(PAIRS[:3]).decode() + line + "\n")
    with pytest.raises(DataFileError, match=rf"some\.jsonl: line 4: .*{words}"):
        read(path)


def test_a_byte_order_mark_is_no_content(tmp_path):
    path = write(tmp_path, "some.jsonl", '{"problem": "x", "answer": "1"}'.encode("utf-8-sig"))
    assert read(path) == [{"text": "x", "truth": "1", "row": 0}]


@pytest.mark.parametrize("name", ["some.parquet", "some.jsonl"])
def test_an_empty_file_is_refused(samples, tmp_path, name):
    with pytest.raises(DataFileError, match="some"):
        read(write(tmp_path, name, b""))
    empty = samples.parquet(pyarrow.Table.from_pylist(samples.chat(PAIRS)).slice(0, 0))
    with pytest.raises(DataFileError, match=r"empty\.parquet: no rows"):
        read(write(tmp_path, "empty.parquet", empty))


@pytest.mark.parametrize("name", ["some.parquet", "some.jsonl"])
def test_any_cut_or_flipped_byte_is_refused_or_harmless(samples, tmp_path, name):
    """Never another exception, whatever the damage."""
    content = samples.dapo(PAIRS) if name.endswith("parquet") else samples.lines(PAIRS)
    for position in range(0, len(content), max(1, len(content) // 150)):
        for damaged in (
            content[:position],
            content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :],
        ):
            with contextlib.suppress(DataFileError):
                read(write(tmp_path, name, damaged))


def test_a_cut_parquet_file_is_refused(samples, tmp_path):
    content = samples.dapo(PAIRS)
    with pytest.raises(DataFileError, match="not a readable parquet file"):
        read(write(tmp_path, "some.parquet", content[: len(content) // 2]))


def test_memory_does_not_grow_with_a_row_group(tmp_path):
    """The published file holds more than a gigabyte of text in two row groups."""
    program = """
import pathlib, sys
import pyarrow as pa, pyarrow.parquet as pq
from gtpo_verl.data.reading import read_problems
path = pathlib.Path("large.parquet")
if sys.argv[1] == "write":
    text = pa.array(["x" * 2000 + str(n) for n in range(100)])
    place = pa.array([n % 100 for n in range(60_000)])
    table = pa.table({"problem": text.take(place), "answer": text.take(place)})
    pq.write_table(table, path, use_dictionary=False, compression="none")
else:
    print(sum(len(batch) for batch in read_problems(path, 1000)), pa.default_memory_pool().max_memory() >> 20)
"""
    run = functools.partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=240)
    run([sys.executable, "-c", program, "write"])
    assert (tmp_path / "large.parquet").stat().st_size > 200_000_000
    rows, mebibytes = map(int, run([sys.executable, "-c", program, "read"]).stdout.split())
    assert rows == 60_000
    assert mebibytes < 64
