"""Forking tokens of a batch in TransferQueue, whose place a dictionary takes; e2e/test_presets.py has the real one."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from gtpo_verl.algorithms import ForkingConfig
from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.forking import keep_forking_tokens

MASK = [[1, 1, 1], [0, 0], [1, 0, 1, 1]]  # the second is a row that verl added; the third has a token of a tool
ENTROPY = [[0.5, 3.0, 0.1], [9.0, 9.0], [1.0, 9.0, 0.2, 2.0]]
ADVANTAGES = [[1.0, 1.0, 1.0], [0.0, 0.0], [-2.0, 0.0, -2.0, -2.0]]


def jagged(rows, dtype=torch.float32):
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


@pytest.fixture
def stored(monkeypatch):
    fields = {"response_mask": jagged(MASK, torch.int64), "entropy": jagged(ENTROPY), "advantages": jagged(ADVANTAGES)}

    def fetch(batch, names):
        return TensorDict({name: fields[name] for name in names if name in fields}, batch_size=len(MASK))

    def put(batch, new):
        fields.update(new.items())
        return batch

    monkeypatch.setattr(transfer, "fetch", fetch)
    monkeypatch.setattr(transfer, "put", put)
    return fields


class Batch(SimpleNamespace):
    def __len__(self) -> int:
        return len(MASK)


@pytest.mark.parametrize(
    ("config", "kept", "threshold"),
    [
        (ForkingConfig(0.5), [[0.0, 1.0, 0.0], [0.0, 0.0], [-2.0, 0.0, 0.0, -2.0]], 1.0),
        (ForkingConfig(0.3, "response"), [[0.0, 1.0, 0.0], [0.0, 0.0], [0.0, 0.0, 0.0, -2.0]], 2.0),
    ],
)
def test_what_the_mask_leaves_out_is_never_looked_at(stored, config, kept, threshold) -> None:
    metrics: dict = {}
    batch = Batch()
    assert keep_forking_tokens(batch, config, metrics) is batch
    assert [row.tolist() for row in stored["advantages"].unbind()] == kept
    assert metrics == {"forking/entropy_threshold": pytest.approx(threshold)}
    assert torch.equal(stored["response_mask"].values(), jagged(MASK, torch.int64).values())


def test_a_batch_without_tokens(stored) -> None:
    stored["response_mask"] = jagged([[0] * len(row) for row in MASK], torch.int64)
    metrics: dict = {}
    keep_forking_tokens(Batch(), ForkingConfig(0.5), metrics)
    assert not stored["advantages"].values().any()
    assert metrics == {"forking/entropy_threshold": 0.0}


def test_an_engine_that_left_no_entropies(stored) -> None:
    del stored["entropy"]
    with pytest.raises(ValueError, match="no `entropy`"):
        keep_forking_tokens(Batch(), ForkingConfig(0.5), {})
