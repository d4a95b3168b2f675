"""Real steps through Ray, FSDP2 with two ranks and vLLM: what reaches the actor, and what survives a kill."""

import json
import re
import shutil
import signal
import subprocess

import brute_force  # the second implementation, from the paper, in plain floats
import numpy as np
import pytest
import torch
from training_run import COMMAND, SMALL, Run, read_tokens
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

TWO_RANKS = ["trainer.n_gpus_per_node=2", "trainer.save_freq=1"]


def assert_same_probabilities(data: dict) -> None:
    """vLLM and the actor give each sampled token the same probability, but for the rounding of fp32 on both sides."""
    assert data["training/rollout_probs_diff_mean"] < 1e-6
    assert data["training/rollout_probs_diff_max"] < 3e-5


def assert_tokens_agree(dumps: list[dict]) -> None:
    """To 1e-5, but for the few tokens whose probability is the most sensitive to rounding."""
    masked = [
        (rollout.exp() - old.exp())[mask != 0].abs()
        for dump in dumps
        for rollout, old, mask in zip(
            dump["rollout_log_probs"], dump["old_log_probs"], dump["response_mask"], strict=True
        )
    ]
    differences = torch.cat(masked)
    assert len(differences) > 1000
    assert (differences > 1e-5).float().mean() < 1e-3


def assert_advantages_follow_from_entropies(dump: dict) -> None:
    rows = [
        {
            "uid": uid,
            "success": reward["acc"] > 0.5,
            "entropy": entropy[mask != 0].tolist(),
        }
        for uid, reward, entropy, mask in zip(
            dump["uid"], dump["reward"], dump["entropy"], dump["response_mask"], strict=True
        )
    ]
    expected = brute_force.advantages("gtpo_v1", rows, {})
    for got, mask, want in zip(dump["advantages"], dump["response_mask"], expected, strict=True):
        torch.testing.assert_close(got[mask != 0], torch.tensor(want), atol=1e-5, rtol=1e-5)
        assert (got[mask == 0] == 0).all()


def test_gtpo_is_exact_and_survives_a_kill(run: Run) -> None:
    run.folder /= "a checkout with a long path " + "x" * 150  # too long for the path of any socket
    run.folder.mkdir()
    overrides = [*SMALL, *TWO_RANKS, "algorithm=gtpo_v1", "gtpo_verl.token_dump_freq=1"]
    run.start(*overrides, "trainer.total_training_steps=200")  # more than it takes until it is stopped
    run.wait_until(lambda: len(run.steps()) >= 2)
    assert len(run.processes()) > 5
    assert {address.removeprefix("::ffff:") for address in run.listening()} == {"127.0.0.1"}
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM
    run.assert_nothing_left()
    trained = run.steps()
    assert trained == list(range(1, len(trained) + 1))

    tokens = run.run_dir() / "tokens"
    shutil.copy(tokens / "step_1.parquet", tokens / "step_300.parquet")  # as of a branch that went further
    (tokens / "step_299.parquet.part").write_bytes(b"PAR1")  # as a kill in the middle of a dump leaves it

    last = trained[-1] + 2
    run.start(*overrides, f"trainer.total_training_steps={last}")
    assert run.wait() == 0, run.terminal
    run.assert_nothing_left()
    steps = list(range(1, last + 1))
    assert run.steps() == steps
    assert f"step {last}/{last}" in run.terminal

    dumps = [tokens / f"step_{step}.parquet" for step in steps]
    assert sorted(tokens.iterdir()) == sorted(dumps)
    loaded = [read_tokens(dump) for dump in dumps]
    for dump in loaded:
        assert_advantages_follow_from_entropies(dump)
    assert_tokens_agree(loaded)
    for record in run.metrics():
        assert_same_probabilities(record["data"])
        assert record["data"]["actor/grad_norm"] > 0
        # One update a step: the policy is the old one, on the same tokens.
        assert (record["data"]["actor/ratio_mean"], record["data"]["actor/ratio_max"]) == (1, 1)
        assert record["data"]["gtpo/uniform_groups_frac"] == 0  # dynamic sampling let none through
    assert_the_page_shows(run, loaded)


def assert_the_page_shows(run: Run, dumps: list[dict]) -> None:
    """`gtpo-verl inspect` on the run's folder: every step, and DAPO's advantages as verl makes them."""
    page = run.folder / "page.html"
    subprocess.run([COMMAND, "inspect", run.run_dir(), "-o", page], check=True, cwd=run.folder)
    (text,) = re.findall(r'id="page">(.*?)</script>', page.read_text())
    steps = json.loads(text)["steps"]
    assert [step["step"] for step in steps] == run.steps()
    for step, dump in zip(steps, dumps, strict=True):
        assert step["algorithm"] == "gtpo_v1"
        responses = [response for group in step["groups"] for response in group["responses"]]
        by_uid = sorted(
            range(len(dump["uid"])), key=lambda row: [g["uid"] for g in step["groups"]].index(dump["uid"][row])
        )
        rewards = torch.tensor([[dump["score"][row]] for row in by_uid])
        index = np.array([dump["uid"][row] for row in by_uid], dtype=object)
        want, _ = compute_grpo_outcome_advantage(rewards, torch.ones_like(rewards), index)
        for response, row, advantage in zip(responses, by_uid, want.flatten().tolist(), strict=True):
            assert response["right"] == (dump["reward"][row]["acc"] > 0.5)
            assert response["means"]["dapo"] == pytest.approx(advantage, abs=1e-5)
            assert response["means"]["advantages"] == pytest.approx(dump["advantages"][row].mean().item(), abs=1e-5)
