"""What docs/results.md says of blame is what the kept tokens of the tiny model's first step give."""

from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from gtpo_verl.algorithms import GtpoConfig, compute_advantages

STEP = Path(__file__).parents[2] / "benchmarks/results/credit_tiny/step_1.parquet"
SHORT = 20


def responses(algorithm):
    """(right, short, advantage) of each response."""
    rows = sorted(pyarrow.parquet.read_table(STEP).to_pylist(), key=lambda row: row["uid"])
    groups = sorted({row["uid"] for row in rows})
    tokens = [[h for h, kept in zip(row["entropy"], row["response_mask"], strict=True) if kept] for row in rows]
    ends = torch.tensor([0, *map(len, tokens)]).cumsum(0)
    found = compute_advantages(
        algorithm,
        entropy=torch.tensor([h for one in tokens for h in one]),
        offsets=ends,
        group=torch.tensor([groups.index(row["uid"]) for row in rows]),
        success=torch.tensor([row["right"] for row in rows]),
        config=GtpoConfig(),
    ).advantages
    return [
        (row["right"], len(own) <= SHORT, found[start].item())
        for row, own, start in zip(rows, tokens, ends, strict=False)
    ]


@pytest.mark.parametrize(
    ("algorithm", "wrong_short", "wrong_long", "all_short", "all_long"),
    [
        ("grpo_s_v2", -0.14, -0.82, 4.10, -2.15),
        ("grpo_s_v1", -0.79, -0.74, -0.43, 0.43),
        ("grpo_s_v3", -0.76, -0.75, -0.29, 0.29),
    ],
)
def test_what_short_guesses_are_blamed(algorithm, wrong_short, wrong_long, all_short, all_long):
    found = responses(algorithm)
    wrong = {kind: [adv for right, short, adv in found if not right and short == kind] for kind in (True, False)}
    every = {kind: [adv for _, short, adv in found if short == kind] for kind in (True, False)}
    assert [sum(wrong[kind]) / len(wrong[kind]) for kind in (True, False)] == pytest.approx(
        [wrong_short, wrong_long], abs=0.006
    )
    assert [sum(every[kind]) for kind in (True, False)] == pytest.approx([all_short, all_long], abs=0.006)
