"""verl's synchronous V1 trainer, with what GTPO needs and what a long run needs.

GTPO: the advantages are computed from the entropies of the log-probability pass and from the raw task metric.
Every recipe run, DAPO's too: dynamic sampling ends with an error instead of never, metrics survive a resume, a
checkpoint never precedes the metrics of its step, and the last N are kept, whatever was resumed.
"""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from gtpo_verl.algorithms import ESTIMATORS, GtpoConfig, compute_advantages
from gtpo_verl.verl_plugin import checks
from gtpo_verl.verl_plugin.checkpoints import CheckpointFolder
from gtpo_verl.verl_plugin.metrics_history import MetricsHistory
from gtpo_verl.verl_plugin.replay_buffer import BoundedReplayBuffer
from gtpo_verl.verl_plugin.settings import RecipeSettings

logger = logging.getLogger(__name__)


def install_trainer() -> None:
    """Puts `sync_trainer` where verl looks up the trainer mode `sync`.

    `register_trainer("sync")` refuses a taken name, and any other name gets the asynchronous replay buffer and
    checkpoint branches (verl/trainer/ppo/v1/trainer_base.py tests for the literal "sync").
    """
    trainer_base.TRAINER_REGISTRY["sync"] = sync_trainer  # type: ignore[assignment]  # verl only calls it


def sync_trainer(config: DictConfig) -> PPOTrainerSync:
    """The trainer for `config`: verl's own, untouched, for a job that uses nothing of gtpo-verl."""
    ours = config.algorithm.adv_estimator in ESTIMATORS or "gtpo_verl" in config
    return GtpoTrainer(config) if ours else PPOTrainerSync(config)


