"""Whatever the locale and the terminal can write: commands end as they should, files are UTF-8."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "läuft → 完了"
# Terminals and locales that cannot show the arrow, or nothing but ASCII.
SURROUNDINGS: dict[str, dict[str, str]] = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "ascii, strict": {"PYTHONIOENCODING": "ascii:strict"},
    "C without UTF-8 mode": {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
    "POSIX without UTF-8 mode": {"PYTHONUTF8": "0", "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
}


def run(folder: Path, surroundings: str, *arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    return subprocess.run(
        [sys.executable, "-m", "gtpo_verl.cli", *arguments],
        cwd=folder,
        env={**environment, **SURROUNDINGS[surroundings]},
        capture_output=True,
        timeout=300,
    )


def runs(folder: Path) -> None:
    for seed in (1, 2):
        run_dir = folder / f"runs/{NAME}-seed{seed}"
        run_dir.mkdir(parents=True)
        lines = [{"step": step, "data": {"critic/score/mean": 0.1 * step, "actor/entropy": 1.0}} for step in (1, 2, 3)]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


STRICTEST = ("ascii, strict", "C without UTF-8 mode")


@pytest.mark.parametrize("surroundings", STRICTEST)
def test_report(tmp_path: Path, surroundings: str) -> None:
    runs(tmp_path)
    result = run(tmp_path, surroundings, "report", "runs", "--output", "report")
    assert result.returncode == 0, result.stderr.decode("utf-8", "replace")
    for path in (tmp_path / "report").rglob("*"):
        if path.suffix in (".html", ".json", ".svg"):
            path.read_text(encoding="utf-8")
    assert NAME in (tmp_path / "report/report.html").read_text(encoding="utf-8")


# All write through the same functions; what imports more is tried where least can be shown.
@pytest.mark.parametrize(
    ("command", "surroundings"),
    [
        *(("config", name) for name in SURROUNDINGS),
        *(pytest.param("preflight", name, marks=pytest.mark.slow) for name in STRICTEST),
        *(pytest.param("train", name, marks=pytest.mark.slow) for name in STRICTEST),
    ],
)
def test_a_command_and_what_it_refuses(tmp_path: Path, surroundings: str, command: str) -> None:
    """A name of another alphabet in the answer: in the YAML, in the table, in the line of a refusal."""
    name = "modèle-→-完了"
    key = "trainer.project_name" if command == "config" else "gtpo_verl.task"
    result = run(tmp_path, surroundings, command, *(["--dry-run"] if command == "preflight" else []), f"{key}='{name}'")
    said = result.stdout + result.stderr
    assert result.returncode == (1 if command == "train" else 0), said.decode("utf-8", "replace")
    for word in (b"Traceback", b"UnicodeDecodeError", b"UnicodeEncodeError"):
        assert word not in said, said.decode("utf-8", "replace")
    if command != "preflight":
        assert b"mod" in said
        assert surroundings != "utf-8" or name in said.decode("utf-8")


PROGRAMS = [*(ROOT / "gtpo_verl").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "recipe").rglob("*.py")]


def test_every_child_process_is_read_in_a_named_encoding() -> None:
    """`subprocess` in text mode."""
    unnamed = []
    for path in PROGRAMS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            given = {keyword.arg for keyword in node.keywords}
            if given & {"text", "universal_newlines"} and "encoding" not in given:
                unnamed.append(f"{path}:{node.lineno}")
    assert unnamed == []


def test_files_of_any_kind_are_opened_in_a_named_encoding() -> None:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "check", "--preview", "--select", "PLW1514", "gtpo_verl", "benchmarks", "recipe"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        *(("config", closed) for closed in ("<&- >&- 2>&-", ">&-", "2>&-", ">/dev/full", "| true")),
        *(pytest.param("train", closed, marks=pytest.mark.slow) for closed in ("<&- >&- 2>&-", ">/dev/full")),
    ],
)
def test_output_that_nobody_takes(tmp_path: Path, command: str, closed: str) -> None:
    """Closed by the shell, full, or read by somebody who has gone."""
    said = tmp_path / "said"
    errors = "" if "2>&-" in closed else f"2>{said}"
    shell = f"{sys.executable} -m gtpo_verl.cli {command} gtpo_verl.task=nothing {errors} {closed}"
    result = subprocess.run(["bash", "-c", f"{shell}; exit ${{PIPESTATUS[0]}}"], cwd=tmp_path, timeout=300)
    written = said.read_text(encoding="utf-8") if said.exists() else ""
    assert "Traceback" not in written
    assert "Exception ignored" not in written
    if command == "train":
        assert result.returncode == 1
    elif closed == ">/dev/full":
        assert (result.returncode, written) == (1, "error: [Errno 28] No space left on device\n")
    elif closed != "| true":
        assert (result.returncode, written) == (0, "")
    if command == "config":
        assert [path.name for path in tmp_path.iterdir() if path != said] == []
