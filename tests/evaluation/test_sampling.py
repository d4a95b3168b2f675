"""An engine that fails says so; tests/e2e/test_eval.py has engines that work."""

from pathlib import Path

import psutil
import pytest

from gtpo_verl.evaluation import devices, sampling


@pytest.mark.timeout(300)
def test_an_engine_that_cannot_start_names_its_log(tmp_path: Path) -> None:
    chosen = devices.choose(0, 1, [])
    engine = {"model": str(tmp_path / "none")}
    with pytest.raises(sampling.EngineError, match=r"2 responses short: .*Error.*; its log is .*engine-0.log"):
        list(sampling.sample(engine, {}, [sampling.Prompt([1, 2], [3, 4])], chosen, tmp_path))
    assert not [child for child in psutil.Process().children() if "evaluation.engine" in " ".join(child.cmdline())]


def test_nothing_to_sample_starts_nothing(tmp_path: Path) -> None:
    assert list(sampling.sample({}, {}, [], devices.choose(0, 1, []), tmp_path)) == []
