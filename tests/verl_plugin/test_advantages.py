"""Refusals of a batch, by name, and the numbering of groups."""

import pytest
from tensordict import TensorDict

from gtpo_verl.verl_plugin.advantages import check_entropies, group_ids, raw_success


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
