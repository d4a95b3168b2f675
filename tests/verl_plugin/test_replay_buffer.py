"""The bounds on sampling, on verl's own replay buffer; test_dynamic_sampling.py is a run that hits one."""

from collections import Counter

import pytest
from buffers import synchronous
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.replay_buffer import BoundedReplayBuffer


@pytest.fixture
def buffer() -> BoundedReplayBuffer:
    verls = synchronous(filter_groups_metric="acc", train_batch_size=4, gen_batch_size=1)
    bounded = BoundedReplayBuffer.adopt(verls, max_groups=8, poll_interval=0.1, group_size=2)
    bounded.batch_size = 4
    bounded.rejected = Counter({0.0: 5, 1.0: 2})
    return bounded


def test_keeps_what_verl_configured(buffer: BoundedReplayBuffer) -> None:
    assert isinstance(buffer, ReplayBuffer)
    assert (buffer.filter_groups_metric, buffer.train_batch_size, buffer.poll_interval) == ("acc", 4, 0.1)


def test_goes_on_below_the_limit_and_with_a_full_batch(buffer: BoundedReplayBuffer) -> None:
    buffer._check_limit(accepted=0)
    buffer._check_limit(accepted=4)


def test_stops_at_the_limit_and_says_with_which_accuracies(buffer: BoundedReplayBuffer) -> None:
    with pytest.raises(RuntimeError, match=r"of 8 groups tried .* 1 were usable and 4 are needed") as error:
        buffer._check_limit(accepted=1)
    assert "5 with acc = 0, 2 with acc = 1" in str(error.value)
    assert "algorithm.filter_groups.max_num_gen_batches" in str(error.value)


def test_no_limit_is_no_limit(buffer: BoundedReplayBuffer) -> None:
    buffer.max_groups = 0
    buffer._check_limit(accepted=0)


# ---- as many as should be needed, at once ----


def test_without_a_share_of_the_step_before_a_batch_is_asked_for(buffer: BoundedReplayBuffer) -> None:
    assert buffer.groups_at_once(4) == 4
    buffer.first_batch = 1.5
    assert buffer.groups_at_once(4) == 4


@pytest.mark.parametrize(
    ("share", "wanted", "reason"),
    [(1.0, 6, "1.5 batches"), (0.8, 8, "6 / 0.8 = 7.5"), (0.1, 8, "60, and 8 would end the run")],
)
def test_with_one_as_many_as_should_be_needed(
    share: float, wanted: int, reason: str, buffer: BoundedReplayBuffer
) -> None:
    buffer.first_batch, buffer.usable_share = 1.5, share
    assert buffer.groups_at_once(4) == wanted, reason


def test_the_share_is_that_of_all_that_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Sampling(["mixed", "right", "reward raised", "mixed", "mixed"], monkeypatch)
    metrics = bounded.sample()[1]
    surplus = metrics.get("training/filter_groups/discarded_surplus_samples", 0)
    assert bounded.buffer.usable_share == (2 + surplus) / metrics["training/sampling/groups_tried"]
    assert bounded.buffer.usable_share < 1


