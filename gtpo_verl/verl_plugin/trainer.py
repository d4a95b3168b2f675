"""verl's synchronous V1 trainer, put together with what GTPO needs and what a long run needs.

GTPO: the advantages are computed from the entropies of the log-probability pass and from the raw task metric
(`advantages`). Whichever method's, they can be kept at forking tokens alone (`forking`). Every recipe run, DAPO's too:
dynamic sampling ends with an error instead of never (`replay_buffer`), rollouts of another policy are noticed
(`agreement`), metrics survive a resume, a checkpoint never precedes the metrics of its step, and the last N are kept,
whatever was resumed (`saving`).
"""

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from gtpo_verl.algorithms import ESTIMATORS, ForkingConfig
from gtpo_verl.configuration.algorithm_checks import forks
from gtpo_verl.configuration.checks import check_config, validates_only
from gtpo_verl.configuration.refusals import check_steps
from gtpo_verl.configuration.settings import RecipeSettings
from gtpo_verl.run_folder.checkpoints import CheckpointFolder
from gtpo_verl.run_folder.metrics_history import MetricsHistory
from gtpo_verl.runtime import stage
from gtpo_verl.verl_plugin import jagged, rollout, saving, transfer, validation_statistics
from gtpo_verl.verl_plugin.advantages import EntropyAdvantages, check_scores
from gtpo_verl.verl_plugin.agreement import check_log_probs
from gtpo_verl.verl_plugin.forking import keep_forking_tokens
from gtpo_verl.verl_plugin.replay_buffer import BoundedReplayBuffer
from gtpo_verl.verl_plugin.run_watch import RunWatch
from gtpo_verl.verl_plugin.stages import StageOfLog
from gtpo_verl.verl_plugin.token_dump import TokenDump
from gtpo_verl.verl_plugin.transfer import Batch

logger = logging.getLogger(__name__)


def install_trainer() -> None:
    """Puts `sync_trainer` where verl looks up the trainer mode `sync`.

    `register_trainer("sync")` refuses a taken name, and any other name gets the asynchronous replay buffer and
    checkpoint branches (verl/trainer/ppo/v1/trainer_base.py tests for the literal "sync").
    """
    trainer_base.TRAINER_REGISTRY["sync"] = sync_trainer  # type: ignore[assignment]  # verl only calls it


def sync_trainer(config: DictConfig) -> PPOTrainerSync:
    """The trainer for `config`: verl's own, untouched, for a job that uses nothing of gtpo-verl."""
    ours = config.algorithm.adv_estimator in ESTIMATORS or "gtpo_verl" in config or forks(config)
    return GtpoTrainer(config) if ours else PPOTrainerSync(config)


