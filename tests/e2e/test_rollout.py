"""Rollouts through `gtpo_verl.verl_plugin.rollout` give what verl's own give, token for token."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


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


@pytest.mark.parametrize("loop", ["single_turn_agent", "seeded", "stopping"])
def test_the_same_responses_in_the_same_layout(rollouts, loop: str) -> None:
    """verl's single-turn loop, greedy, and a user's own, sampled with seeds and ending at a string."""
    verl, ours = rollouts["verl"][loop], rollouts["gtpo-verl"][loop]
    assert set(ours["status"].values()) == {"finished"}
    assert len(ours["rows"]) == 4 * 3  # prompts, responses of each
    for part in ("status", "tags", "layouts"):
        assert ours[part] == verl[part]
    for key, row in verl["rows"].items():
        for name, value in row.items():
            mine = ours["rows"][key][name]
            if name == "metrics":  # times
                assert mine.keys() == value.keys()
            elif name == "rollout_log_probs":  # of batches that were put together otherwise
                torch.testing.assert_close(mine, value, rtol=0, atol=1e-5)
            elif name == "extra_fields":  # how much of a prompt was in the cache is a matter of time
                assert {**mine, "num_cached_tokens": 0} == {**value, "num_cached_tokens": 0}
            elif isinstance(value, torch.Tensor):
                assert torch.equal(mine, value), (key, name)
                assert mine.dtype == value.dtype
            else:
                assert mine == value, (key, name)


def test_the_loops_do_what_they_say(rollouts) -> None:
    rows = {loop: rollouts["gtpo-verl"][loop]["rows"] for loop in ("single_turn_agent", "seeded", "stopping")}
    greedy = [rows["single_turn_agent"][f"single-turn-agent0_{i}_0"]["responses"].tolist() for i in range(3)]
    assert greedy[0] == greedy[1] == greedy[2]
    seeded = [row["responses"].tolist() for row in rows["seeded"].values()]
    assert len(set(map(tuple, seeded))) > 4
    assert max(len(row["responses"]) for row in rows["stopping"].values()) < max(map(len, seeded))


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
