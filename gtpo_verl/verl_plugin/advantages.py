"""Entropy-weighted advantages of a batch in TransferQueue: fetched, computed by `gtpo_verl.algorithms`, put back."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.workers.utils.padding import response_to_nested

from gtpo_verl.algorithms import GtpoConfig, compute_advantages
from gtpo_verl.configuration.reward_results import is_finite_number
from gtpo_verl.verl_plugin import transfer

logger = logging.getLogger(__name__)


class EntropyAdvantages:
    """The advantages of one of `ESTIMATORS`, for any trainer that keeps its batch in TransferQueue.

    Args:
        config: the whole configuration; `algorithm`, `data.max_response_length` and
            `actor_rollout_ref.rollout.calculate_log_probs` are read.
    """

    def __init__(self, config: DictConfig):
        self.estimator: str = config.algorithm.adv_estimator
        self.gtpo = _with_max_length(GtpoConfig.from_any(config.algorithm.get("gtpo")), config.data.max_response_length)
        correction = config.algorithm.get("rollout_correction")
        self.correction = correction if config.actor_rollout_ref.rollout.calculate_log_probs else None

    def compute(self, batch: transfer.Batch, metrics: dict[str, Any]) -> transfer.Batch:
        """Puts `advantages` and `returns` (the same) beside the batch's rows, jagged float32, and what verl's rollout
        correction changes.

        Args:
            batch: after the log-probability pass, which leaves `entropy` and `old_log_probs`.
            metrics: of the step; added to.

        Raises:
            ValueError: several rows a session, no entropies, or a response without the metric that decides right and
                wrong.
        """
        transfer.check_single_row_sessions(batch.keys)
        data = transfer.fetch(batch, ["uid", "response_mask", "entropy", "extra_fields"])
        check_entropies(data)
        offsets = data["response_mask"].offsets()
        corrected = self._correct_rollout(batch, data["response_mask"], metrics)
        kept = corrected.get("response_mask", data["response_mask"]).values() != 0

        key, threshold = self.gtpo.success.key, self.gtpo.success.threshold
        success = raw_success(list(data["extra_fields"]), transfer.is_padding(batch), key, threshold)
        result = compute_advantages(
            self.estimator,
            entropy=data["entropy"].values()[kept],
            offsets=offsets_of_kept(kept, offsets),
            group=group_ids(list(data["uid"])),
            success=torch.tensor(success),
            config=self.gtpo,
        )
        metrics.update(result.metrics)
        if not result.advantages.any():
            logger.warning(
                "Every advantage of this step is 0, it teaches nothing: all responses to each prompt are right, or all "
                "wrong, by algorithm.gtpo.success (key %s, threshold %g)",
                key,
                threshold,
            )

        advantages = torch.zeros(kept.shape, dtype=torch.float32)
        advantages[kept] = result.advantages
        nested = torch.nested.nested_tensor_from_jagged(advantages, offsets)
        fields = TensorDict({"advantages": nested, "returns": nested, **corrected}, batch_size=len(batch))
        return transfer.put(batch, fields)

    def _correct_rollout(
        self, batch: transfer.Batch, response_mask: torch.Tensor, metrics: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        """verl's rollout correction (`algorithm.rollout_correction`): what it changes, as jagged tensors."""
        if self.correction is None:
            return {}
        data = transfer.fetch(batch, ["response_mask", "old_log_probs", "rollout_log_probs"])
        padded, correction_metrics = compute_rollout_correction_and_add_to_batch(
            DataProto(batch=data.to_padded_tensor()), self.correction
        )
        metrics.update(correction_metrics)
        changed = [name for name in ("response_mask", "rollout_is_weights") if name in padded.batch]
        return {name: response_to_nested(padded.batch[name], response_mask) for name in changed}


def _with_max_length(config: GtpoConfig, max_response_length: int) -> GtpoConfig:
    if config.length_penalty.max_length is not None:
        return config
    penalty = dataclasses.replace(config.length_penalty, max_length=max_response_length)
    return dataclasses.replace(config, length_penalty=penalty)


def offsets_of_kept(kept: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Where each response begins and the last one ends among the tokens that are kept.

    Args:
        kept: (tokens,) bool.
        offsets: (responses + 1,) int64, the same among all tokens.
    """
    return torch.nn.functional.pad(kept.long().cumsum(0), (1, 0))[offsets]


def group_ids(uids: list[str]) -> torch.Tensor:
    """Numbers the groups in order of appearance: uids of the responses -> (responses,) int64."""
    number: dict[str, int] = {}
    return torch.tensor([number.setdefault(uid, len(number)) for uid in uids])


def check_entropies(data: TensorDict) -> None:
    """Raises ValueError for an engine that left no token entropies beside the old log-probabilities."""
    if data.get("entropy", None) is None:
        raise ValueError(
            "The log-probability pass left no `entropy` in TransferQueue: the engine of "
            "actor_rollout_ref.actor.strategy does not compute entropies; fsdp and fsdp2 do"
        )


def check_scores(scores: torch.Tensor) -> None:
    """Raises ValueError for rewards that are no finite numbers, on which verl trains without a word.

    Args:
        scores: verl's `rm_scores`, (responses, *) float32, jagged.
    """
    finite = scores.values().isfinite()
    if not finite.all():
        offsets: torch.Tensor = scores.offsets()  # type: ignore[attr-defined]  # of jagged tensors
        bad = int(torch.searchsorted(offsets, (~finite).nonzero()[0, 0], right=True)) - 1
        value = scores.values()[~finite][0].item()
        raise ValueError(f"The reward of response {bad} of this step must be a finite number, not {value}")


def raw_success(extra_fields: Sequence[Any], padding: Sequence[bool], key: str, threshold: float) -> list[bool]:
    """Right or wrong, from the raw task metric of each response.

    Args:
        extra_fields: verl's field of that name, one a response; the metric is `["reward_extra_info"][key]`.
        padding: rows that verl added to fill the batch; they are wrong, and without tokens.
        key, threshold: `algorithm.gtpo.success`; right is metric > threshold.

    Raises:
        ValueError: a response whose reward gave no such metric, or no number for it.
    """
    success = []
    for row, (fields, is_padding) in enumerate(zip(extra_fields, padding, strict=True)):
        fields = getattr(fields, "data", fields)
        info = fields.get("reward_extra_info", {}) if isinstance(fields, dict) else {}
        if not is_padding and key not in info:
            raise ValueError(
                f"The reward of response {row} has no `{key}` (it has: {', '.join(info) or 'nothing'}). "
                f'Let the reward function return {{"score": ..., "{key}": 1.0 or 0.0}}, '
                "or set algorithm.gtpo.success.key to a metric that it gives"
            )
        if not is_padding and not is_finite_number(info[key]):
            raise ValueError(
                f"`{key}` of response {row}, which decides whether it is right (algorithm.gtpo.success.key), must be "
                f"a finite number, not {info[key]!r}"
            )
        success.append(not is_padding and float(info[key]) > threshold)
    return success
