"""What the docs say of blame and signs is what the kept tokens of the tiny model's first step give."""

from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from gtpo_verl.algorithms import GtpoConfig, compute_advantages

STEP = Path(__file__).parents[2] / "benchmarks/results/credit_tiny/step_1.parquet"
SHORT = 20


def credit(algorithm, config=None):
    """Of each response: right or wrong, and its tokens' advantages."""
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
        config=GtpoConfig.from_any(config),
    ).advantages
    return [(row["right"], found[a:b]) for row, a, b in zip(rows, ends[:-1], ends[1:], strict=True)]


@pytest.mark.parametrize(
    ("algorithm", "wrong_short", "wrong_long", "all_short", "all_long"),
    [
        ("grpo_s_v2", -0.14, -0.82, 4.10, -2.15),
        ("grpo_s_v1", -0.79, -0.74, -0.43, 0.43),
        ("grpo_s_v3", -0.76, -0.75, -0.29, 0.29),
    ],
)
def test_what_short_guesses_are_blamed(algorithm, wrong_short, wrong_long, all_short, all_long):
    found = [(right, len(own) <= SHORT, own[0].item()) for right, own in credit(algorithm)]
    wrong = {kind: [adv for right, short, adv in found if not right and short == kind] for kind in (True, False)}
    every = {kind: [adv for _, short, adv in found if short == kind] for kind in (True, False)}
    assert [sum(wrong[kind]) / len(wrong[kind]) for kind in (True, False)] == pytest.approx(
        [wrong_short, wrong_long], abs=0.006
    )
    assert [sum(every[kind]) for kind in (True, False)] == pytest.approx([all_short, all_long], abs=0.006)


@pytest.mark.parametrize(
    ("algorithm", "over", "share", "total"),
    [("gtpo_v1", None, 0, 0), ("gtpo_v2", None, 0.42, 255), ("gtpo_v2", "joint", 0.31, 105)],
)
def test_how_many_wrong_tokens_are_rewarded(algorithm, over, share, total):
    found = credit(algorithm, {"normalize": {"over": over}} if over else None)
    wrong = torch.cat([own for right, own in found if not right])
    assert (wrong > 0).float().mean().item() == pytest.approx(share, abs=0.005)
    assert wrong.clamp(min=0).sum().item() == pytest.approx(total, abs=0.5)
