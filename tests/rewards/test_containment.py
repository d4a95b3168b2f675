"""Containment cannot be taken back, so each test contains a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def contained(body: str, cwd: Path, before: str = "") -> str:
    code = f"{before}\nfrom gtpo_verl.rewards.containment import contain\ncontain(256 << 20)\n{body}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120, env=environment
    )
    return done.stdout + done.stderr.strip().rsplit("\n", 1)[-1]


@pytest.mark.parametrize(
    "attempt",
    [
        "os.system('touch planted')",
        "open('planted', 'w')",
        "os.open('planted', os.O_CREAT | os.O_WRONLY)",
        "pathlib.Path('planted').mkdir()",
        "subprocess.run(['touch', 'planted'])",
        "os.execv('/bin/sh', ['sh', '-c', 'touch planted'])",
        "os.posix_spawn('/bin/sh', ['sh', '-c', 'touch planted'], {})",
        "os.fork()",
        "socket.socket().connect(('127.0.0.1', 9))",
        "os.kill(os.getppid(), 0)",
    ],
)
def test_what_does_harm_is_refused(attempt: str, tmp_path: Path) -> None:
    assert "Forbidden" in contained(attempt, tmp_path, "import os, pathlib, socket, subprocess")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        "sympy.sympify(text)",
        "sympy.parse_expr(text)",
        "sympy.Number(text)",
        "sympy.FiniteSet(text)",
        "math_verify.parser.parse_expr(text)",
    ],
)
def test_sympy_evaluates_no_text(call: str, tmp_path: Path) -> None:
    setup = (
        "import sympy, math_verify.parser, builtins; builtins.ran = []; text = '__import__(\"builtins\").ran.append(1)'"
    )
    body = f"try:\n    {call}\nexcept Exception as e:\n    print(type(e).__name__)\nprint('ran', builtins.ran)"
    assert "ran []" in contained(body, tmp_path, setup)


def test_without_containment_the_same_text_would_run(tmp_path: Path) -> None:
    code = (
        "import sympy, builtins; builtins.ran = []\ntry:\n    sympy.sympify('__import__(\"builtins\").ran.append(1)')\n"
    )
    code += "except Exception:\n    pass\nprint('ran', builtins.ran)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "ran [1]" in done.stdout


def test_numbers_are_still_read(tmp_path: Path) -> None:
    body = "print([sympy.srepr(sympy.Number(t)) for t in ('13', '2.5', '.5', '007', '3/2')])"
    output = contained(body, tmp_path, "import sympy")
    assert "Integer(13)" in output
    assert "Float('2.5'" in output
    assert "Integer(7)" in output
    assert "Rational(3, 2)" in output
    assert "Forbidden" in contained("sympy.Number('3/0')", tmp_path, "import sympy")


def test_memory_is_bounded(tmp_path: Path) -> None:
    assert contained("bytearray(1 << 20); print('small')", tmp_path).startswith("small")
    assert "MemoryError" in contained("bytearray(1 << 30)", tmp_path)


def test_the_kernel_ends_a_computation_that_holds_the_lock(tmp_path: Path) -> None:
    code = "from gtpo_verl.rewards.containment import end_after\nend_after(1)\n(9**9**8) % 7"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], timeout=60, cwd=tmp_path, env=environment)
    assert done.returncode == -14


def test_grading_means_the_same_contained_and_not(tmp_path: Path) -> None:
    """Containment must not turn right answers wrong: sympy swallows the refusal, and calls two answers different."""
    script = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("cases", {str(Path(__file__).parent / "cases.py")!r})
cases = importlib.util.module_from_spec(spec); spec.loader.exec_module(cases)
from gtpo_verl.rewards import grading, containment
from gtpo_verl.rewards.extraction import extract_answer
from gtpo_verl.rewards.normalization import normalize_answer
if sys.argv[1] == "contained":
    containment.contain(1 << 30)
for _, response, truth, _ in cases.read_cases():
    answer = normalize_answer(extract_answer(response) or "")
    print(grading.grade(answer, normalize_answer(truth)) if answer else "none")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "0"}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script, how],
            capture_output=True,
            text=True,
            timeout=200,
            cwd=tmp_path,
            env=environment,
            check=True,
        ).stdout.split()
        for how in ("contained", "free")
    ]
    assert len(outputs[0]) > 150
    assert outputs[0] == outputs[1]
