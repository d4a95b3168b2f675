"""All files of a command, or none."""

import json
import os
import signal
import subprocess
import sys

import pyarrow.parquet
import pytest

from gtpo_verl.data.writing import MATHS_SCHEMA, DataSet, write_all
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
    write_all([data_set("a"), data_set("b", count=2)], tmp_path / "new/folder")
    folder = tmp_path / "new/folder"
    assert names(folder) == ["a.manifest.json", "a.parquet", "b.manifest.json", "b.parquet"]
    manifest = json.loads((folder / "b.manifest.json").read_text())
    assert (manifest["file"], manifest["rows"], manifest["split"]) == ("b.parquet", 2, "train")
    assert pyarrow.parquet.read_schema(folder / "a.parquet").equals(MATHS_SCHEMA)


def test_a_bad_data_set_leaves_nothing_of_any(tmp_path):
    with pytest.raises(DataFileError):
        write_all([data_set("a"), data_set("b", answer=None)], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    write_all([data_set("a")], tmp_path)
    before = (tmp_path / "a.parquet").read_bytes()
    with pytest.raises(DataFileError):
        write_all([data_set("a", count=2), data_set("b", answer=None)], tmp_path)
    assert names(tmp_path) == ["a.manifest.json", "a.parquet"]
    assert (tmp_path / "a.parquet").read_bytes() == before


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_all([data_set("a")], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_a_killed_command_left_is_removed_by_the_next(tmp_path):
    program = (
        "import os, signal, sys, pathlib; from gtpo_verl.data import writing; "
        "writing.check_data_file = lambda _: os.kill(os.getpid(), signal.SIGKILL); "
        "rows = [dict(data_source='x')]; "
        "writing.write_all([writing.DataSet('a', rows, writing.MATHS_SCHEMA, {})], pathlib.Path(sys.argv[1]))"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    (leftover,) = names(tmp_path)
    assert leftover.startswith(".")
    write_all([data_set("b")], tmp_path)
    assert names(tmp_path) == ["b.manifest.json", "b.parquet"]
