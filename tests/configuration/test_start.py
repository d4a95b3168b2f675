"""What stands in the way of a start: another run in the same folder, Ray's folder of somebody else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from gtpo_verl.configuration.refusals import check_folders, check_ray_folder

HOLDER = """
import sys
from pathlib import Path
from gtpo_verl.driver.main import hold
hold(Path(sys.argv[1], "train.log"), f"gtpo_verl.run_dir={sys.argv[1]}")
print("held", flush=True)
sys.stdin.read()
"""


def start(folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("ends", ["by itself", "by force"])
def test_a_second_run_in_the_same_folder(tmp_path: Path, ends: str) -> None:
    first = start(tmp_path)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    output, error = start(tmp_path).communicate(timeout=60)
    assert output == ""
    assert f"ValueError: gtpo_verl.run_dir={tmp_path}: another run writes there" in error
    if ends == "by force":
        first.kill()
    first.communicate(timeout=60)
    output, error = start(tmp_path).communicate(timeout=60)
    assert output == "held\n", error
    other = tmp_path / "other"
    other.mkdir()
    assert start(other).communicate(timeout=60)[0] == "held\n"


@pytest.mark.parametrize("by", ["RAY_TMPDIR", "TMPDIR", "the configuration"])
def test_rays_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """Root may write everywhere, so what this user may not is asked of the system as another one."""
    for name in ("RAY_TMPDIR", "TMPDIR", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    init = {"address": "local", "_temp_dir": None}
    folder = tmp_path / "ray"
    folder.mkdir()
    if by == "the configuration":
        init["_temp_dir"] = str(folder)
    else:
        monkeypatch.setenv(by, str(tmp_path))
    config = OmegaConf.create({"ray_kwargs": {"ray_init": init}})
    check_ray_folder(config)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and may(path, mode))
    with pytest.raises(OSError, match=rf"{folder}: not writable, and Ray's files go there; export RAY_TMPDIR"):
        check_ray_folder(config)
    config.ray_kwargs.ray_init.address = "10.0.0.1:6379"
    check_ray_folder(config)


KEYS = ["gtpo_verl.run_dir", "trainer.default_local_dir", "trainer.rollout_data_dir", "gtpo_verl.token_dump_dir"]


@pytest.mark.parametrize("key", KEYS)
def test_folders_into_which_nothing_can_be_written(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("")
    config = OmegaConf.create({"gtpo_verl": {}, "trainer": {}})
    for place in ("/proc/nowhere", str(tmp_path / "file"), str(tmp_path / "file/deeper")):
        OmegaConf.update(config, key, place)
        with pytest.raises(OSError, match=rf"{key}={place}: nothing can be written into /"):
            check_folders(config)
    OmegaConf.update(config, key, str(tmp_path / "new/deeper"))
    check_folders(config)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
