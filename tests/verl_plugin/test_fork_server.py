"""Processes forked from one server are what programs started anew would be, without the imports."""

import ast
import functools
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection as mp_connection
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
from omegaconf import DictConfig

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin import fork_server
from gtpo_verl.verl_plugin.fork_server import cuda, ray_worker, vllm
from gtpo_verl.verl_plugin.fork_server.client import NUMBER, fork, serves

pytestmark = pytest.mark.slow  # most tests start servers and programs that import torch or vLLM

# What the server imports: something slow, which says how often it was imported and with which environment.
SLOW = """
    import numpy, os
    with open(os.environ["IMPORTS"], "a") as file:
        print(os.getpid(), os.environ.get("OF_ALL"), file=file)
    os.environ["OF_AN_IMPORT"] = "set while it is imported"
    answer = 42
"""
REPORT = """
    import json, os, sys
    import numpy, random, slow
    json.dump({
        "arguments": sys.argv[1:], "answer": slow.answer, "folder": os.getcwd(), "environment": dict(os.environ),
        "process_group": os.getpgid(0), "parent": os.getppid(), "name": __name__, "input": sys.stdin.read(),
        "drawn": [numpy.random.random(), random.random()], "first path": sys.path[0],
    }, sys.stdout)
    print("an error", file=sys.stderr)
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For a server; the paths of sockets are short."""
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW))
    (tmp_path / "report.py").write_text(textwrap.dedent(REPORT))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports"))
    monkeypatch.setenv(fork_server.ADDRESS, "")  # restored afterwards
    folder = Path("/tmp") / f"forks-{random.SystemRandom().randrange(10**9)}"
    folder.mkdir()
    yield folder
    (folder / "forks").unlink()
    folder.rmdir()


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen]:
    process = fork_server.start_server(str(folder), str(tmp_path / "log"), "slow", {"OF_ALL": "one for all"})
    yield process
    process.kill()
    process.wait()


def run(program: Path, *arguments: str, **environment: str) -> tuple[int, dict, str]:
    """Exit code, what `REPORT` says, and standard error."""
    pipes = [os.pipe() for _ in range(3)]
    os.write(pipes[0][1], b"some input")
    os.close(pipes[0][1])
    connection = fork(
        [str(program), *arguments], [pipes[0][0], pipes[1][1], pipes[2][1]], {**os.environ, **environment}
    )
    for descriptor in (pipes[0][0], pipes[1][1], pipes[2][1]):
        os.close(descriptor)
    with connection, os.fdopen(pipes[1][0]) as output, os.fdopen(pipes[2][0]) as errors:
        report, said = output.read(), errors.read()
        numbers = connection.makefile("rb").read(2 * NUMBER.size)
    return NUMBER.unpack(numbers[NUMBER.size :])[0], json.loads(report or "{}"), said


def test_a_fork_is_the_program_that_was_asked_for(server: subprocess.Popen, tmp_path: Path) -> None:
    code, report, errors = run(tmp_path / "report.py", "3", "b c", OF_ONE="yes")
    assert code == 3
    assert report["arguments"] == ["3", "b c"]
    assert report["name"] == "__main__"
    assert report["input"] == "some input"
    assert errors == "an error\n"
    assert report["folder"] == os.getcwd()
    assert report["first path"] == str(tmp_path)
    assert report["process_group"] == os.getpgid(0)
    assert report["environment"]["OF_ONE"] == "yes"
    assert "OF_ALL" not in report["environment"]  # the server's own, unless who asks has it too
    assert report["environment"]["OF_AN_IMPORT"] == "set while it is imported"
    assert run(tmp_path / "report.py", "0", OF_AN_IMPORT="mine")[1]["environment"]["OF_AN_IMPORT"] == "mine"
    assert report["parent"] == server.pid


def test_imports_happen_once_and_nothing_else_is_shared(server: subprocess.Popen, tmp_path: Path) -> None:
    reports = [run(tmp_path / "report.py", "0")[1] for _ in range(3)]
    assert (tmp_path / "imports").read_text() == f"{server.pid} one for all\n"
    assert [report["answer"] for report in reports] == [42] * 3
    for drawn in zip(*(report["drawn"] for report in reports), strict=True):
        assert len(set(drawn)) == 3


