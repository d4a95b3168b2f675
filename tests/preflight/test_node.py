"""What a node says about itself."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gtpo_verl.preflight.node import (
    Request,
    code_digest,
    collect,
    existing_folder,
    folder_problem,
    gpu_memory,
    memory,
    versions,
)


def test_everything_about_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_tracker").mkdir()  # as a tracker leaves a folder of its name where it runs
    monkeypatch.syspath_prepend(tmp_path)
    data = tmp_path / "train.parquet"
    data.touch()
    gone = str(tmp_path / "val.parquet")
    checkpoints = str(tmp_path / "runs/a/checkpoints")
    modules = ["torch", "no_such_module", "no_such_tracker"]
    facts = collect(Request(str(tmp_path / "model"), [str(data), gone], checkpoints, modules))
    assert facts.versions == versions()
    assert facts.registration is None
    assert list(facts.model) == [f"{tmp_path / 'model'}: no such folder"]
    assert list(facts.missing_data) == [gone]
    assert list(facts.missing_modules) == ["no_such_module", "no_such_tracker"]
    assert facts.run_folder is None
    assert facts.disk_free is not None
    assert facts.disk_free > 0
    assert facts.memory is not None
    assert facts.memory > 0
    assert "lo" in facts.interfaces
    assert {path.name for path in tmp_path.iterdir()} == {"train.parquet", "no_such_tracker"}  # nothing was made


def test_a_model_on_the_hub_is_not_looked_for(tmp_path: Path) -> None:
    assert list(collect(Request(None, [], str(tmp_path))).model) == []


def test_versions_are_those_of_the_packages() -> None:
    found = versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["torch"] == version("torch")
    assert found["verl"] == version("verl")
    assert found["vllm"] != "not installed"


def test_the_digest_follows_the_code_alone(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "a.py").write_text("x = 1\n")
    before = code_digest(package)
    (package / "__pycache__").mkdir()
    (package / "notes.txt").write_text("not code")
    assert code_digest(package) == before
    (package / "a.py").write_text("x = 2\n")
    assert code_digest(package) != before
    (package / "a.py").write_text("x = 1\n")
    (package / "a.py").rename(package / "inner/a.py")
    assert code_digest(package) != before


def test_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert existing_folder(tmp_path) == tmp_path
    assert existing_folder(tmp_path / "runs/a/checkpoints") == tmp_path
    (tmp_path / "file").touch()
    assert existing_folder(tmp_path / "file/below") == tmp_path


def test_a_folder_with_the_drivers_file(tmp_path: Path) -> None:
    marker = tmp_path / ".marker"
    marker.touch()
    assert folder_problem(tmp_path, str(marker)) is None
    assert [path.name for path in tmp_path.iterdir()] == [".marker"]


def test_a_folder_that_another_run_has_made_meanwhile(tmp_path: Path) -> None:
    (tmp_path / ".marker").touch()
    (tmp_path / "project").mkdir()
    nearest = existing_folder(tmp_path / "project/run/checkpoints")
    assert nearest == tmp_path / "project"
    assert folder_problem(nearest, str(tmp_path / ".marker")) is None


def test_a_folder_without_the_drivers_file_is_named(tmp_path: Path) -> None:
    problem = folder_problem(tmp_path, str(tmp_path / ".marker"))
    assert problem is not None
    assert str(tmp_path) in problem
    assert "not the folder that the driver sees" in problem


def test_a_folder_that_cannot_be_written_is_named() -> None:
    """Nobody may write to /proc/self, root included."""
    problem = folder_problem(Path("/proc/self"))
    assert problem is not None
    assert problem.startswith("/proc/self is not writable")


@pytest.mark.parametrize(
    ("visible", "counted"),
    [(None, 4), ("2,3", 2), ("GPU-1bb", 1), ("", 0), ("NoDevFiles", 0), ("3,7,0", 1)],
)
def test_gpus_that_a_scheduler_leaves_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, counted: int
) -> None:
    """Of four cards of 10, 11, 12 and 13 GiB, as `nvidia-smi` lists them, which heeds no variable."""
    sizes = [10, 11, 12, 13]
    lines = "".join(f"{i}, GPU-{i}bb-5, {size * 1024}\n" for i, size in enumerate(sizes))
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_memory() == [size * 2**30 for size in sizes]
    chosen = gpu_memory(visible=True)
    assert chosen is not None
    assert len(chosen) == counted
    if visible == "2,3":
        assert chosen == [12 * 2**30, 13 * 2**30]


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_containers_memory_counts(tmp_path: Path, file: str) -> None:
    machine = memory(tmp_path)
    limit = tmp_path / file
    limit.parent.mkdir(exist_ok=True)
    for text, bytes_ in (("max\n", machine), (f"{2**62}\n", machine), (f"{2**30}\n", 2**30)):
        limit.write_text(text)
        assert memory(tmp_path) == bytes_
