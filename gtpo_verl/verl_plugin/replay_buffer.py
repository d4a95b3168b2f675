"""Waiting for responses: which cannot last for ever, and ends with as many as were asked for or not at all."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY, ReplayBuffer

from gtpo_verl.verl_plugin import transfer

_FEW = 0.1  # of a batch


class BoundedReplayBuffer(ReplayBuffer):
    """verl's synchronous replay buffer, which stops where it would wait in vain, and never gives half a batch.

    verl's V1 trainer reads `algorithm.filter_groups.max_num_gen_batches` and ignores it: where every group is all
    right or all wrong it samples for ever. A group of which responses failed (their reward raised, their worker died)
    it trains on as if fewer had been asked for; here it is thrown away whole and another is sampled, as often as there
    are groups in a batch.

    verl asks for a batch, and for two groups for each one thrown away as soon as there is room. With `first_batch` a
    step asks at once for what should be needed, and for others when those are nearly all there and are too few
    (docs/performance.md has what that saves). Whether a group is asked for does not depend on its own length, and all
    are awaited, so that what is kept is as long as what is sampled.
    """

    max_groups: int
    group_size: int
    batch_size: int
    arrived: int
    rejected: Counter
    failed: dict[str, str]
    on_progress: Callable[[], None]
    first_batch: float | None
    usable_share: float | None  # of the groups that the last batch tried; None before there was one

    @classmethod
    def adopt(
        cls,
        buffer: ReplayBuffer,
        max_groups: int,
        poll_interval: float,
        group_size: int,
        on_progress: Callable[[], None] = lambda: None,
        first_batch: float | None = None,
    ) -> "BoundedReplayBuffer":
        """Takes over a buffer that verl built, with everything verl configured in it.

        Args:
            max_groups: finished groups that may be tried for one batch; 0 or less: no limit, as in verl.
            poll_interval: seconds between two looks at TransferQueue; a floor under every step.
            group_size: responses that were asked for of each prompt.
            on_progress: called when responses have come since the last look.
            first_batch: groups that a step asks for at its start, in those that should fill the batch by the last one's
                share of usable groups; None: verl's way.
        """
        bounded = cls.__new__(cls)
        vars(bounded).update(vars(buffer))
        bounded.max_groups = max_groups
        bounded.group_size = group_size
        bounded.poll_interval = poll_interval
        bounded.on_progress = on_progress
        bounded.first_batch = first_batch
        bounded.usable_share = None
        return bounded

    def groups_at_once(self, batch_size: int) -> int:
        """Groups to ask for at the start of a step: `batch_size` of them in the first step of a job, of which no share
        is known, and without dynamic sampling; never fewer, nor more than `max_groups`, which would end the run."""
        if self.first_batch is None or self.usable_share is None:
            return batch_size
        wanted = math.ceil(self.first_batch * batch_size / self.usable_share)
        return max(batch_size, min(wanted, self.max_groups) if self.max_groups > 0 else wanted)

    def sample(self, global_steps: int, partition_id: str, batch_size: int):
        """As in verl; raises RuntimeError once `max_groups` finished groups have not filled the batch, once more than
        `batch_size` groups have failed."""
        self.rejected = Counter()
        self.failed = {}
        self.batch_size = batch_size
        self.arrived = -1
        if self.first_batch is not None and self.usable_share is not None:
            # verl asks for others while fewer than `max_inflight_gen_batches` times this are in flight, and uses it for
            # nothing else.
            self.train_batch_size = math.ceil(_FEW * batch_size)
        batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        if partition_id == "val":
            self._refuse_failed_validation()
        surplus = metrics.get("training/filter_groups/discarded_surplus_samples", 0)
        tried = batch_size + self.rejected.total() + len(self.failed) + surplus
        if partition_id != "val" and self.filter_groups_metric is not None:
            self.usable_share = (batch_size + surplus) / tried
        return batch, metrics | {
            "training/sampling/groups_tried": tried,
            "training/sampling/groups_failed": len(self.failed),
        }

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str):
        stale, uniform, _, counts = super()._terminal_eviction_reasons(global_steps, partition_id)
        failed = self._failed_groups(partition_id)
        if partition_id == "val" or not failed:
            return stale, uniform, set(), counts
        self._check_failures()
        return stale, uniform - failed, failed, counts

    def _failed_groups(self, partition_id: str) -> set[str]:
        """Groups of which a response failed, or is missing without a word; notes why."""
        responses = Counter(key.split("_")[0] for key in transfer.sessions(self.partitions[partition_id]))
        ended = self.finished_keys[partition_id]
        short = {uid for uid in ended if responses[uid] < self.group_size} if partition_id != "val" else set()
        failed = self.failure_keys[partition_id] | short
        if unknown := failed - self.failed.keys():
            errors = transfer.group_errors(partition_id)
            for uid in unknown:
                self.failed[uid] = errors.get(uid) or f"{responses[uid]} responses came of {self.group_size}"
        return failed

    def _failures(self) -> str:
        causes = Counter(self.failed.values()).most_common(3)
        return "; ".join(f"{count} x {cause}" for cause, count in causes)

    def _check_failures(self) -> None:
        if self.refill_fn is None or self.gen_batch_size != 1:
            raise RuntimeError(
                f"{len(self.failed)} groups have failed responses, and no others can be sampled in their place "
                f"(trainer.v1.sampler.sync_refill_failed_groups=True allows it): {self._failures()}"
            )
        if len(self.failed) > self.batch_size:
            raise RuntimeError(
                f"{len(self.failed)} groups of this step have failed responses, more than the {self.batch_size} that "
                f"it needs: {self._failures()}. The log has each error in full; the same command goes on from the "
                "last checkpoint"
            )

    def _refuse_failed_validation(self) -> None:
        if self.failed:
            raise RuntimeError(
                f"{len(self.failed)} of {self.batch_size} validation problems have failed responses, and the mean "
                f"would be that of the others: {self._failures()}"
            )

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        if (arrived := len(self.partitions[partition_id]) + self.rejected.total()) != self.arrived:
            self.arrived = arrived
            self.on_progress()
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
