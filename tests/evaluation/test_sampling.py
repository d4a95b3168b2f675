"""Engines that fail, that are several, or that have workers; tests/e2e/test_eval.py has one that works."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gtpo_verl.evaluation import devices, sampling
from gtpo_verl.tasks import tiny_model


@pytest.mark.timeout(300)
def test_an_engine_that_cannot_start_names_its_log(tmp_path: Path) -> None:
    chosen = devices.choose(0, 1, [])
    engine = {"model": str(tmp_path / "none")}
    with pytest.raises(sampling.EngineError, match=r"2 responses short: .*Error.*; its log is .*engine-0.log"):
        list(sampling.sample(engine, {}, [sampling.Prompt([1, 2], [3, 4])], chosen, tmp_path))
    assert not [child for child in psutil.Process().children() if "evaluation.engine" in " ".join(child.cmdline())]


def test_nothing_to_sample_starts_nothing(tmp_path: Path) -> None:
    assert list(sampling.sample({}, {}, [], devices.choose(0, 1, []), tmp_path)) == []


class OnCpu(devices.Devices):
    """Names of GPUs, where there is none: vLLM's build for CPUs starts the same processes."""

    def environment(self, engine: int) -> Mapping[str, str]:
        # Two workers would each be given a core of their own, which a small machine may not have.
        cores = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        return {**devices.choose(0, 1, []).environment(0), **cores}


def shared_memory() -> set[str]:
    """Segments that the processes below this one have mapped."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found |= {Path(one.path).name for one in process.memory_maps() if one.path.startswith("/dev/shm/")}
    return found


def living() -> list[psutil.Process]:
    """Processes below this one that have not ended, whether or not their parent has been told."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engines", [[["0"], ["1"]], [["0", "1"]]], ids=["two engines", "two workers"])
def test_several_processes_share_the_work_and_leave_nothing(engines: list[list[str]], tmp_path: Path) -> None:
    tokenizer = tiny_model.build_tokenizer()
    config = tiny_model.ModelConfig(hidden_size=128, num_hidden_layers=1)
    tiny_model.save(tiny_model.build_model(config, tokenizer), tokenizer, tmp_path / "model")
    chosen = OnCpu(engines)
    engine = {"model": str(tmp_path / "model"), "dtype": "float32", "max_model_len": 64, "enforce_eager": True}
    engine |= {"tensor_parallel_size": chosen.tensor_parallel, "gpu_memory_utilization": 0.1}
    prompts = [sampling.Prompt([5, 6, number], [1, 2, 3]) for number in range(4)]
    responses, shared = {}, set()
    for one in sampling.sample(engine, {"max_tokens": 8}, prompts, chosen, tmp_path / "logs"):
        shared |= shared_memory()
        if one is not None:
            responses[one.prompt, one.sample] = one.tokens
    assert responses.keys() == {(prompt, sample) for prompt in range(4) for sample in range(3)}
    assert all(0 < tokens <= 8 for tokens in responses.values())
    assert len(list((tmp_path / "logs").iterdir())) == len(engines)
    deadline = time.monotonic() + 60
    while left := living():  # who was killed may still be on its way out
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    # Two workers talk to their engine through some hundred MB of it.
    assert (chosen.tensor_parallel > 1) == any(name.startswith("psm_") for name in shared)
    assert not {name for name in shared if Path("/dev/shm", name).exists()}
