"""How wide tables are where there is a terminal, none, or something that is called one."""

import copy
import os

import pytest

from gtpo_verl.runtime.tables import console


@pytest.mark.parametrize(
    "forced", [{}, {"FORCE_COLOR": "1", "TERM": "dumb"}, {"TTY_COMPATIBLE": "1", "TERM": "unknown"}]
)
@pytest.mark.parametrize(
    ("columns", "width"), [("240", 240), ("40", 40), (None, 160), ("", 160), ("wide", 160), ("0", 160)]
)
def test_the_width_is_the_one_asked_for_or_a_logs(
    forced: dict[str, str], columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**forced, "COLUMNS": columns}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    output = console()
    assert output.width == width
    output.print("x" * (width + 1))
    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [width, 1]


def test_the_width_is_read_from_the_environment_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", copy.deepcopy(os.environ))  # as datasets does (arrow_dataset.py, `map`)
    monkeypatch.setenv("COLUMNS", "240")
    assert console().width == 240
