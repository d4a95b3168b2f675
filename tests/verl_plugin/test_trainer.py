"""Which fields of a batch travel to the actor, of which models."""

from types import SimpleNamespace
from typing import Any

import pytest
import transfer_queue
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.replay_buffer import BoundedReplayBuffer
from gtpo_verl.verl_plugin.trainer import GtpoTrainer
from gtpo_verl.verl_plugin.transfer.columns import PASS, KeepingQueue

ALL = ["input_ids", "position_ids", "loss_mask", "response_mask", "prompts", "responses", "old_log_probs", "advantages"]
OF_TRAINER = ("processor", "use_teacher_policy", "use_reference_policy", "use_critic", "replay_buffer")


def trainer(**differs: Any) -> GtpoTrainer:
    """As far as these methods look at one, of a model of text."""
    made = object.__new__(GtpoTrainer)
    buffer = object.__new__(BoundedReplayBuffer)
    vars(made).update(
        dict.fromkeys(OF_TRAINER, False) | {"processor": None, "replay_buffer": buffer, "global_steps": 1}
    )
    vars(made).update({name: value for name, value in differs.items() if name in OF_TRAINER})
    rollout = {name: value for name, value in differs.items() if name not in OF_TRAINER}
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
        getattr(trainer(**reads_more), name)(batch, {})
    objects = {name: {"multi_modal_inputs", "extra_fields"} & set(batch.fields) for name, batch in sent.items()}
    assert len(sent) == 2
    assert all(len(found) == (2 if reads_more else 0) for found in objects.values())
    assert set(ALL) <= set(sent["_update_actor"].fields)


@pytest.mark.parametrize(
    ("differs", "derives", "whole"),
    [
        ({}, True, True),
        ({"use_reference_policy": True}, True, False),
        ({"use_critic": True}, True, False),
        ({"agent": {"agent_loop_manager_class": "mine.Manager"}}, False, True),
        ({"replay_buffer": "a user's own sampler"}, False, True),
        ({"processor": object()}, False, False),
        ({"use_teacher_policy": True}, False, False),
    ],
    ids=["text", "reference", "critic", "other agent loops", "other sampler", "images", "teacher"],
)
def test_columns_stay_with_the_trainer_where_nobody_else_reads_them_and_are_derived_from_verls_rows(
    differs: dict[str, Any], derives: bool, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PPOTrainerSync, "_compute_old_log_prob", lambda self, batch, metrics: batch)
    made = trainer(**differs)
    monkeypatch.setattr(transfer, "transfer_queue", made._columns)
    batch = made._compute_old_log_prob(KVBatchMeta(keys=["a"], tags=[{}]), {})
    if differs.keys() & {"processor", "use_teacher_policy"}:
        assert PASS not in batch.extra_info
        assert batch.fields is None
    else:
        told = batch.extra_info[PASS]
        assert (told.derives, told.whole) == (derives, whole)
        assert ("loss_mask" in batch.fields) is not derives
    assert (made._columns._derives, made._columns._whole) == (derives, whole)
