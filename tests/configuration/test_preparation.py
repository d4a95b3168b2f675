"""What is set up before anything is checked, in a process whose environment it may change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.preparation import prepare

config = compose_config(sys.argv[1:])
config.gtpo_verl.task = None  # preparing one may train its model
prepare(config)
print(os.environ["VERL_FILE_LOGGER_PATH"])
"""


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "metrics.jsonl"),
        (["trainer.val_only=true"], "validation.jsonl"),
        (["trainer.val_only=true", "trainer.val_before_train=false"], "metrics.jsonl"),  # verl trains
    ],
)
def test_a_validation_alone_writes_a_file_of_its_own(overrides: list[str], name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "VERL_FILE_LOGGER_PATH"}
    command = [sys.executable, "-c", PROGRAM, f"gtpo_verl.run_dir={tmp_path}", *overrides]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == str(tmp_path / name)
