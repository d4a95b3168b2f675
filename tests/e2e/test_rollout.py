"""Rollouts through `gtpo_verl.verl_plugin.rollout` give what verl's own give, token for token."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory) -> dict[str, dict]:
    results = {}
    for way in ("verl", "gtpo-verl"):
        folder = tmp_path_factory.mktemp(way)
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name("rollout_process.py")), str(folder), way],
            check=True,
            timeout=400,
            env={**os.environ, "GTPO_VERL_TMP": str(folder / "ray")},
        )
        results[way] = torch.load(folder / f"{way}.pt", weights_only=False)
    return results


def test_the_same_responses_in_the_same_layout(rollouts) -> None:
    verl, ours = rollouts["verl"]["finished"], rollouts["gtpo-verl"]["finished"]
    assert set(ours["status"].values()) == {"finished"}
    assert len(ours["rows"]) == 6 * 3  # prompts, responses of each
    for part in ("status", "tags", "layouts"):
        assert ours[part] == verl[part]
    for key, row in verl["rows"].items():
        for name, value in row.items():
            mine = ours["rows"][key][name]
            if name == "metrics":  # times
                assert mine.keys() == value.keys()
            elif isinstance(value, torch.Tensor):
                assert torch.equal(mine, value), (key, name)
                assert mine.dtype == value.dtype
            else:
                assert mine == value, (key, name)


def test_sampled_and_stopped_responses_are_among_them(rollouts) -> None:
    rows = rollouts["gtpo-verl"]["finished"]["rows"]
    greedy = [rows[f"prompt0_{i}_0"]["responses"].tolist() for i in range(3)]
    assert greedy[0] == greedy[1] == greedy[2]
    seeded = [rows[f"prompt1_{i}_0"]["responses"].tolist() for i in range(3)]
    assert seeded[0] != seeded[1]
    lengths = [len(rows[f"prompt2_{i}_0"]["responses"]) for i in range(3)]
    assert max(lengths) < max(map(len, seeded))


def test_a_failing_response_fails_its_prompt_alone(rollouts) -> None:
    for way in rollouts.values():
        assert way["failing"]["status"] == {"wrong0": "finished", "wrong1": "failure"}
    errors = rollouts["gtpo-verl"]["failing"]["errors"]
    assert errors["wrong0"] is None
    assert "no such loop" in errors["wrong1"]


def test_aborted_responses_keep_their_tokens(rollouts) -> None:
    """An abort comes back at once, with the tokens and log-probabilities that there were."""
    ours = rollouts["gtpo-verl"]
    assert ours["abort_seconds"] < 20
    reason, whole, log_probs = ours["whole"]
    assert (reason, len(whole)) == ("completed", 200)
    assert rollouts["verl"]["whole"] == ours["whole"]
    for reason, token_ids, token_log_probs in ours["aborted"]:
        assert reason == "aborted"
        assert 0 < len(token_ids) < 200
        assert token_ids == whole[: len(token_ids)]
        assert token_log_probs == pytest.approx(log_probs[: len(token_ids)], abs=1e-4)
