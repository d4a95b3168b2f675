"""The vector operations on jagged batches give what verl's loops give."""

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import seqlen_balancing, tensordict_utils
from verl.workers.engine import utils as engine_utils
from verl.workers.utils import losses, padding

from gtpo_verl.verl_plugin import jagged

PROMPTS, RESPONSES = [3, 1, 4, 2, 5], [2, 7, 1, 1, 3]
# Prompts and responses: one of a token, one alone, empty ones.
SIZES = [([1], [1]), ([3], [2]), ([3, 1, 4], [2, 0, 3]), ([3, 1, 4], [0, 5, 0]), ([2, 3], [0, 0]), ([3], [0])]


@pytest.fixture(autouse=True)
def verls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ours fall back on, without putting ours in verl's place for the tests of other files."""
    originals = (
        tensordict_utils.index_select_tensor_dict,
        seqlen_balancing.restore_dynamic_batch,
        padding.no_padding_2_padding,
        seqlen_balancing.get_seqlen_balanced_partitions,
    )
    for original in originals:
        ours = getattr(jagged, original.__name__)
        monkeypatch.setattr(ours, "verls", original, raising=False)


def ragged(lengths: list[int], *features: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = [torch.randn(n, *features, generator=generator).mul(9).to(dtype) for n in lengths]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def both(prompts: list[int] = PROMPTS, responses: list[int] = RESPONSES) -> list[int]:
    return [p + r for p, r in zip(prompts, responses, strict=True)]


def batch(**fields) -> TensorDict:
    tensors = {"prompts": ragged(PROMPTS), "responses": ragged(RESPONSES), **fields}
    return TensorDict(tensors, batch_size=len(PROMPTS))


def same(ours: torch.Tensor, verls: torch.Tensor) -> None:
    if verls.is_nested:
        torch.testing.assert_close(ours.offsets(), verls.offsets(), rtol=0, atol=0)
        ours, verls = ours.values(), verls.values()
    torch.testing.assert_close(ours, verls, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [4, 2], [3], [1, 1, 0]], ids=str)
@pytest.mark.parametrize("as_list", [True, False])
def test_rows_of_a_batch(rows: list[int], as_list: bool) -> None:
    whole = tensordict_utils.get_tensordict(
        {
            "tokens": ragged(both(), dtype=torch.int64),
            "hidden": ragged(both(), 3),
            "flag": torch.arange(5),
            "names": ["a", "b", "c", "d", "e"],
        },
        {"temperature": 0.7},
    )
    indices = rows if as_list else torch.tensor(rows)
    ours = jagged.index_select_tensor_dict(whole, indices)
    verls = tensordict_utils.index_select_tensor_dict(whole, indices)
    assert ours is not None
    assert set(ours.keys()) == set(verls.keys())
    assert ours.batch_size == verls.batch_size
    for key in ("tokens", "hidden", "flag"):
        same(ours[key], verls[key])
    assert list(ours["names"]) == list(verls["names"])
    assert ours["temperature"] == verls["temperature"]


def test_no_batch_stays_none() -> None:
    assert jagged.index_select_tensor_dict(None, [0]) is tensordict_utils.index_select_tensor_dict(None, [0]) is None


def test_positions_of_vision_models_stay_verls() -> None:
    rows = [torch.randn(4, n) for n in RESPONSES]
    positions = tensordict_utils.nested_tensor_from_tensor_list(rows, ragged_idx=2)
    whole = TensorDict({"position_ids": positions}, batch_size=len(rows))
    ours = jagged.index_select_tensor_dict(whole, [4, 1])
    verls = tensordict_utils.index_select_tensor_dict(whole, [4, 1])
    assert ours is not None
    for ours_row, verls_row in zip(ours["position_ids"].unbind(), verls["position_ids"].unbind(), strict=True):
        same(ours_row, verls_row)


@pytest.mark.parametrize("features", [(), (3,)])
def test_order_before_micro_batches(features: tuple[int, ...]) -> None:
    partition = [[4, 1], [0], [3, 2]]
    for data in (ragged(both(), *features), torch.randn(5, 2)):
        same(jagged.restore_dynamic_batch(data, partition), seqlen_balancing.restore_dynamic_batch(data, partition))


