"""Waiting for responses, which cannot last for ever."""

from collections import Counter
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY, ReplayBuffer

from gtpo_verl.verl_plugin.actor_watch import ActorWatch


class BoundedReplayBuffer(ReplayBuffer):
    """verl's synchronous replay buffer, which stops where it would wait in vain.

    verl's V1 trainer reads `algorithm.filter_groups.max_num_gen_batches` and ignores it: where every group is all
    right or all wrong it samples for ever. It also waits for ever for the responses of a node that is gone.
    """

    max_groups: int
    batch_size: int
    rejected: Counter
    watch: ActorWatch

    @classmethod
    def adopt(cls, buffer: ReplayBuffer, max_groups: int, poll_interval: float) -> "BoundedReplayBuffer":
        """Takes over a buffer that verl built, with everything verl configured in it.

        Args:
            max_groups: finished groups that may be tried for one batch; 0 or less: no limit, as in verl.
            poll_interval: seconds between two looks at TransferQueue; a floor under every step.
        """
        bounded = cls.__new__(cls)
        vars(bounded).update(vars(buffer))
        bounded.max_groups = max_groups
        bounded.poll_interval = poll_interval
        bounded.watch = ActorWatch()
        return bounded

    def sample(self, global_steps: int, partition_id: str, batch_size: int):
        """As in verl; raises RuntimeError once `max_groups` finished groups have not filled the batch, or once an
        actor of this job has died."""
        self.rejected = Counter()
        self.batch_size = batch_size
        self.watch.start()
        return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self.watch.check()
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: tuple):
        evicted = super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)
        if partition_id != "val" and self.filter_groups_metric is not None:
            metrics: dict[str, Any] = evicted[3]
            self.rejected.update(metrics.get(DAPO_FILTERED_REWARD_COUNTS_KEY, {}))
            self._check_limit(accepted=len(self._sampleable_terminal_keys(partition_id, eviction_reasons)))
        return evicted

    def _check_limit(self, accepted: int) -> None:
        tried = accepted + self.rejected.total()
        if self.max_groups <= 0 or tried < self.max_groups or accepted >= self.batch_size:
            return
        metric = self.filter_groups_metric
        shares = ", ".join(f"{count} with {metric} = {value:g}" for value, count in sorted(self.rejected.items()))
        raise RuntimeError(
            f"Dynamic sampling found no batch: of {tried} groups tried since the last step "
            f"(algorithm.filter_groups.max_num_gen_batches x data.train_batch_size = {self.max_groups}) "
            f"{accepted} were usable and {self.batch_size} are needed. Thrown away, because all responses of the "
            f"group agree: {shares or 'none'}. "
            f"{metric} = 0 throughout: the task is too hard or the reward never recognises an answer; "
            f"{metric} = 1 throughout: it is too easy. Change the data, raise actor_rollout_ref.rollout.n or "
            "rollout.temperature, raise algorithm.filter_groups.max_num_gen_batches (0: no limit), "
            "or set algorithm.filter_groups.enable=False."
        )