class GtpoTrainer(PPOTrainerSync):
    """PPOTrainerSync with entropy-weighted advantages (`ESTIMATORS`) and the recipe's safeguards.

    Raises:
        ValueError: the configuration cannot work, by the name of the key (`checks.check_config`).
    """

    logger: Any  # verl's Tracking, later a LogThenSave around it

    def __init__(self, config: DictConfig):
        for warning in checks.check_config(config):
            logger.warning(warning)
        self.settings = RecipeSettings.from_config(config)
        super().__init__(config)

    # ---- dynamic sampling ----

    def _build_replay_buffer(self):
        buffer = super()._build_replay_buffer()
        if type(buffer) is not trainer_base.ReplayBuffer:  # the user's own sampler
            return buffer
        filter_groups = self.config.algorithm.get("filter_groups") or {}
        return BoundedReplayBuffer.adopt(
            buffer,
            max_groups=filter_groups.get("max_num_gen_batches", 0) * self.config.data.train_batch_size,
            poll_interval=self.settings.poll_interval,
        )

    # ---- advantages ----

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        estimator = self.config.algorithm.adv_estimator
        if estimator not in ESTIMATORS:
            return super()._compute_advantage(batch, metrics)

        checks.check_single_row_sessions(batch.keys)
        data = self._fetch(batch, ["uid", "response_mask", "entropy", "extra_fields"])
        checks.check_entropies(data)
        offsets = data["response_mask"].offsets()
        corrected = self._correct_rollout(batch, data["response_mask"], metrics)
        kept = corrected.get("response_mask", data["response_mask"]).values() != 0

        config = self._gtpo_config()
        padding = [tag.get("is_padding", False) for tag in batch.tags]
        success = checks.raw_success(list(data["extra_fields"]), padding, config.success.key, config.success.threshold)
        result = compute_advantages(
            estimator,
            entropy=data["entropy"].values()[kept],
            offsets=torch.nn.functional.pad(kept.long().cumsum(0), (1, 0))[offsets],
            group=group_ids(list(data["uid"])),
            success=torch.tensor(success),
            config=config,
        )
        metrics.update(result.metrics)

        advantages = torch.zeros(kept.shape, dtype=torch.float32)
        advantages[kept] = result.advantages
        nested = torch.nested.nested_tensor_from_jagged(advantages, offsets)
        fields = TensorDict({"advantages": nested, "returns": nested, **corrected}, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _gtpo_config(self) -> GtpoConfig:
        config = GtpoConfig.from_any(self.config.algorithm.get("gtpo"))
        if config.length_penalty.max_length is not None:
            return config
        penalty = dataclasses.replace(config.length_penalty, max_length=self.config.data.max_response_length)
        return dataclasses.replace(config, length_penalty=penalty)

    def _correct_rollout(
        self, batch: KVBatchMeta, response_mask: torch.Tensor, metrics: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        """verl's rollout correction (`algorithm.rollout_correction`): what it changes, as jagged tensors."""
        correction = self.config.algorithm.get("rollout_correction")
        if correction is None or not self.config.actor_rollout_ref.rollout.calculate_log_probs:
            return {}
        data = self._fetch(batch, ["response_mask", "old_log_probs", "rollout_log_probs"])
        padded, correction_metrics = compute_rollout_correction_and_add_to_batch(
            DataProto(batch=data.to_padded_tensor()), correction
        )
        metrics.update(correction_metrics)
        changed = [name for name in ("response_mask", "rollout_is_weights") if name in padded.batch]
        return {name: response_to_nested(padded.batch[name], response_mask) for name in changed}

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._update_actor(batch, metrics)
        if self.settings.token_dump_dir is not None:
            self._dump_tokens(batch, Path(self.settings.token_dump_dir))
        return batch

    def _dump_tokens(self, batch: KVBatchMeta, folder: Path) -> None:
        """What the actor was just trained on, a file a step: {field: list of one tensor a response}, and the uids."""
        tokens = ["prompts", "responses", "response_mask", "entropy", "advantages", "old_log_probs"]
        if self.config.actor_rollout_ref.rollout.calculate_log_probs:
            tokens.append("rollout_log_probs")
        data = self._fetch(batch, ["uid", "extra_fields", *tokens])
        dump: dict[str, Any] = {
            "uid": list(data["uid"]),
            "reward": [fields.get("reward_extra_info", {}) for fields in list(data["extra_fields"])],
        }
        for name in tokens:
            dump[name] = [row.clone() for row in data[name].unbind()]
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(dump, folder / f"step_{self.global_steps}.pt")

    @staticmethod
    def _fetch(batch: KVBatchMeta, fields: list[str]) -> TensorDict:
        return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)

    # ---- metrics and checkpoints ----

    def fit(self, agent_loop_manager) -> None:
        trains = not checks.validates_only(self.config)
        if self.global_steps > 0 and trains:
            # The step that the checkpoint ended was validated by the run that wrote it.
            self.config.trainer.val_before_train = False
        self._history = MetricsHistory.take(self.config.trainer, self.global_steps, trains)
        super().fit(agent_loop_manager)

    def on_validate_begin(self) -> None:
        super().on_validate_begin()
        self._attach_to_logger()

    def on_train_begin(self) -> None:
        super().on_train_begin()
        self._attach_to_logger()

    def _attach_to_logger(self) -> None:
        """Called by the first hook after `fit` opened the loggers, which empties the metrics file."""
        if isinstance(self.logger, LogThenSave):
            return
        self._history.restore(self.logger.logger.get("file"))
        self.logger = LogThenSave(self.logger)

    def _save_checkpoint(self) -> None:
        """Saves once the metrics of this step are written: `fit` itself would save first, and a run killed between
        the two would resume behind a step whose metrics were never logged."""
        self.logger.after_log = self._save_and_keep_last

    def _save_and_keep_last(self) -> None:
        if OmegaConf.select(self.config, "actor_rollout_ref.actor.checkpoint.async_save"):
            super()._save_checkpoint()  # Megatron's: is not written yet when this returns, and named later
            return
        checkpoints = CheckpointFolder(Path(self.config.trainer.default_local_dir))
        keep = checks.checkpoints_to_keep(self.config)
        checkpoints.set_aside(self.global_steps)
        with _without_verls_limit(self.config.trainer):
            super()._save_checkpoint()
        checkpoints.saved(self.global_steps, keep)

    def _load_checkpoint(self) -> None:
        if self.config.trainer.resume_mode == "auto":
            CheckpointFolder(Path(self.config.trainer.default_local_dir)).mend()
        elif self.config.trainer.resume_from_path:
            # verl reads the step from the end of the text, where a slash may stand.
            self.config.trainer.resume_from_path = str(Path(self.config.trainer.resume_from_path))
        super()._load_checkpoint()


@contextmanager
def _without_verls_limit(trainer: DictConfig) -> Iterator[None]:
    """verl's workers delete by what they remember and before the checkpoint is complete; here they delete nothing."""
    names = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep", "remove_previous_ckpt_in_save")
    limits = {name: trainer[name] for name in names if name in trainer}
    trainer.update(dict.fromkeys(limits))
    try:
        yield
    finally:
        trainer.update(limits)


class LogThenSave:
    """verl's `Tracking`, calling `after_log` once, after the next call of `log`."""

    def __init__(self, tracking):
        self._tracking = tracking
        self.after_log = None

    def log(self, data: dict[str, Any], step: int) -> None:
        self._tracking.log(data=data, step=step)
        save, self.after_log = self.after_log, None
        if save is not None:
            save()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracking, name)


def group_ids(uids: list[str]) -> torch.Tensor:
    """Numbers the groups in order of appearance: uids of the responses -> (responses,) int64."""
    number: dict[str, int] = {}
    return torch.tensor([number.setdefault(uid, len(number)) for uid in uids])
