"""Dynamic sampling in real runs: where no group ever differs one stops and says why; what `first_batch` asks for. In
the last steps of that run, what becomes of responses that vLLM sampled from another policy."""

import json
import math
import os
import re

import pytest
from training_run import ROOT, SMALL, Run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

NEVER_RIGHT = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n"
    '    return {"score": 0.0, "acc": 0.0}\n'
)


def test_stops_after_max_num_gen_batches(run: Run) -> None:
    (run.folder / "reward.py").write_text(NEVER_RIGHT)
    run.start(
        *SMALL,
        "algorithm=gtpo_v1",
        "trainer.total_training_steps=2",
        "algorithm.filter_groups.max_num_gen_batches=2",
        "reward.custom_reward_function.path=reward.py",
    )
    assert run.wait() == 1, run.terminal
    tried = re.search(r"of (\d+) groups tried .* = 8\) 0 were usable and 4 are needed", run.terminal)
    # Groups finish side by side: some more than the limit may have ended between two looks.
    assert tried is not None, run.terminal
    assert 8 <= int(tried[1]) <= 16, run.terminal
    for words in (f"{tried[1]} with acc = 0", "algorithm.filter_groups.max_num_gen_batches"):
        assert words in run.terminal, run.terminal
    assert "train.log" in run.terminal
    run.assert_nothing_left()


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Asks for more prompts from the start; vLLM's log-probabilities are wrong from the fifth step on."""
    run = Run(tmp_path_factory.mktemp("six_steps"))
    metrics = run.folder / "runs/tiny/run/metrics.jsonl"
    run.start(
        *SMALL,
        "algorithm=gtpo_v1",
        f"gtpo_verl.run_dir={metrics.parent}",
        "trainer.total_training_steps=6",
        "gtpo_verl.first_batch=1.5",
        "actor_rollout_ref.actor.optim.lr=0",
        PYTHONPATH=f"{ROOT / 'tests/e2e/inside_run'}:{os.environ.get('PYTHONPATH', '')}",
        GTPO_VERL_WRONG=json.dumps({"metrics": str(metrics), "added": {"4": -3, "5": "nan"}}),
    )
    try:
        run.wait()
    finally:
        run.end()
    return run


def test_first_batch_asks_for_what_the_last_step_says_is_needed(six_steps: Run) -> None:
    steps = [record["data"] for record in six_steps.metrics()]
    surplus = [step.get("training/filter_groups/discarded_surplus_samples", 0) for step in steps]
    tried = [step["training/sampling/groups_tried"] for step in steps]
    assert len(tried) == 5, six_steps.terminal
    for step in range(1, 5):
        share = (4 + surplus[step - 1]) / tried[step - 1]
        at_once = math.ceil(1.5 * 4 / share)
        # All that was asked for is awaited, and counted; one at a time is added where that was not enough.
        assert tried[step] == at_once or (tried[step] > at_once and surplus[step] == 0), (step, tried, surplus)


def test_responses_of_another_policy_are_said_and_what_is_no_number_ends_the_run(six_steps: Run) -> None:
    assert six_steps.process.returncode == 1
    error = "error: ValueError: The rollouts came with log-probabilities that are no finite numbers, in 32 of"
    assert error in six_steps.terminal
    log = (six_steps.run_dir() / "train.log").read_text()
    (warning,) = [line for line in log.splitlines() if "nat apart on average" in line]
    assert "lie 3 nat apart on average, and more than 1 in 32 of 32 responses" in warning
    six_steps.assert_nothing_left()
