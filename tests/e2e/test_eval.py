"""Models evaluated by real vLLM: killed in the middle, resumed, side by side, the same a second time."""

import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest
from training_run import COMMAND, ROOT

from gtpo_verl import tasks
from gtpo_verl.tasks import arithmetic, data_files

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

PROBLEMS, N = 48, 4
MARK = "GTPO_VERL_EVAL_TEST"


def processes(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_models_killed_and_resumed(tmp_path: Path) -> None:
    prepared = tasks.prepare("arithmetic", ROOT / ".cache/gtpo-verl")
    rows = arithmetic.rows("validation", PROBLEMS, 0, arithmetic.ArithmeticConfig())
    data_files.write_data_file(rows, tmp_path / "sums.parquet")
    # The same weights under another name: sampled without a break they must say the same.
    shutil.copytree(prepared.model, tmp_path / "again")
    mark, home = uuid.uuid4().hex, tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), MARK: mark}
    command = [str(COMMAND), "eval", f"first={prepared.model}", "again", "--data", "sums.parquet"]
    command += ["--n", str(N), "--max-tokens", "112", "--out", "out"]
    shared = set(os.listdir("/dev/shm"))

    killed = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    shards = tmp_path / "out/first/sums/shards"
    wait_for(lambda: any(shards.glob("*.parquet")) or killed.poll() is not None, 120)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    wait_for(lambda: not processes(mark), 20)  # its engine died with it
    kept = {row["text"] for shard in shards.glob("*.parquet") for row in pyarrow.parquet.read_table(shard).to_pylist()}
    sampled = sum(pyarrow.parquet.read_table(shard).num_rows for shard in shards.glob("*.parquet"))
    assert 0 < sampled < PROBLEMS * N

    resumed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert resumed.returncode == 0, resumed.stderr
    assert f"first: {PROBLEMS * N - sampled} responses to sample" in resumed.stderr
    assert f"again: {PROBLEMS * N} responses to sample" in resumed.stderr
    tables = {
        label: pyarrow.parquet.read_table(tmp_path / "out" / label / "sums/responses.parquet").to_pylist()
        for label in ("first", "again")
    }
    for found in tables.values():
        assert [(row["problem"], row["sample"]) for row in found] == [(p, s) for p in range(PROBLEMS) for s in range(N)]
    first, again = ([row["text"] for row in found] for found in tables.values())
    assert kept <= set(first)
    # Seeds are a sample's own; a sum in another order may still tip a token once in a long while.
    assert sum(a != b for a, b in zip(first, again, strict=True)) <= 4
    # Samples of a problem differ, and the model is what it was made to be: right about two times of five.
    assert len(set(first)) > PROBLEMS
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    measures = {one["measure"]: one for one in summary["data"]["sums"]["models"]["first"]}
    right = [
        arithmetic.extract_answer(r["text"]) == rows[r["problem"]]["reward_model"]["ground_truth"]
        for r in tables["first"]
    ]
    assert measures["mean@4"]["mean"] == pytest.approx(sum(right) / len(right))
    assert 0.2 < measures["mean@4"]["mean"] < 0.6
    assert measures["mean@4"]["mean"] < measures["pass@4"]["mean"] <= 1
    assert measures["pass@4"]["low"] < measures["pass@4"]["mean"] < measures["pass@4"]["high"]
    differences = {one["measure"]: one for one in summary["data"]["sums"]["differences"]}
    assert abs(differences["mean@4"]["mean"]) <= 4 / (PROBLEMS * N)
    assert "sums: 48 problems, n=4" in resumed.stdout
    assert "pass@4" in resumed.stdout

    # Everything is there: no engine, the same numbers; fewer samples are a part of them.
    fewer = [*command[:-4], "--max-tokens", "112", "--out", "out", "--k", "1", "2"]
    fewer[fewer.index("--n") + 1] = "2"
    before = (tmp_path / "out/first/sums/responses.parquet").read_bytes()
    third = subprocess.run(fewer, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert third.returncode == 0, third.stderr
    assert "to sample" not in third.stderr
    assert (tmp_path / "out/first/sums/responses.parquet").read_bytes() == before
    other = subprocess.run(
        [*command, "--temperature", "0.5"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert other.returncode == 1
    assert "temperature: 1.0 -> 0.5" in other.stderr
    assert not processes(mark)
    assert set(os.listdir("/dev/shm")) <= shared
    assert sorted(home.rglob("*")) == []