def test_a_program_that_fails_fails_as_it_would(server: subprocess.Popen, tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text("import sys\nraise ValueError('of the program')")
    code, _, errors = run(tmp_path / "report.py")
    assert code == 1
    assert errors.endswith("ValueError: of the program\n")
    (tmp_path / "report.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert run(tmp_path / "report.py")[0] == -signal.SIGKILL


def test_the_server_outlives_those_who_hang_up(server: subprocess.Popen, tmp_path: Path) -> None:
    for message in (b"", b"\x00" * 3, NUMBER.pack(1000) + b"half of it"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[fork_server.ADDRESS])
            connection.sendall(message)
    fork([str(tmp_path / "report.py"), "0"], [0, 1, 2]).close()  # and does not wait for an answer
    assert run(tmp_path / "report.py", "0")[0] == 0


@pytest.mark.parametrize("seconds", [0, 2])
def test_the_server_ends_with_who_started_it(seconds: float, tmp_path: Path) -> None:
    program = f"""
        import os, sys
        from gtpo_verl.verl_plugin import fork_server
        print(fork_server.start_server({str(tmp_path)!r}, {str(tmp_path / "log")!r}, "json", {{}}).pid, flush=True)
        sys.stdin.read()
    """
    folder = {"cwd": tmp_path}
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **folder
    )
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    time.sleep(seconds)
    parent.kill()
    parent.wait()
    server.wait(timeout=30)


# ---- whether forks would do ----


# A driver of NVIDIA's that does not bear a fork, as the real one: a process that has called it, or not, and its forks.
DRIVER = """
    #include <unistd.h>
    static int caller;
    int cuInit(unsigned flags) {
        if (caller && caller != getpid()) return 3;
        caller = getpid();
        return 0;
    }
"""
LOADS_DRIVER = "import ctypes, os, torch.cuda; driver = ctypes.CDLL(os.environ['FOLDER'] + '/libcuda.so.1')"
UNFIT = {
    "import torch.cuda; torch.cuda._initialized = True": "what it imports has initialised CUDA",
    # Where CUDA was asked for the number of GPUs, torch notes the fork and refuses CUDA in it, and nothing else tells.
    "import os, torch.cuda; me = os.getpid(); torch.cuda._is_in_bad_fork = lambda: os.getpid() != me": "called CUDA",
    f"{LOADS_DRIVER}; driver.cuInit(0)": "called CUDA",
    "import torch.cuda; torch.cuda._is_in_bad_fork = None": "a fork that tried CUDA ended with 1",
    "import time; time.sleep(2); import no_such_module": "slow cannot be imported: ModuleNotFoundError",
}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver.c").write_text(textwrap.dedent(DRIVER))
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(["cc", *library, str(tmp_path / "driver.c")], check=True)
    monkeypatch.setenv("FOLDER", str(tmp_path))


@pytest.mark.skipif(
    shutil.which("cc") is None, reason="compiles a stand-in for the GPU driver's library: needs a C compiler"
)
@pytest.mark.parametrize("preload", UNFIT, ids=UNFIT.values())
def test_a_server_whose_forks_would_not_do_serves_none(
    preload: str, folder: Path, driver: None, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(preload)
    (tmp_path / "worker.py").write_text("import sys; print('worker', sys.argv[1:])")
    server = fork_server.start_server(str(folder), str(tmp_path / "log"), "slow", {})
    # A worker that Ray starts meanwhile, and one that it starts afterwards.
    command = [sys.executable, ray_worker.__file__, str(tmp_path / "worker.py"), "--language=PYTHON"]
    command.append("--serialized-runtime-env-context={}")
    for _ in range(2):
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.stdout == "worker []\n", result.stderr
        assert "Ray starts this worker by itself" in result.stderr
        assert server.wait(timeout=300) == 0
    assert not serves()
    said = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("fork server:")]
    assert len(said) == 1
    assert UNFIT[preload] in said[0]


@pytest.mark.skipif(
    shutil.which("cc") is None, reason="compiles a stand-in for the GPU driver's library: needs a C compiler"
)
@pytest.mark.parametrize("preload", ["import torch.cuda; answer = 42", f"{LOADS_DRIVER}; answer = 42"])
def test_a_server_that_could_have_called_cuda_serves(preload: str, folder: Path, driver: None, tmp_path: Path) -> None:
    """torch is there, and NVIDIA's driver; nothing has called it."""
    (tmp_path / "slow.py").write_text(preload)
    server = fork_server.start_server(str(folder), str(tmp_path / "log"), "slow", {"OMP_NUM_THREADS": "1"})
    try:
        assert serves()
        assert run(tmp_path / "report.py", "0")[1]["answer"] == 42
    finally:
        server.kill()
        server.wait()
    assert "ready" in (tmp_path / "log").read_text()
    assert "threads: python; NVIDIA devices open: none" in (tmp_path / "log").read_text()


PRETENDED = """
    import os, sys, traceback
    import torch
    from gtpo_verl.verl_plugin.cpu import vllm_distribution

    def note(name, value):
        def call(*args, **kwargs):
            called[name] = "".join(traceback.format_stack())
            return value
        return call

    called = {}
    values = {"device_count": 1, "get_device_capability": (9, 0), "get_device_name": "a GPU", "current_device": 0}
    for name in ("get_device_properties", "mem_get_info", "is_bf16_supported", "_lazy_init"):
        values[name] = None
    for name, value in values.items():
        setattr(torch.cuda, name, note(name, value))
    for name in ("current_accelerator", "device_count", "is_available", "current_device_index"):
        setattr(torch.accelerator, name, note(f"accelerator.{name}", None))
    torch.cuda.is_available = lambda: True
    vllm_distribution.install()  # vLLM's build for CPUs
    from gtpo_verl.verl_plugin.fork_server import preload
    print("imported", "vllm.v1.worker.gpu_worker" in sys.modules)
    print("layers", [name for name in sys.modules if "layers.fla" in name])  # vLLM 0.24's ask CUDA when imported
    print("called", called)
    called.clear()
    del sys.modules["verl.trainer.constants_ppo"]
    import verl.trainer.constants_ppo
    print("called by verl's constants", called)
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.slow
def test_no_import_initialises_cuda() -> None:
    """Where torch says that there is a GPU, nothing that is imported asks CUDA about it; verl's constants would."""
    environment = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    command = [sys.executable, "-c", textwrap.dedent(PRETENDED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert "imported True" in done.stdout, done.stderr
    assert "layers []" in done.stdout
    ours, verls = (line for line in done.stdout.splitlines() if line.startswith("called"))
    assert ours == "called {}"
    calls = ast.literal_eval(verls.removeprefix("called by verl's constants "))
    assert list(calls) == ["get_device_capability"], calls


@pytest.mark.parametrize(("bad", "serves_forks"), [(1, True), (3, True), (4, False)])
def test_what_initialises_cuda_is_left_out(folder: Path, tmp_path: Path, bad: int, serves_forks: bool) -> None:
    """The server begins again without it. Torch's word stands for a GPU."""
    names = [f"module_{number}" for number in range(6)]
    for number, name in enumerate(names):
        lines = ["import torch", "torch.cuda.is_initialized = lambda: True"] if 1 <= number <= bad else []
        (tmp_path / f"{name}.py").write_text("\n".join([*lines, f"answer = {number}"]))
    (tmp_path / "all_of_them.py").write_text(
        f"from gtpo_verl.verl_plugin.fork_server.cuda import import_all\nimport_all({names!r})"
    )
    (tmp_path / "report.py").write_text(
        "import json, os, sys\njson.dump({'modules': [n for n in sys.modules if n.startswith('module_')],"
        "'left out': os.environ.get('GTPO_VERL_FORK_SERVER_LEAVES_OUT')}, sys.stdout)"
    )
    log = tmp_path / "log"
    server = fork_server.start_server(str(folder), str(log), "all_of_them", {})
    try:
        if serves_forks:
            assert run(tmp_path / "report.py", "0")[1] == {"modules": [names[0], *names[bad + 1 :]], "left out": None}
        else:
            server.wait(timeout=120)
            assert not serves()
    finally:
        server.kill()
        server.wait()
    said = log.read_text()
    for name in names[1 : bad + 1]:
        assert f"{name} initialises CUDA when it is imported" in said
    assert ("fork server: ready" in said) == serves_forks
    refused = "fork server: not used" in said and "module_4 initialises CUDA when it is imported, as did" in said
    assert refused != serves_forks


def test_nothing_is_left_out_for_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "is_initialised", lambda: True)
    with pytest.raises(RuntimeError, match="before") as caught:
        cuda.import_all(["json"])
    assert not isinstance(caught.value, cuda.InitialisedError)


ON_GPU = """
    import json, os, sys
    import torch

    here = torch.cuda.is_initialized()
    ones = torch.ones(1000, device="cuda")
    json.dump({
        "initialised": here, "sum": (ones @ ones).item(), "parent": os.getppid(),
        "imported": "vllm.v1.worker.gpu_worker" in sys.modules and "verl.workers.engine_workers" in sys.modules,
    }, sys.stdout)
    sys.stdout.flush()
    sys.stdin.read(), open(os.environ["DONE"], "w").close()
    while not os.path.exists(os.environ["OTHER"]):  # both compute before either ends
        pass
"""


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_forks_compute_on_a_gpu(folder: Path, tmp_path: Path) -> None:
    """Of all that a run imports, two at the same time."""
    (tmp_path / "compute.py").write_text(textwrap.dedent(ON_GPU))
    log = tmp_path / "log"
    module = f"{fork_server.__name__}.preload"
    server = fork_server.start_server(str(folder), str(log), module, {"OMP_NUM_THREADS": "1", **fork_server._QUIET})
    try:
        with ThreadPoolExecutor() as pool:
            names = [str(tmp_path / "one"), str(tmp_path / "other")]
            both = [
                pool.submit(run, tmp_path / "compute.py", DONE=done, OTHER=other)
                for done, other in (names, reversed(names))
            ]
            for code, report, errors in [each.result() for each in both]:
                assert code == 0, errors + log.read_text()
                assert report == {"initialised": False, "sum": 1000.0, "parent": server.pid, "imported": True}
    finally:
        server.kill()
        server.wait()
    (ready,) = [line for line in log.read_text().splitlines() if line.startswith("fork server: ready")]
    print(ready)
    assert ready.endswith("NVIDIA devices open: none")


def test_which_runs_are_forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that start a Ray of their own, and are not told otherwise."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # no cluster of this machine's

    @functools.cache
    def config(*overrides: str) -> DictConfig:
        return compose_config(list(overrides))

    def forked(*overrides: str) -> bool:
        return fork_server.can_fork(config(*overrides))

    assert forked("scale=cpu")
    assert not forked("scale=cpu", "gtpo_verl.fork_server=false")
    assert forked("model=smollm2", "scale=smollm2_1gpu")
    assert forked("scale=gpu")
    for several in (["scale=7b_1x8"], ["scale=32b_8x8"], ["scale=gpu", "trainer.n_gpus_per_node=2"]):
        assert not forked(*several)
    assert forked("scale=cpu", "trainer.n_gpus_per_node=2")
    assert not forked("scale=gpu", "+ray_kwargs.ray_init.address=10.0.0.1:6379")
    assert not forked("scale=cpu_cluster")
    # Hashes are Python's from its start.
    assert not forked("scale=gpu", "actor_rollout_ref.rollout.full_determinism=true")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert not forked("scale=gpu")
    assert forked("scale=gpu", "+ray_kwargs.ray_init.address=local")
    (tmp_path / "ray" / "ray_current_cluster").unlink()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not forked("scale=gpu")
    assert forked("scale=cpu")  # whatever else runs on the machine


# ---- multiprocessing, as vLLM uses it ----


WORK = """
    import os, sys, time

    def square(numbers, name):
        numbers.send((numbers.recv() ** 2, os.environ.get(name), os.getppid(), "slow" in sys.modules))
        if numbers.recv() == "stay":
            time.sleep(60)
        sys.exit(5)
"""


@pytest.fixture
def context(
    server: subprocess.Popen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> multiprocessing.context.BaseContext:
    (tmp_path / "work.py").write_text(textwrap.dedent(WORK))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "work", raising=False)
    monkeypatch.setattr(forkserver, "connect_to_new_process", vllm.connect_to_new_process)
    monkeypatch.setenv("CHOSEN", "in the parent")
    return multiprocessing.get_context("forkserver")


def start(context: multiprocessing.context.BaseContext) -> tuple:
    import work

    ours, theirs = context.Pipe()
    process = context.Process(target=work.square, args=(theirs, "CHOSEN"), daemon=True)  # type: ignore[attr-defined]
    process.start()
    ours.send(7)
    return process, ours


def test_processes_of_multiprocessing_are_forked(
    server: subprocess.Popen, context: multiprocessing.context.BaseContext
) -> None:
    process, numbers = start(context)
    assert numbers.recv() == (49, "in the parent", server.pid, True)
    assert process.is_alive()
    assert psutil.Process(process.pid).is_running()
    numbers.send("end")
    assert mp_connection.wait([process.sentinel], timeout=30)
    process.join(timeout=30)
    assert process.exitcode == 5


def test_processes_of_multiprocessing_can_be_ended(context: multiprocessing.context.BaseContext) -> None:
    process, numbers = start(context)
    assert numbers.recv()[0] == 49
    numbers.send("stay")
    process.terminate()
    process.join(timeout=30)
    assert process.exitcode == -signal.SIGTERM


LOOK = """
    import subprocess, sys
    from gtpo_verl.verl_plugin.cpu import vllm_distribution
    vllm_distribution.install()  # vLLM's build for CPUs, without our platform
    from gtpo_verl.verl_plugin.fork_server import vllm
    vllm.install()
    from vllm.model_executor.models.registry import _LazyRegisteredModel

    def start(command, *args, **kwargs):
        raise OSError(f"started {command[1:]}")

    subprocess.run = start
    for model in ("qwen2.Qwen2ForCausalLM", "llama.LlamaForCausalLM"):
        module, _, name = f"vllm.model_executor.models.{model}".rpartition(".")
        if "qwen2" in module:
            __import__(module)
        try:
            print(name, _LazyRegisteredModel(module, name).inspect_model_cls().is_text_generation_model)
        except OSError as error:
            print(name, error)
"""


def test_vllm_looks_at_an_imported_model_itself(tmp_path: Path) -> None:
    """And starts a Python to look at any other."""
    environment = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    environment["VLLM_CACHE_ROOT"] = str(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(LOOK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert "Qwen2ForCausalLM True" in done.stdout, done.stderr
    assert "LlamaForCausalLM started ['-m', 'vllm.model_executor.models.registry']" in done.stdout


# ---- Ray ----


@pytest.mark.parametrize(
    "context", ["{}", '{"command_prefix": ["true", "&&"]}', '{"py_executable": "/usr/bin/env python"}']
)
def test_ray_starts_workers_itself_where_a_fork_would_not_do(context: str, tmp_path: Path) -> None:
    """No server; a prefix; another Python. What follows is Ray's own program, which starts the worker."""
    (tmp_path / "worker.py").write_text("import sys; print('worker', sys.argv[1:])")
    command = [sys.executable, ray_worker.__file__, str(tmp_path / "worker.py"), "--port=1", "--language=PYTHON"]
    command.append(f"--serialized-runtime-env-context={context}")
    environment = {name: value for name, value in os.environ.items() if name != fork_server.ADDRESS}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout == "worker ['--port=1']\n", result.stderr
    assert "Ray starts this worker by itself" in result.stderr


def test_a_worker_gets_its_environment(
    server: subprocess.Popen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray's own program sets it: references to other variables are replaced."""
    from ray._private.utils import update_envs

    variables = {"OF_ONE": "yes", "PATH": "/of/one:$PATH", "OTHERS": "${OF_ONE} $OF_ONE_ ${OF_ONE_} $ $$OF_ONE ${}"}
    program = tmp_path / "report.py"
    context = json.dumps({"env_vars": variables, "py_executable": sys.executable})
    command = [sys.executable, ray_worker.__file__, str(program), "0", "--language=PYTHON"]
    command.append(f"--serialized-runtime-env-context={context}")
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, input="", start_new_session=True)
    report = json.loads(result.stdout)  # the pipe ends when the fork has ended
    assert report["arguments"] == ["0"]
    assert report["environment"]["OF_ONE"] == "yes"
    assert report["parent"] == server.pid
    for name in variables:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    update_envs(variables)
    assert {name: report["environment"][name] for name in variables} == {name: os.environ[name] for name in variables}


RAY = """
    import os, sys
    from gtpo_verl.verl_plugin import fork_server
    from gtpo_verl.verl_plugin.fork_server import ray_worker

    server = None
    if sys.argv[2] == "forks":
        server = fork_server.start_server(sys.argv[1], os.devnull, "slow", ray_worker.environment_of_all()).pid
        ray_worker.install()
    import ray
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000,
        _temp_dir=sys.argv[1], runtime_env={"env_vars": {"OF_ONE": "yes"}},
    )

    @ray.remote
    class Worker:
        def report(self):
            import slow
            return os.getpid(), os.getppid(), os.environ["OF_ONE"], slow.answer, ray.get_runtime_context().get_job_id()

        def make(self, count):
            return [ray.put(b"x" * 1000) for _ in range(count)]

    workers = [Worker.remote() for _ in range(2)]
    reports = ray.get([worker.report.remote() for worker in workers], timeout=60)
    assert len({pid for pid, *_ in reports}) == 2
    for _, parent, *others in reports:
        assert others == ["yes", 42, ray.get_runtime_context().get_job_id()], others
        assert (parent == server) == (sys.argv[2] == "forks")
    ours = [worker.make.remote(20) for worker in workers]
    references = sum(ray.get(ours, timeout=60), [])
    assert len(set(references)) == 40  # no two forks give the same name to an object
    assert all(len(value) == 1000 for value in ray.get(references, timeout=60))
    ray.kill(workers[0])
    ray.get(Worker.remote().report.remote(), timeout=60)
    print("imports", open(os.environ["IMPORTS"]).read().count("\\n"))
    ray.shutdown()
"""


DRAW = """
    import json, os, threading
    from gtpo_verl.verl_plugin.fork_server import preload
    import numpy, random, ray, ray.actor, uuid
    from ray._raylet import ObjectRef, UniqueID

    def draw(numbers):
        numbers += [UniqueID.from_random().hex(), ObjectRef.from_random().hex(), str(uuid.uuid4())]
        numbers += [random.random(), ray.actor.ActorClassID.from_random().hex()]

    for _ in range(3):
        if os.fork() == 0:
            numbers = []
            draw(numbers)
            thread = threading.Thread(target=draw, args=(numbers,))
            thread.start()
            thread.join()
            os.write(1, json.dumps(numbers).encode() + b"\\n")
            os._exit(0)
        os.wait()
"""


@pytest.mark.slow
def test_no_two_forks_draw_the_same_ids() -> None:
    """In whichever thread: the threads' generators are seeded from one that the forks inherit."""
    command = [sys.executable, "-c", textwrap.dedent(DRAW)]
    environment = {**os.environ, "VERL_PLATFORM": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    drawn = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert len(drawn) == 3, done.stderr
    assert len({number for numbers in drawn for number in numbers}) == 30


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("how", "imports", "authentication"), [("forks", 1, "disabled"), ("forks", 1, None), ("needed", 3, "disabled")]
)
def test_rays_workers_are_forked(how: str, imports: int, authentication: str | None, tmp_path: Path) -> None:
    """Where Ray starts them, each worker imports anew (needed); where they are forked, none does. By default Ray asks
    for a token, which is settled after the server has loaded Ray's library."""
    (tmp_path / "slow.py").write_text("import ray\n" + textwrap.dedent(SLOW))
    folder = Path("/tmp") / f"forks-{random.SystemRandom().randrange(10**9)}"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "IMPORTS": str(tmp_path / "imports")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    environment.pop("RAY_AUTH_MODE", None)
    if authentication is not None:
        environment["RAY_AUTH_MODE"] = authentication
    command = [sys.executable, "-c", textwrap.dedent(RAY), str(folder), how]
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"imports {imports}" in result.stdout.splitlines()
