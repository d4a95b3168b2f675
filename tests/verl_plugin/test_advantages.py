"""Refusals of a batch, by name; which of its tokens and rows count."""

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin import transfer
from gtpo_verl.verl_plugin.advantages import (
    EntropyAdvantages,
    check_entropies,
    check_scores,
    group_ids,
    raw_success,
)


def extra(**metrics) -> dict:
    return {"reward_extra_info": metrics}


def test_right_is_decided_by_the_metric_and_its_threshold() -> None:
    fields = [extra(acc=1.0, score=-1.0), extra(acc=0.5, score=1.0), extra(acc=True)]
    assert raw_success(fields, [False] * 3, "acc", 0.5) == [True, False, True]
    assert raw_success(fields[:2], [False] * 2, "score", 0.0) == [False, True]


def test_padding_rows_are_wrong_whatever_they_hold() -> None:
    assert raw_success([extra(acc=1.0), extra()], [True, True], "acc", 0.5) == [False, False]


@pytest.mark.parametrize("fields", [extra(score=1.0), {}, None])
def test_a_missing_metric_is_named(fields) -> None:
    with pytest.raises(ValueError, match=r"response 1 has no `acc`.*algorithm.gtpo.success.key"):
        raw_success([extra(acc=1.0), fields], [False, False], "acc", 0.5)


def test_missing_entropies_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no `entropy`.*actor.strategy"):
        check_entropies(TensorDict({}, batch_size=2))


def test_groups_are_numbered_in_order_of_appearance() -> None:
    assert group_ids(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("value", ["yes", "1.0", None, float("nan"), float("inf")])
def test_a_metric_that_is_no_number_is_named(value) -> None:
    with pytest.raises(ValueError, match=r"`acc` of response 1, .*gtpo\.success\.key.* must be a finite number"):
        raw_success([extra(acc=1.0), extra(acc=value)], [False, False], "acc", 0.5)


def jagged(rows: list[list[float]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_named(bad: float) -> None:
    check_scores(jagged([[0.0, 1.0], [-1.0], [0.0, 0.0, 0.5]]))
    with pytest.raises(ValueError, match=rf"reward of response 1 of this step .* not {bad}"):
        check_scores(jagged([[0.0, 1.0], [bad], [0.0, 0.0, bad]]))


class Stored:
    """A batch in TransferQueue, whose place a dictionary takes; e2e/test_training.py has the real one."""

    def __init__(self, fields: dict, uids: list[str], padding: list[bool], monkeypatch: pytest.MonkeyPatch):
        self.fields = fields
        self.uids = uids
        keys = [f"{uid}_{row}_0" for row, uid in enumerate(uids)]
        self.batch = transfer.Batch(keys=keys, tags=[{"is_padding": one} for one in padding], partition_id="train")
        monkeypatch.setattr(transfer, "fetch", self.fetch)
        monkeypatch.setattr(transfer, "put", self.put)

    def fetch(self, _batch, names):
        lists = {"uid": self.uids, "extra_fields": self.fields["extra_fields"]}
        tensors = {name: self.fields[name] for name in names if name not in lists}
        data = TensorDict(tensors, batch_size=len(self.uids))
        for name in lists.keys() & set(names):
            data.set_non_tensor(name, lists[name])
        return data

    def put(self, batch, new):
        self.fields.update(new.items())
        return batch


def advantages_of(rows: list[dict], algorithm: str, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    fields = {
        "response_mask": jagged([row["mask"] for row in rows], torch.int64),
        **{
            name: jagged([row["entropy"] for row in rows]) for name in ("entropy", "old_log_probs", "rollout_log_probs")
        },
        "extra_fields": [extra(acc=row["acc"]) for row in rows],
    }
    stored = Stored(fields, [row["uid"] for row in rows], [row.get("padding", False) for row in rows], monkeypatch)
    penalty = ["enable=true", "max_length=5", "buffer=3"] if algorithm.startswith("gtpo") else []
    keys = [f"algorithm.gtpo.length_penalty.{one}" for one in penalty]
    config = compose_config([f"algorithm={algorithm}", "model=tiny", *keys])
    EntropyAdvantages(config).compute(stored.batch, {})
    return list(stored.fields["advantages"].unbind())


ROWS = [
    {"uid": "a", "acc": 1.0, "entropy": [0.5, 1.0, 0.1, 2.0], "mask": [1, 1, 1, 1]},
    {"uid": "b", "acc": 0.0, "entropy": [0.2, 0.3], "mask": [1, 1]},
    {"uid": "a", "acc": 0.0, "entropy": [0.7, 0.4, 1.5], "mask": [1, 1, 1]},
    {"uid": "b", "acc": 1.0, "entropy": [0.9], "mask": [1]},
    {"uid": "a", "acc": 1.0, "entropy": [0.3, 0.6], "mask": [1, 1]},
]


@pytest.mark.parametrize("algorithm", ["gtpo_v1", "gtpo_v2", "gtpo_v3", "grpo_s_v1", "grpo_s_v2", "grpo_s_v3"])
def test_tokens_of_tools_count_in_no_length_position_or_entropy(algorithm: str, monkeypatch) -> None:
    """As an agent loop of several turns leaves them inside a response: the other tokens' advantages stay theirs."""
    with_tools = [dict(row) for row in ROWS]
    for row, at in ((0, 1), (0, 3), (2, 1), (3, 0)):
        with_tools[row] = {
            **with_tools[row],
            "entropy": [*with_tools[row]["entropy"][:at], 9.0, 8.0, *with_tools[row]["entropy"][at:]],
            "mask": [*with_tools[row]["mask"][:at], 0, 0, *with_tools[row]["mask"][at:]],
        }
    expected = advantages_of(ROWS, algorithm, monkeypatch)
    got = advantages_of(with_tools, algorithm, monkeypatch)
    for want, one, row in zip(expected, got, with_tools, strict=True):
        mask = torch.tensor(row["mask"]) != 0
        assert torch.equal(one[mask], want)
        assert not one[~mask].any()


@pytest.mark.parametrize("algorithm", ["gtpo_v2", "grpo_s_v2"])
def test_rows_that_verl_adds_and_another_order_leave_groups_alone(algorithm: str, monkeypatch) -> None:
    """verl's padding (`construct_minimal_padding_template`): one token without mask, the first row's metric."""
    sample = {"extra_fields": extra(acc=1.0), "position_ids": torch.arange(3)}
    padding, tag = construct_minimal_padding_template(sample, {}, eos_token_id=2)
    assert tag["is_padding"]
    assert padding["extra_fields"] == extra(acc=1.0)
    added = {
        "uid": "pad",
        "acc": 1.0,
        "entropy": [9.0],
        "mask": padding["response_mask"].tolist(),
        "padding": True,
    }
    order = [3, 0, 4, 1, 2]
    expected = advantages_of(ROWS, algorithm, monkeypatch)
    got = advantages_of([added, *(ROWS[row] for row in order), added], algorithm, monkeypatch)
    assert not got[0].any()
    assert not got[-1].any()
    for one, row in zip(got[1:-1], order, strict=True):
        torch.testing.assert_close(one, expected[row], atol=1e-6, rtol=1e-6)
