"""Which fields of a batch travel to the actor, of which models."""

from types import SimpleNamespace
from typing import Any

import pytest
import transfer_queue
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from gtpo_verl.verl_plugin.trainer import GtpoTrainer
from gtpo_verl.verl_plugin.transfer.columns import KeepingQueue

ALL = ["input_ids", "position_ids", "loss_mask", "response_mask", "prompts", "responses", "old_log_probs", "advantages"]
TEXT = {"processor": None, "use_teacher_policy": False, "enable_rollout_routing_replay": False}


def trainer(processor: Any, use_teacher_policy: bool, enable_rollout_routing_replay: bool) -> GtpoTrainer:
    """As far as these methods look at one."""
    made = object.__new__(GtpoTrainer)
    made.processor, made.use_teacher_policy, made.global_steps = processor, use_teacher_policy, 1
    rollout = {"enable_rollout_routing_replay": enable_rollout_routing_replay}
    made.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    made.watch = SimpleNamespace(enter_phase=lambda phase: None)
    made._columns = KeepingQueue(transfer_queue, ())
    return made


@pytest.mark.parametrize(
    "reads_more",
    [{}, {"processor": object()}, {"use_teacher_policy": True}, {"enable_rollout_routing_replay": True}],
    ids=["text", "images", "teacher", "experts"],
)
def test_a_model_of_text_is_sent_no_objects_and_others_everything(
    reads_more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {}
    for name in ("_compute_old_log_prob", "_update_actor"):
        monkeypatch.setattr(PPOTrainerSync, name, lambda self, batch, metrics, name=name: sent.update({name: batch}))
    for name in ("_compute_old_log_prob", "_update_actor"):
        batch = KVBatchMeta(keys=["a"], tags=[{}], fields=[*ALL, "multi_modal_inputs", "extra_fields"])
        getattr(trainer(**{**TEXT, **reads_more}), name)(batch, {})
    objects = {name: {"multi_modal_inputs", "extra_fields"} & set(batch.fields) for name, batch in sent.items()}
    assert len(sent) == 2
    assert all(len(found) == (2 if reads_more else 0) for found in objects.values())
    assert set(ALL) <= set(sent["_update_actor"].fields)
