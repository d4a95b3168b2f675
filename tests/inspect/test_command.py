"""gtpo-verl inspect: which steps and groups are shown, and what is refused by name."""

import json
import re
from dataclasses import replace

import pytest

from gtpo_verl.cli import main
from gtpo_verl.inspect import InspectError, dump
from gtpo_verl.inspect import command as inspecting
from gtpo_verl.inspect.command import inspect


@pytest.fixture
def run(make_step, tmp_path):
    for number in (1, 2, 5):
        dump.write(make_step(number, groups=3), tmp_path / "gtpo_v2-seed1/tokens", 2**30)
    return tmp_path / "gtpo_v2-seed1"


def contents(path):
    return json.loads(re.findall(r'id="page">(.*?)</script>', path.read_text())[0])


def test_all_steps_by_default(run, tmp_path) -> None:
    shown = inspect(run, tmp_path / "page.html")
    assert (shown.steps, shown.omitted) == ([1, 2, 5], [])
    page = contents(shown.path)
    assert page["title"] == "gtpo_v2-seed1"
    assert [(step["step"], len(step["groups"])) for step in page["steps"]] == [(1, 3), (2, 3), (5, 3)]


def test_steps_groups_and_prompts_can_be_chosen(run, tmp_path) -> None:
    inspect(run, tmp_path / "page.html", steps=[5, 1], groups=2)
    page = contents(tmp_path / "page.html")
    assert [(step["step"], len(step["groups"])) for step in page["steps"]] == [(1, 2), (5, 2)]
    inspect(run, tmp_path / "page.html", prompt="WHAT IS 2")
    page = contents(tmp_path / "page.html")
    assert [[group["prompt"] for group in step["groups"]] for step in page["steps"]] == [["What is 2+3?"]] * 3


def test_the_oldest_are_left_out_of_a_page_that_would_be_too_large(run, tmp_path, monkeypatch) -> None:
    whole = inspect(run, tmp_path / "page.html", steps=[5])
    monkeypatch.setattr(inspecting, "MAX_BYTES", 2.5 * inspecting.encode(dump.read(run / "tokens/step_5.parquet")).size)
    shown = inspect(run, tmp_path / "page.html")
    assert (shown.steps, shown.omitted) == ([2, 5], [1])
    assert contents(shown.path)["omitted"] == [1]
    assert inspect(run, tmp_path / "page.html", steps=[1, 2, 5]).steps == [1, 2, 5]
    assert whole.omitted == []


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"steps": [3]}, r"tokens: no step 3; there are 1, 2, 5"),
        ({"prompt": "nobody asked"}, r"no prompt of steps 1, 2, 5 contains 'nobody asked'"),
        ({"groups": 0}, r"--groups 0: at least 1"),
    ],
)
def test_what_is_not_there_is_said(run, tmp_path, choice, said) -> None:
    with pytest.raises(InspectError, match=said):
        inspect(run, tmp_path / "page.html", **choice)
    assert not (tmp_path / "page.html").exists()


def test_a_dump_without_rows_and_a_file_in_place_of_a_run_are_named(run, tmp_path) -> None:
    with pytest.raises(InspectError, match=r"step_1\.parquet: is a file; name the run's folder"):
        inspect(run / "tokens/step_1.parquet", tmp_path / "page.html")
    dump.write(replace(dump.read(run / "tokens/step_1.parquet"), responses=[]), tmp_path / "empty", 2**30)
    with pytest.raises(InspectError, match=r"nothing to draw: the dumps of steps 1 have no rows"):
        inspect(tmp_path / "empty", tmp_path / "page.html")


def test_on_the_command_line(run, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", str(run), "--step", "2"]) == 0
    assert capsys.readouterr().out == "inspect.html\n"
    assert [step["step"] for step in contents(tmp_path / "inspect.html")["steps"]] == [2]
    assert main(["inspect", str(run), "-o", "none/page.html"]) == 1
    assert capsys.readouterr().err == "error: none/page.html: there is no folder none\n"
    (run / "tokens/step_2.parquet").write_bytes(b"PAR1")
    assert main(["inspect", str(run)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "step_2.parquet: cannot be read" in error
    assert len(error.splitlines()) == 1
    assert main(["inspect", str(tmp_path)]) == 1
    assert "gtpo_verl.token_dump_freq=1" in capsys.readouterr().err
