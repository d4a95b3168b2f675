"""What a starting run prints of its stages."""

import re
import time
from pathlib import Path

import pytest

from gtpo_verl.runtime import stage


def test_a_stage_is_printed_with_the_time_and_the_seconds_since_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GTPO_VERL_TMP", str(tmp_path))
    monkeypatch.setenv(stage.BEGAN, str(time.time() - 100))
    stage.say("starting Ray")
    assert stage.read(tmp_path) == "starting Ray"
    printed = re.fullmatch(r"\d\d:\d\d:\d\d \((\d+\.\d) s\) starting Ray\n", capsys.readouterr().out)
    assert printed is not None
    assert float(printed[1]) >= 100


def test_nothing_is_printed_without_a_supervisor_or_on_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GTPO_VERL_TMP", raising=False)
    stage.say("starting Ray")
    monkeypatch.setenv("GTPO_VERL_TMP", str(tmp_path / "on another node"))
    stage.say("starting Ray")
    assert capsys.readouterr().out == ""


def test_phases_of_steps_are_found_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.time()
    stage.say_phase(1, "rollout")
    stage.say_phase(12, "log-probabilities")
    printed = capsys.readouterr().out.splitlines()
    # As Ray's driver writes a worker's line, with colours, and torn by another one.
    log = f"noise step 3\n\x1b[36m(TaskRunner pid=7)\x1b[0m {printed[0]}\n"
    log += f"{{'step': 1}} {printed[1]}\nstep 2, update, since"
    (first, second) = stage.phases(log)
    assert (first[1:], second[1:]) == ((1, "rollout"), (12, "log-probabilities"))
    assert began - 0.01 <= first[0] <= second[0] <= time.time() + 0.01
