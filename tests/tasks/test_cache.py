"""Cached folders: built once, complete or absent, whatever happens to a builder."""

import dataclasses
import subprocess
import sys
import threading
import time

import pytest

from gtpo_verl.tasks import arithmetic, muon
from gtpo_verl.tasks.cache import build_once, content_key


@dataclasses.dataclass
class Settings:
    rate: float = 0.1


def test_the_key_follows_values_sources_and_versions():
    key = content_key({"a": Settings()}, [arithmetic], ["torch"])
    assert key == content_key({"a": Settings()}, [arithmetic], ["torch"])
    others = {
        content_key({"a": Settings(rate=0.2)}, [arithmetic], ["torch"]),
        content_key({"a": Settings()}, [muon], ["torch"]),
        content_key({"a": Settings()}, [arithmetic], ["rich"]),
    }
    assert len(others | {key}) == 4


def test_a_folder_is_built_once(tmp_path):
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "file").write_text("whole")

    for _ in range(2):
        assert (build_once(tmp_path / "cache", "x", build) / "file").read_text() == "whole"
    assert len(calls) == 1


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path):
    def fail(folder):
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        build_once(tmp_path, "x", fail)
    assert [path.name for path in tmp_path.iterdir()] == []
    assert build_once(tmp_path, "x", lambda folder: None).is_dir()


def test_concurrent_builders_do_not_collide(tmp_path):
    calls, results = [], []

    def build(folder):
        calls.append(folder)
        time.sleep(0.2)
        (folder / "file").write_text("whole")

    threads = [threading.Thread(target=lambda: results.append(build_once(tmp_path, "x", build))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [tmp_path / "x"] * 4
    assert len(calls) == 1


BUILD_FOR_EVER = """
import pathlib, sys, time
from gtpo_verl.tasks.cache import build_once

def build(folder):
    (folder / "half").write_text("half")
    print("started", flush=True)
    time.sleep(600)

build_once(pathlib.Path(sys.argv[1]), "x", build)
"""


def test_a_killed_builder_blocks_nobody_and_its_remains_are_cleared(tmp_path):
    command = [sys.executable, "-c", BUILD_FOR_EVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        process.kill()
    assert not (tmp_path / "x").exists()
    assert list(tmp_path.glob(".x.tmp-*"))
    built = build_once(tmp_path, "x", lambda folder: (folder / "file").write_text("whole") and None)
    assert [path.name for path in built.iterdir()] == ["file"]
    assert not list(tmp_path.glob(".x.tmp-*"))
