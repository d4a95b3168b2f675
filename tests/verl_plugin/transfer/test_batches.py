"""What a batch in TransferQueue must be, and which of its fields travel to the actor."""

import pytest
import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import assign_non_tensor
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from gtpo_verl.verl_plugin.transfer import check_single_row_sessions, for_forward, for_update

PROMPT, RESPONSES = 2, (3, 5, 1)
# Beside what a loss reads: what verl's agent loop and trainer leave there.
OTHERS = ("rm_scores", "rollout_log_probs", "entropy", "returns", "uid", "extra_fields")


def test_several_rows_a_session_are_refused() -> None:
    check_single_row_sessions(["a_0_0", "a_1_0", "b_0_0"])
    with pytest.raises(ValueError, match=r"session a_1"):
        check_single_row_sessions(["a_0_0", "a_1_0", "a_1_1"])


def whole() -> TensorDict:
    """All fields that verl's loss of an actor can read, of three responses."""
    generator = torch.Generator().manual_seed(0)

    def ragged(dtype: torch.dtype, prompt: int = 0) -> torch.Tensor:
        rows = [torch.rand(prompt + n, generator=generator).add(0.5).to(dtype) for n in RESPONSES]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    fields = {name: ragged(torch.int64, PROMPT) for name in ("input_ids", "position_ids")}
    fields["prompts"] = torch.nested.as_nested_tensor([torch.ones(PROMPT, dtype=torch.int64)] * 3, layout=torch.jagged)
    fields["responses"] = ragged(torch.int64)
    for name in ("response_mask", "loss_mask"):
        rows = [torch.ones(n, dtype=torch.int64) for n in RESPONSES]
        fields[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    for name in ("old_log_probs", "advantages", "ref_log_prob", "rollout_is_weights"):
        fields[name] = ragged(torch.float32)
    return TensorDict(fields, batch_size=3)


def loss(data: TensorDict) -> float:
    data = data.copy()
    assign_non_tensor(data, dp_size=1, batch_num_tokens=None, global_batch_size=None)
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, use_kl_loss=True, kl_loss_coef=0.1
    )
    log_probs = torch.linspace(-1, 1, PROMPT * 3 + sum(RESPONSES))
    output = {"log_probs": torch.nested.nested_tensor_from_jagged(log_probs, data["input_ids"].offsets())}
    return ppo_loss(config, output, data)[0].item()


def test_the_update_gets_what_verls_loss_reads_and_nothing_else() -> None:
    """A weight that did not arrive would be 1, without a word."""
    data = whole()
    batch = for_update(KVBatchMeta(keys=["a", "b", "c"], tags=[{}] * 3, fields=[*data.keys(), *OTHERS]))
    assert set(batch.fields) == set(data.keys())
    assert loss(data.select(*batch.fields)) == loss(data)
    assert loss(data.exclude("rollout_is_weights")) != loss(data)
    with pytest.raises(KeyError):
        loss(data.exclude("ref_log_prob"))


def test_fields_that_the_batch_does_not_have_are_not_asked_for() -> None:
    given = [name for name in list(whole().keys()) if name not in ("ref_log_prob", "rollout_is_weights")]
    assert set(for_update(KVBatchMeta(keys=["a"], tags=[{}], fields=[*given, *OTHERS])).fields) == set(given)


def test_the_log_prob_pass_gets_no_objects() -> None:
    fields = for_forward(KVBatchMeta(keys=["a"], tags=[{}])).fields
    assert {"input_ids", "position_ids", "loss_mask", "response_mask", "prompts", "responses"} == set(fields)
