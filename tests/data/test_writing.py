"""All files of a command, or none."""

import json
import signal
import subprocess
import sys

import pyarrow.parquet
import pytest

from gtpo_verl.data.writing import MATHS_SCHEMA, DataSet, output_folder, write_all
from gtpo_verl.tasks.data_files import DataFileError


def data_set(name, answer="1", count=3):
    rows = [
        {
            "data_source": "x",
            "prompt": [{"role": "user", "content": f"{number}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": "train", "index": number, "source_row": number},
        }
        for number in range(count)
    ]
    return DataSet(name, rows, MATHS_SCHEMA, {"split": "train"})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_each_file_has_a_manifest_beside_it(tmp_path):
    folder = tmp_path / "new/folder"
    with output_folder(folder):
        write_all([data_set("a"), data_set("b", count=2)], folder)
    assert names(folder) == ["a.manifest.json", "a.parquet", "b.manifest.json", "b.parquet"]
    manifest = json.loads((folder / "b.manifest.json").read_text())
    assert (manifest["file"], manifest["rows"], manifest["split"]) == ("b.parquet", 2, "train")
    assert pyarrow.parquet.read_schema(folder / "a.parquet").equals(MATHS_SCHEMA)


def test_a_bad_data_set_leaves_nothing_of_any(tmp_path):
    write_all([data_set("a")], tmp_path)
    before = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(DataFileError):
        write_all([data_set("a", count=2), data_set("b", answer=None)], tmp_path)
    assert names(tmp_path) == ["a.manifest.json", "a.parquet"]
    assert (tmp_path / "a.parquet").read_bytes() == before


WRITE = """
import pathlib, resource, sys
from gtpo_verl.data.writing import MATHS_SCHEMA, DataSet, output_folder, write_all
message = {"role": "user", "content": "x" * 1000}
row = {"data_source": "x", "prompt": [message], "reward_model": {"ground_truth": "1"}}
folder = pathlib.Path(sys.argv[1])
with output_folder(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    write_all([DataSet("a", [row], MATHS_SCHEMA, {}), DataSet("b", [row], MATHS_SCHEMA, {"long": "x" * 9000})], folder)
"""


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    """A limit on the size of files stands for the disk: the kernel refuses to write beyond it."""
    write_all([data_set("a")], tmp_path)
    before = (tmp_path / "a.parquet").read_bytes()
    for folder in (tmp_path, tmp_path / "quite/new"):
        result = subprocess.run(
            [sys.executable, "-c", WRITE, str(folder)], capture_output=True, text=True, timeout=240, check=False
        )
        assert f"OSError: {folder}: cannot be written ([Errno 27] " in result.stderr
    assert names(tmp_path) == ["a.manifest.json", "a.parquet"]
    assert (tmp_path / "a.parquet").read_bytes() == before


def test_what_a_killed_command_left_is_removed_by_the_next(tmp_path):
    program = """
import os, pathlib, signal, sys
from gtpo_verl.data import writing
writing.check_data_file = lambda _: os.kill(os.getpid(), signal.SIGKILL)
folder = pathlib.Path(sys.argv[1])
with writing.output_folder(folder):
    writing.write_all([writing.DataSet("a", [{"data_source": "x"}], writing.MATHS_SCHEMA, {})], folder)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert {name[0] for name in names(tmp_path)} == {"."}
    with output_folder(tmp_path):
        write_all([data_set("b")], tmp_path)
    assert names(tmp_path) == ["b.manifest.json", "b.parquet"]


def test_a_failing_command_removes_the_folders_it_made_and_no_other(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(RuntimeError), output_folder(tmp_path / "old/new/newer"):
        raise RuntimeError
    assert names(tmp_path) == ["old"]
    assert names(tmp_path / "old") == []
