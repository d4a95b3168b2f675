"""The figure of the README is that of the published dump."""

from pathlib import Path

import pytest

from benchmarks.credit_figure import draw
from gtpo_verl.inspect import dump

ROOT = Path(__file__).parents[2]
STEP = ROOT / "benchmarks/results/credit_tiny/step_1.parquet"


def test_the_figure_is_drawn_from_the_dump() -> None:
    assert (ROOT / "docs/credit.svg").read_text("utf-8") == draw(dump.read(STEP), "8-6+3-1+2", [4, 3])


def test_what_the_dump_does_not_hold_is_said() -> None:
    step = dump.read(STEP)
    for prompt, number in (("nobody asked", 1), ("8-6+3-1+2", 9), ("8-6+3-1+2", 0)):
        with pytest.raises(ValueError, match="no prompt with"):
            draw(step, prompt, [number])
