"""Another algorithm every step of one run, so that many are trained for the price of one start.

`$GTPO_VERL_TURNS` holds JSON: the overrides of the run, and for each step those that come on top. They change what a
preset changes: `algorithm` and `actor_rollout_ref.actor`. Everything else of the step is verl's and this package's own.
"""

import json
import os
from functools import partial

import wrapt

BASE, TURNS = json.loads(os.environ["GTPO_VERL_TURNS"])


@wrapt.when_imported("gtpo_verl.verl_plugin.trainer")
def _trainer(module) -> None:
    from omegaconf import open_dict
    from verl.utils import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    from gtpo_verl.configuration.checks import check_config
    from gtpo_verl.configuration.composition import compose_config

    class TurnTaker(module.GtpoTrainer):
        def on_step_begin(self):
            super().on_step_begin()
            config = compose_config([*BASE, *TURNS[self.global_steps - 1]])
            assert check_config(config) == []
            with open_dict(self.config):
                self.config.algorithm = config.algorithm
                self.config.actor_rollout_ref.actor = config.actor_rollout_ref.actor
            actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
            self.actor_rollout_wg.set_loss_fn(partial(ppo_loss, config=actor))

        def _compute_old_log_prob(self, batch, metrics):
            # Handed on with the batch, these come before what the workers were started with.
            actor = self.config.actor_rollout_ref.actor
            batch.extra_info.update(
                use_dynamic_bsz=actor.use_dynamic_bsz,
                max_token_len_per_gpu=actor.ppo_max_token_len_per_gpu,
                micro_batch_size_per_gpu=actor.ppo_micro_batch_size_per_gpu,
            )
            return super()._compute_old_log_prob(batch, metrics)

    module.GtpoTrainer = TurnTaker
