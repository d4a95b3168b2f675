from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from gtpo_verl.rewards.normalization import normalize_answer
from gtpo_verl.rewards.pool import Limits, WorkerPool

# math-verify's parser computes it at once, which takes minutes with the interpreter's lock held.
HANGS = r"\binom{100000000}{50000000}"
TRUTH = normalize_answer("x+1")
_COUNT = itertools.count(2)


def fresh() -> tuple[str, str]:
    """A right answer and its ground truth that no worker has seen."""
    number = next(_COUNT)
    return normalize_answer(f"{number}+x"), normalize_answer(f"x+{number}")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(Limits(seconds=2, workers=2))
    yield pool
    pool.close()


def workers_of(process: int) -> list[psutil.Process]:
    workers = []
    for child in psutil.Process(process).children():
        with contextlib.suppress(psutil.Error):  # it ends meanwhile, or is dead and not yet waited for
            if "gtpo_verl.rewards.worker" in str(child.cmdline()):
                workers.append(child)
    return workers


def wait_until(condition: object, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_no_process_starts_before_it_is_needed_and_one_thread_needs_one(pool: WorkerPool) -> None:
    before = len(workers_of(os.getpid()))
    assert pool.grade(*fresh()) == "right"
    assert pool.grade(normalize_answer("x+2"), TRUTH) == "wrong"
    assert len(workers_of(os.getpid())) == before + 1


def test_an_answer_that_hangs_ends_at_its_limit_and_the_next_is_graded(pool: WorkerPool) -> None:
    assert pool.grade(*fresh()) == "right"
    assert pool.grade(HANGS, TRUTH) == "timeout"
    assert pool.grade(*fresh()) == "right"


def test_others_are_graded_while_one_hangs() -> None:
    pool = WorkerPool(Limits(seconds=60, workers=2))
    before = {worker.pid for worker in workers_of(os.getpid())}
    hanging = threading.Thread(target=lambda: pool.grade(HANGS, TRUTH), daemon=True)
    hanging.start()
    assert [pool.grade(*fresh()) for _ in range(3)] == ["right"] * 3
    assert hanging.is_alive()

    def started() -> list[psutil.Process]:
        return [worker for worker in workers_of(os.getpid()) if worker.pid not in before]

    # One that is killed while it starts is started again.
    assert wait_until(lambda: len(started()) == 2 and max(w.cpu_times().user for w in started()) > 5, 60)
    for worker in started():
        worker.kill()
    hanging.join(30)
    assert not hanging.is_alive()
    pool.close()


def test_a_worker_that_was_killed_is_replaced(pool: WorkerPool) -> None:
    before = {worker.pid for worker in workers_of(os.getpid())}
    assert pool.grade(*fresh()) == "right"
    (worker,) = [worker for worker in workers_of(os.getpid()) if worker.pid not in before]
    worker.kill()
    assert wait_until(lambda: gone(worker), 10)
    assert pool.grade(*fresh()) == "right"


def test_a_worker_that_dies_at_work_makes_its_answer_wrong_and_no_other() -> None:
    pool = WorkerPool(Limits(seconds=60, workers=1))
    before = {worker.pid for worker in workers_of(os.getpid())}
    with ThreadPoolExecutor(1) as executor:
        verdict = executor.submit(pool.grade, HANGS, TRUTH)
        assert wait_until(lambda: {w.pid for w in workers_of(os.getpid())} - before, 30)
        (worker,) = [worker for worker in workers_of(os.getpid()) if worker.pid not in before]
        assert wait_until(lambda: worker.cpu_times().user > 3, 60)
        worker.kill()
        assert verdict.result(timeout=30) == "worker_died"
    assert pool.grade(*fresh()) == "right"
    pool.close()


def test_never_more_processes_than_allowed(pool: WorkerPool) -> None:
    before = len(workers_of(os.getpid()))
    with ThreadPoolExecutor(16) as executor:
        assert list(executor.map(lambda _: pool.grade(*fresh()), range(64))) == ["right"] * 64
        assert len(workers_of(os.getpid())) <= before + 2


def test_verdicts_are_remembered_but_not_those_of_a_loaded_machine(pool: WorkerPool) -> None:
    answer, truth = fresh()
    assert pool.grade(answer, truth) == "right"
    pool.close()
    before = len(workers_of(os.getpid()))
    assert pool.grade(answer, truth) == "right"
    assert len(workers_of(os.getpid())) == before
    assert [pool.grade(HANGS, TRUTH) for _ in range(2)] == ["timeout"] * 2
    assert HANGS not in {known for known, _ in pool._verdicts}


def test_closing_ends_the_processes_and_the_pool_goes_on(pool: WorkerPool) -> None:
    before = len(workers_of(os.getpid()))
    pool.grade(*fresh())
    pool.close()
    assert len(workers_of(os.getpid())) == before
    assert pool.grade(*fresh()) == "right"


def test_a_forked_child_has_workers_of_its_own(pool: WorkerPool) -> None:
    assert pool.grade(*fresh()) == "right"
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = pool.grade(*fresh()) == "right" and pool.grade(normalize_answer("x"), TRUTH) == "wrong"
            pool.close()
        finally:
            os._exit(0 if ok else 1)
    assert [pool.grade(*fresh()) for _ in range(20)] == ["right"] * 20
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


SCRIPT = """
import sys, threading
from gtpo_verl.rewards.math import compute_score
print(compute_score("any", "Answer: 1+x", "x+1")["acc"], flush=True)
if len(sys.argv) > 1:
    threading.Thread(target=compute_score, args=("any", r"Answer: \\\\binom{100000000}{50000000}", "x")).start()
    sys.stdin.read()
"""


def script(path: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    (path / "script.py").write_text(SCRIPT, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(path / "script.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
    )


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    process = script(tmp_path)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert output.split() == ["1.0"]


@pytest.mark.parametrize("when", ["idle", "hanging"])
def test_workers_end_after_their_parent_was_killed(tmp_path: Path, when: str) -> None:
    arguments = ["hang"] if when == "hanging" else []
    environment = {"GTPO_VERL_MATH_TIMEOUT_S": "5", "GTPO_VERL_MATH_WORKERS": "1"}
    process = script(tmp_path, *(arguments or ["idle"]), **environment)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "1.0"
    (worker,) = workers_of(process.pid)
    if when == "hanging":
        used = worker.cpu_times().user
        assert wait_until(lambda: worker.cpu_times().user > used + 0.5, 30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: gone(worker), 30)


def test_a_daemonic_process_can_grade(tmp_path: Path) -> None:
    code = (
        "import multiprocessing as m\n"
        "def work(q):\n"
        "    from gtpo_verl.rewards.math import compute_score\n"
        "    q.put(compute_score('any', 'Answer: 1+x', 'x+1')['acc'])\n"
        "if __name__ == '__main__':\n"
        "    q = m.get_context('spawn').Queue()\n"
        "    p = m.get_context('spawn').Process(target=work, args=(q,), daemon=True)\n"
        "    p.start(); print(q.get(timeout=100)); p.join()\n"
    )
    (tmp_path / "daemonic.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "daemonic.py")], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.stdout.split() == ["1.0"], done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMEOUT_S", "ten"),
        ("TIMEOUT_S", "0"),
        ("TIMEOUT_S", "nan"),
        ("TIMEOUT_S", "1e9"),
        ("MEMORY_MIB", "1"),
        ("MEMORY_MIB", "2.5"),
        ("WORKERS", "-1"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GTPO_VERL_MATH_{name}", value)
    with pytest.raises(ValueError, match=f"GTPO_VERL_MATH_{name}"):
        Limits.from_environment()


def test_limits_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GTPO_VERL_MATH_TIMEOUT_S", "2.5")
    monkeypatch.setenv("GTPO_VERL_MATH_WORKERS", "3")
    assert Limits.from_environment() == Limits(seconds=2.5, workers=3)
    assert Limits(workers=3).processes == 3
    assert 1 <= Limits().processes <= 4


LIMITED = """
import os, resource, sys
from gtpo_verl.rewards import pool
from gtpo_verl.rewards.math import compute_score
pool._START_PAUSE_S = 0.0
{limit}
try:
    compute_score("any", "Answer: 1+x", "x+1")
except RuntimeError as error:
    print("RuntimeError", error)
"""
LIMITS = {
    # Processes of a user are counted, and root's are not.
    "processes": "os.geteuid() or os.setuid(65534); resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
    "open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1,) * 2)",
    "memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))",
    "no interpreter": "sys.executable = '/nonexistent/python'",
    "an interpreter that ends": "sys.executable = '/bin/false'",
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_process_that_cannot_start_is_a_runtime_error_that_says_why(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=LIMITS[name])],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout.startswith("RuntimeError a process that grades answers cannot start"), done.stdout + done.stderr
    assert "ulimit" in done.stdout
