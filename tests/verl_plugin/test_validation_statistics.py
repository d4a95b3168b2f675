"""best@k, worst@k and maj@k: verl's numbers to the last bit, and no draw reduced by itself."""

import numpy as np
import pytest
from verl.trainer.ppo import metric_utils

from gtpo_verl.verl_plugin import validation_statistics

ANSWERS = ("4", "5", "6", "")


def validation(seed, responses=9, prompts=5, **more):
    rng = np.random.default_rng(seed)
    count = responses * prompts
    infos = {
        "reward": rng.normal(size=count).tolist(),
        "acc": [bool(one) for one in rng.integers(0, 2, count)],
        "level": rng.integers(-3, 3, count).tolist(),
        "pred": [ANSWERS[one] for one in rng.integers(0, 4, count)],
        **{name: make(rng, count) for name, make in more.items()},
    }
    uids = [str(index // responses) for index in range(count)]
    return [f"source{index % prompts // 3}" for index in range(count)], uids, infos


def both(*given, **more):
    """verl's metrics and numpy's state afterwards, alone and in bulk."""
    alone = metric_utils.process_validation_metrics(*given, **more), np.random.get_state()[1].tolist()
    np.random.seed(0)
    with validation_statistics.in_bulk():
        in_bulk = metric_utils.process_validation_metrics(*given, **more), np.random.get_state()[1].tolist()
    return alone, in_bulk


@pytest.mark.parametrize("responses", [1, 2, 3, 8, 9])
def test_all_numbers_and_the_generators_state_are_verls(responses):
    sources, uids, infos = validation(responses, responses)
    # Several sources for one prompt's responses, and responses that failed.
    expected = dict.fromkeys(zip(sources, uids, strict=True), responses + 2)
    (alone, state), (in_bulk, state_in_bulk) = both(sources, uids, infos, expected_acc_counts=expected)
    assert in_bulk == alone
    assert responses < 2 or state_in_bulk == state


@pytest.mark.parametrize(
    "values",
    [
        [float("nan"), 1.0, 2.0],
        [1.0, float("inf"), 0.5],
        [np.float32(0.1), np.int64(3), np.bool_(True)],
        [2**70, 1, 0.5],
        [np.float32(0.1), 0.1, 0.1000000001],
        [np.float16(2048), 2049, 2048],
        [np.float32(0.1), np.float32(0.2), np.float32(0.3)],
    ],
    ids=["nan", "inf", "numpy's", "large", "single precision and Python's", "half precision and integers", "single"],
)
def test_whatever_a_reward_function_returns(values):
    sources, uids, infos = validation(1, odd=lambda rng, count: [values[one] for one in rng.integers(0, 3, count)])
    (alone, _), (in_bulk, _) = both(sources, uids, infos)
    np.testing.assert_equal(in_bulk, alone)  # NaN is NaN's equal there


def test_what_verl_refuses_is_refused_alike():
    sources, uids, infos = validation(1, pred=lambda rng, count: [["a list"]] * count)
    with pytest.raises(TypeError, match="unhashable"):
        metric_utils.process_validation_metrics(sources, uids, infos)
    with validation_statistics.in_bulk(), pytest.raises(TypeError, match="unhashable"):
        metric_utils.process_validation_metrics(sources, uids, infos)


def test_no_draw_is_reduced_by_itself_and_verl_gets_its_function_back(monkeypatch):
    verl_bootstrap = metric_utils.bootstrap_metric
    monkeypatch.setattr(metric_utils, "calc_maj_val", calc := counting(metric_utils.calc_maj_val))
    with validation_statistics.in_bulk():
        metric_utils.process_validation_metrics(*validation(2))
    assert calc.calls == 0
    assert metric_utils.bootstrap_metric is verl_bootstrap


def counting(function):
    def counted(*args, **kwargs):
        counted.calls += 1
        return function(*args, **kwargs)

    counted.calls = 0
    return counted


def test_the_trainer_uses_it(monkeypatch):
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from gtpo_verl.verl_plugin.trainer import GtpoTrainer

    monkeypatch.setattr(metric_utils, "calc_maj_val", calc := counting(metric_utils.calc_maj_val))
    trainer = object.__new__(GtpoTrainer)
    sources, uids, infos = validation(3)
    ours = trainer._val_metrics_update(sources, uids, infos, [])
    assert calc.calls == 0
    assert ours == PPOTrainerSync._val_metrics_update(trainer, sources, uids, infos, [])
    assert calc.calls > 1000