def test_a_validation_between_steps_leaves_the_share(
    buffer: BoundedReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its groups none is thrown away."""
    monkeypatch.setattr(ReplayBuffer, "sample", lambda self, **_: (None, {}))
    buffer.usable_share = 0.25
    buffer.sample(1, "val", 8)
    assert buffer.usable_share == 0.25


def test_without_dynamic_sampling_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Sampling(["mixed"], monkeypatch, metric=None)
    bounded.sample()
    assert bounded.buffer.usable_share is None


# ---- failed responses ----


class Rollouts:
    """TransferQueue's table of groups and responses, filled as verl's agent loop fills it, one group at a time.

    Args:
        outcomes: of the groups, in the order in which they are asked for: "right" and "mixed" for their two responses,
            or the error of a response that failed, after which the other one lies there alone; "lost" where one is
            missing and nobody said so.
    """

    def __init__(self, outcomes: list[str]):
        self.outcomes = outcomes
        self.tags: dict[str, dict] = {}
        self.accuracy: dict[str, float] = {}
        self.asked = 0

    def ask(self, count: int) -> None:
        for _ in range(count):
            uid, outcome = f"u{self.asked}", self.outcomes[self.asked % len(self.outcomes)]
            self.asked += 1
            whole = outcome in ("right", "mixed")
            self.tags[uid] = {"is_prompt": True, "global_steps": 1, "status": "finished"}
            if not whole and outcome != "lost":
                self.tags[uid] |= {"status": "failure", "error": outcome}
            for session in range(2 if whole else 1):
                key = f"{uid}_{session}_0"
                self.tags[key] = {"status": "success"}
                self.accuracy[key] = 1.0 if outcome == "right" else float(session)

    def kv_list(self, partition_id: str | None = None) -> dict:
        return {partition_id or "train": dict(self.tags)}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self.tags.pop(key, None)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict:
        return {"extra_fields": [{"reward_extra_info": {"acc": self.accuracy[key]}} for key in keys]}


class Sampling:
    """A buffer for batches of two groups of two, over `Rollouts`."""

    def __init__(self, outcomes: list[str], monkeypatch: pytest.MonkeyPatch, metric: str | None = "acc"):
        from verl.trainer.ppo.v1 import replay_buffer as verls_module

        self.rollouts = Rollouts(outcomes)
        for module, name in ((verls_module, "tq"), (transfer, "transfer_queue")):
            monkeypatch.setattr(module, name, self.rollouts)
        verls = synchronous(
            refill_fn=self.rollouts.ask,
            filter_groups_metric=metric,
            train_batch_size=2,
            gen_batch_size=1,
            sync_refill_failed_groups=True,
        )
        self.buffer = BoundedReplayBuffer.adopt(verls, max_groups=20, poll_interval=0.01, group_size=2)

    def sample(self) -> tuple[set[str], dict]:
        """Uids of a batch, and the metrics."""
        self.rollouts.ask(2)
        batch, metrics = self.buffer.sample(global_steps=1, partition_id="train", batch_size=2)
        assert len(batch.keys) == 4, "every group has as many responses as were asked for"
        return {key.split("_")[0] for key in batch.keys}, metrics


def sampled(outcomes: list[str], monkeypatch: pytest.MonkeyPatch, metric: str | None = "acc") -> tuple[set[str], dict]:
    return Sampling(outcomes, monkeypatch, metric).sample()


@pytest.mark.parametrize("metric", ["acc", None], ids=["dynamic sampling", "without"])
@pytest.mark.parametrize("broken", ["reward raised", "lost"])
def test_a_group_with_a_failed_response_is_sampled_again(
    broken: str, metric: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, metrics = sampled(["mixed", broken, "mixed"], monkeypatch, metric)
    assert groups == {"u0", "u2"}
    assert metrics["training/sampling/groups_failed"] == 1
    assert metrics["training/sampling/groups_tried"] == 3


def test_what_was_thrown_away_is_counted_beside_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, metrics = sampled(["mixed", "right", "reward raised", "mixed", "mixed"], monkeypatch)
    assert metrics["training/sampling/groups_failed"] == 1
    surplus = metrics.get("training/filter_groups/discarded_surplus_samples", 0)
    assert metrics["training/sampling/groups_tried"] == 4 + surplus


def test_past_the_bound_the_run_ends_and_says_what_failed_and_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"4 groups of this step .* more than the 2 .*: 4 x ZeroDivisionError: no"):
        sampled(["ZeroDivisionError: no"], monkeypatch)


def test_without_others_to_sample_the_first_failure_ends_the_run(buffer: BoundedReplayBuffer) -> None:
    buffer.failed, buffer.gen_batch_size = {"u0": "reward raised"}, 4
    with pytest.raises(RuntimeError, match=r"sync_refill_failed_groups=True.*: 1 x reward raised"):
        buffer._check_failures()


def test_a_validation_of_fewer_problems_ends_the_run(buffer: BoundedReplayBuffer) -> None:
    buffer.failed = {"u0": "reward raised"}
    with pytest.raises(RuntimeError, match=r"1 of 4 validation problems .*: 1 x reward raised"):
        buffer._refuse_failed_validation()
