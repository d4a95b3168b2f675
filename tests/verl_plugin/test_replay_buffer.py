"""The bound on dynamic sampling, on verl's own replay buffer; test_dynamic_sampling.py is a run that hits it."""

from collections import Counter

import pytest
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from gtpo_verl.verl_plugin.replay_buffer import BoundedReplayBuffer


@pytest.fixture
def buffer() -> BoundedReplayBuffer:
    verls = ReplayBuffer(
        trainer_mode="sync",
        trainer_config=None,
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=None,
        refill_fn=lambda count: None,
        filter_groups_metric="acc",
        train_batch_size=4,
        gen_batch_size=1,
    )
    bounded = BoundedReplayBuffer.adopt(verls, max_groups=8, poll_interval=0.1)
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
