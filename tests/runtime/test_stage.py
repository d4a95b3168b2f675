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