class GtpoTrainer(PPOTrainerSync):
    """PPOTrainerSync with entropy-weighted advantages (`ESTIMATORS`) and the recipe's safeguards.

    Raises:
        ValueError: the configuration cannot work, by the name of the key (`check_config`).
    """

    logger: Any  # verl's Tracking, later a LogThenSave around it

    def __init__(self, config: DictConfig):
        stage.say("loading tokenizer and data")
        logging.getLogger(trainer_base.__name__).addHandler(StageOfLog())
        for warning in check_config(config):
            logger.warning(warning)
        self.settings = RecipeSettings.from_config(config)
        if self.settings.fast_rollout:
            rollout.install(config)
        jagged.install_in_trainer()
        self._columns = transfer.keep_columns(trainer_base)
        self.watch = RunWatch(self.settings.stall_timeout)
        super().__init__(config)

    def _enter(self, phase: str) -> None:
        self.watch.enter_phase(phase)
        stage.say_phase(self.global_steps, phase)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        check_steps(self.config, len(self.train_dataset))

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        stage.say("starting the actor")

    def _build_replay_buffer(self):
        buffer = super()._build_replay_buffer()
        if type(buffer) is not trainer_base.ReplayBuffer:  # the user's own sampler
            return buffer
        filter_groups = self.config.algorithm.get("filter_groups") or {}
        return BoundedReplayBuffer.adopt(
            buffer,
            max_groups=filter_groups.get("max_num_gen_batches", 0) * self.config.data.train_batch_size,
            poll_interval=self.settings.poll_interval,
            group_size=self.config.actor_rollout_ref.rollout.n,
            on_progress=self.watch.progress,
            first_batch=self.settings.first_batch,
        )

    def prepare_step(self) -> dict:
        prepared = super().prepare_step()
        # With rollouts of a file (verl's `skip.rollout_tq`) nothing is sampled.
        if isinstance(self.replay_buffer, BoundedReplayBuffer) and not self.config.skip.rollout_tq.enable:
            batch_size = self.config.data.train_batch_size
            if (more := self.replay_buffer.groups_at_once(batch_size) - batch_size) > 0:
                self._add_prompts_to_generate(more)
        return prepared

    @property
    def _reads_text_alone(self) -> bool:
        """Whether the actor's passes read no fields but `transfer`'s: no images, teacher or recorded experts."""
        return self.processor is None and not self.use_teacher_policy and not self._replays_experts

    @property
    def _replays_experts(self) -> bool:
        return bool(self.config.actor_rollout_ref.rollout.get("enable_rollout_routing_replay"))

    def on_sample_begin(self) -> None:
        self._enter("rollout")
        super().on_sample_begin()

    def _compute_old_log_prob(self, batch: Batch, metrics: dict[str, Any]) -> Batch:
        self._enter("log-probabilities")
        nobody_else = not (self.use_reference_policy or self.use_critic)
        # A user's own sampler may have changed what the rollouts left.
        as_rolled_out = rollout.puts_rows(self.config) and isinstance(self.replay_buffer, BoundedReplayBuffer)
        derives = self._reads_text_alone and as_rolled_out
        self._columns.begin(batch, derives=derives, whole=self._reads_text_alone and nobody_else)
        return super()._compute_old_log_prob(transfer.for_forward(batch) if self._reads_text_alone else batch, metrics)

    def _compute_advantage(self, batch: Batch, metrics: dict[str, Any]) -> Batch:
        self._enter("advantages")
        given = ["rollout_log_probs"] if self.config.actor_rollout_ref.rollout.calculate_log_probs else []
        check_log_probs(transfer.fetch(batch, ["response_mask", "old_log_probs", *given]))
        if self.config.algorithm.adv_estimator in ESTIMATORS:
            batch = EntropyAdvantages(self.config).compute(batch, metrics)
        else:
            check_scores(transfer.fetch(batch, ["rm_scores"])["rm_scores"])
            batch = super()._compute_advantage(batch, metrics)
        if forks(self.config):
            batch = keep_forking_tokens(batch, ForkingConfig.from_algorithm(self.config.algorithm), metrics)
        # Before the update, so that the step is there to be looked at when the update fails.
        TokenDump(self.config, self.settings).write(batch, self.global_steps, self.tokenizer)
        return batch

    def _update_actor(self, batch: Batch, metrics: dict[str, Any]) -> Batch:
        self._enter("update")
        return super()._update_actor(transfer.for_update(batch) if self._reads_text_alone else batch, metrics)

    def fit(self, agent_loop_manager) -> None:
        trains = not validates_only(self.config)
        if self.global_steps > 0 and trains:
            # The step that the checkpoint ended was validated by the run that wrote it.
            self.config.trainer.val_before_train = False
        if trains:
            TokenDump(self.config, self.settings).forget_after(self.global_steps)
        self._history = MetricsHistory.take(self.config.trainer, self.global_steps, trains)
        stage.say("starting the agent loops")
        transfer.take_answers(self.actor_rollout_wg, self._columns)
        with self.watch:
            super().fit(agent_loop_manager)

    # Whichever of the two hooks comes first after `fit` has opened the loggers.

    def on_validate_begin(self) -> None:
        self._enter("validation")
        super().on_validate_begin()
        stage.say("validating")
        self.logger = saving.attach(self.logger, self._history)

    def _val_metrics_update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with validation_statistics.in_bulk():
            return super()._val_metrics_update(*args, **kwargs)

    def on_train_begin(self) -> None:
        super().on_train_begin()
        self._first_step = self.global_steps
        stage.say("taking the first step")
        self.logger = saving.attach(self.logger, self._history)

    def on_step_end(self) -> None:
        self._enter("weights")
        super().on_step_end()
        if self.global_steps == self._first_step:
            stage.say("training")

    def _save_checkpoint(self) -> None:
        save = super()._save_checkpoint

        def save_and_keep_last() -> None:
            self._enter("save")
            saving.save_and_keep_last(save, self.config, self.global_steps)
            self._enter("between steps")

        self.logger.after_log = save_and_keep_last

    def _load_checkpoint(self) -> None:
        if self.config.trainer.resume_mode == "auto":
            CheckpointFolder.of_run(self.config).mend()
        elif self.config.trainer.resume_from_path:
            # verl reads the step from the end of the text, where a slash may stand.
            self.config.trainer.resume_from_path = str(Path(self.config.trainer.resume_from_path))
        super()._load_checkpoint()
