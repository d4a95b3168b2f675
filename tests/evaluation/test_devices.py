"""Engines are spread over the GPUs that are there."""

import os
import re

import pytest

from gtpo_verl.evaluation.devices import choose


def test_one_engine_for_each_group_of_gpus() -> None:
    assert choose(None, 1, ["0", "1", "2"]).engines == [["0"], ["1"], ["2"]]
    assert choose(None, 2, ["4", "5", "6"]).engines == [["4", "5"]]
    assert choose(2, 2, ["4", "5", "6"]).engines == [["4", "5"]]
    two = choose(4, 2, ["4", "5", "6", "7"])
    assert two.engines == [["4", "5"], ["6", "7"]]
    assert two.environment(1)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert (two.tensor_parallel, two.on_cpu) == (2, False)


def test_no_gpu_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    for devices in (choose(None, 1, []), choose(0, 1, [])):
        assert (devices.on_cpu, devices.tensor_parallel, len(devices.engines)) == (True, 1, 1)
        environment = devices.environment(0)
        # As the recipe's scale has it, but for what the shell says.
        assert environment["VERL_PLATFORM"] == "cpu"
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment.keys() >= os.environ.keys()


@pytest.mark.parametrize(
    ("gpus", "tensor_parallel", "said"),
    [
        (3, 1, "--gpus 3: 2 are visible here"),
        (-1, 1, "--gpus -1: 2 are visible here"),
        (None, 4, "--tensor-parallel 4: 2 GPUs are visible here"),
        (1, 2, "--tensor-parallel 2: --gpus 1 is no multiple of it"),
        (0, 1, "--gpus 0: this vLLM runs on GPUs alone, of which 2 are visible here"),
        (None, 0, "--tensor-parallel 0: at least 1"),
    ],
)
def test_gpus_that_are_not_there_are_refused(gpus: int | None, tensor_parallel: int, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        choose(gpus, tensor_parallel, ["0", "1"])


def test_the_cpu_is_one_engine() -> None:
    with pytest.raises(ValueError, match="--tensor-parallel 2: no GPU is visible here"):
        choose(0, 2, [])
