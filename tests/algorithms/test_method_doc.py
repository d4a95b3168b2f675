"""docs/method.md: its example runs, the functions it names exist, its numbers are right."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from gtpo_verl.algorithms import compute_advantages

TEXT = (Path(__file__).parents[2] / "docs" / "method.md").read_text()
EXAMPLE = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL).group(1)


def test_the_example_runs_as_printed():
    names = {}
    exec(EXAMPLE, names)
    assert names["advantages"].shape == (6,)
    assert torch.isfinite(names["log_prob"].grad).all()
    assert names["log_prob"].grad.abs().sum() > 0


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:estimators|shaping|comparison|normalization|losses)\.\w+)`", TEXT)))
)
def test_every_function_named_exists(name):
    module, attribute = name.split(".")
    assert hasattr(importlib.import_module(f"gtpo_verl.algorithms.{module}"), attribute)


def test_the_worked_example():
    layout = torch.tensor([0, 2, 4, 6]), torch.tensor([0, 0, 0]), torch.tensor([True, False, False])
    entropy = torch.tensor([0.5, 0.5, 2.0, 0.1, 0.1, 0.1])
    v2 = compute_advantages("gtpo_v2", entropy, *layout).advantages
    assert v2[2:].tolist() == pytest.approx([0.741, -0.432, -1.606, -0.432], abs=5e-4)
    v3 = compute_advantages("gtpo_v3", entropy, *layout).advantages
    assert v3[2].item() == pytest.approx(-0.565, abs=5e-4)
    joint = compute_advantages("gtpo_v2", entropy, *layout, {"normalize": {"over": "joint"}}).advantages
    assert joint[2].item() == pytest.approx(0.202, abs=5e-4)
    assert all(number in TEXT for number in ("+0.741", "-1.606", "-0.432", "-0.565", "+0.202"))