@pytest.mark.parametrize("width", [-1, 11])
@pytest.mark.parametrize("flat", [True, False])
def test_values_of_responses_padded(width: int, flat: bool) -> None:
    data = batch()
    if width > 0:
        tensordict_utils.assign_non_tensor(data, max_response_len=width)
    values = ragged(both()).values().requires_grad_()
    weights = torch.randn(5, max(RESPONSES) if width < 0 else width)

    def through(function) -> tuple[torch.Tensor, torch.Tensor]:
        offsets = ragged(both()).offsets()
        given = values if flat else torch.nested.nested_tensor_from_jagged(values, offsets)
        padded = function(given, data)
        (gradient,) = torch.autograd.grad((padded * weights).sum(), values)
        return padded, gradient

    for ours, verls in zip(through(jagged.no_padding_2_padding), through(padding.no_padding_2_padding), strict=True):
        same(ours, verls)


def test_values_with_features_stay_verls() -> None:
    given = ragged(both(), 3)
    same(jagged.no_padding_2_padding(given, batch()), padding.no_padding_2_padding(given, batch()))


@pytest.mark.parametrize(("prompts", "tokens"), [([0, 1, 4, 2, 5], 0), (PROMPTS, 1)])
def test_a_batch_that_does_not_fit_its_values_is_refused(prompts: list[int], tokens: int) -> None:
    data = TensorDict({"prompts": ragged(prompts), "responses": ragged(RESPONSES)}, batch_size=5)
    with pytest.raises(AssertionError):
        jagged.no_padding_2_padding(torch.zeros(sum(both(prompts)) + tokens), data)


@pytest.mark.parametrize("features", [(), (3,)])
def test_responses_out_of_whole_sequences(features: tuple[int, ...]) -> None:
    mask = ragged(RESPONSES)
    given = ragged(both(), *features)
    same(jagged.response_from_nested(given, mask), padding.response_from_nested(given, mask))


def test_responses_out_of_padding() -> None:
    mask, padded = ragged(RESPONSES), torch.randn(5, 9)
    same(jagged.response_to_nested(padded, mask), padding.response_to_nested(padded, mask))


@pytest.mark.parametrize(("prompts", "responses"), SIZES, ids=str)
def test_batches_of_any_size(prompts: list[int], responses: list[int]) -> None:
    whole, mask = ragged(both(prompts, responses)), ragged(responses)
    data = TensorDict({"prompts": ragged(prompts), "responses": mask}, batch_size=len(prompts))
    padded = torch.randn(len(prompts), 9)
    backwards = list(range(len(prompts)))[::-1]
    pairs = [
        (module.no_padding_2_padding(whole, data), module.response_from_nested(whole, mask), mask_of(padded, mask))
        for module, mask_of in ((jagged, jagged.response_to_nested), (padding, padding.response_to_nested))
    ]
    pairs_of_rows = [
        tuple(module.index_select_tensor_dict(data, backwards)["responses"] for module in (jagged, tensordict_utils)),
        tuple(
            module.restore_dynamic_batch(whole, [[row] for row in backwards]) for module in (jagged, seqlen_balancing)
        ),
    ]
    for ours, verls in [*zip(*pairs, strict=True), *pairs_of_rows]:
        same(ours, verls)
        if verls.is_nested:  # which a padded tensor is made by
            assert (ours._get_min_seqlen(), ours._get_max_seqlen()) == (
                verls._get_min_seqlen(),
                verls._get_max_seqlen(),
            )


def test_ours_stand_in_verls_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the modules that call them."""
    places = [
        (tensordict_utils, "index_select_tensor_dict"),
        (engine_utils, "restore_dynamic_batch"),
        (losses, "no_padding_2_padding"),
        (trainer_base, "response_from_nested"),
        (trainer_base, "response_to_nested"),
        (trainer_base, "get_seqlen_balanced_partitions"),
    ]
    before = [getattr(module, name) for module, name in places]
    for (module, name), verls in zip(places, before, strict=True):
        monkeypatch.setattr(module, name, verls)  # and back afterwards
        monkeypatch.setattr(getattr(jagged, name), "verls", None, raising=False)
    for _ in range(2):
        jagged.install_in_workers()
        jagged.install_in_trainer()
    assert [getattr(module, name) for module, name in places] == [getattr(jagged, name) for _, name in places]
    assert [getattr(jagged, name).verls for _, name in places] == before


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_partitions_of_a_tensor_are_those_of_verl(parts: int) -> None:
    lengths = torch.randint(1, 2000, (64,), generator=torch.Generator().manual_seed(parts))
    workload = seqlen_balancing.calculate_workload(lengths)
    expected = seqlen_balancing.get_seqlen_balanced_partitions(workload, parts, equal_size=True)
    assert jagged.get_seqlen_balanced_partitions(workload, parts, equal_size=True) == expected
    assert jagged.get_seqlen_balanced_partitions(workload.tolist(), parts, equal_size=True) == expected
