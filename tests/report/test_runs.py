"""Runs grouped by algorithm, and curves over seeds."""

import pytest

from gtpo_verl.report.metrics_log import MetricsError
from gtpo_verl.report.runs import Curve, algorithm_of, label, read_runs


def test_curve_is_mean_and_range_at_the_steps_all_seeds_have():
    curve = Curve.over_seeds([{1: 0.0, 2: 1.0, 3: 9.0}, {1: 1.0, 2: 2.0}])
    assert (curve.steps, curve.mean, curve.low, curve.high) == ([1, 2], [0.5, 1.5], [0.0, 1.0], [1.0, 2.0])


def test_no_seed_gives_an_empty_curve():
    assert Curve.over_seeds([]).steps == []


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("gtpo_v1-seed12", "gtpo_v1"), ("dapo", "dapo"), ("grpo_s_v2_seed=3", "grpo_s_v2"), ("seed1", "seed1")],
)
def test_algorithm_by_folder_name(files, tmp_path, name, algorithm):
    assert algorithm_of(files.write_run(tmp_path / name, files.training(1))) == algorithm


def test_a_file_of_another_name_is_its_own_name(files, tmp_path):
    (tmp_path / "gtpo_v2-seed1.jsonl").write_bytes(files.training(1))
    assert algorithm_of(tmp_path / "gtpo_v2-seed1.jsonl") == "gtpo_v2"


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        ("dapo", "DAPO"),
        ("gtpo_v1", "GTPO v1"),
        ("grpo_s_v2", "GRPO-S v2"),
        ("gtpo_v1_clip", "GTPO v1 clip"),
        ("gtpoish", "gtpoish"),
        ("mine", "mine"),
    ],
)
def test_labels(algorithm, shown):
    assert label(algorithm) == shown


def test_seeds_of_an_algorithm_come_together(files, tmp_path):
    names = ["dapo-seed1", "gtpo_v1-seed1", "dapo-seed2"]
    groups = read_runs([files.write_run(tmp_path / name, files.training(1)) for name in names])
    assert {algorithm: len(logs) for algorithm, logs in groups.items()} == {"dapo": 2, "gtpo_v1": 1}


def test_one_unreadable_run_is_an_error_that_names_it(files, tmp_path):
    good = files.write_run(tmp_path / "good", files.training(1))
    with pytest.raises(MetricsError, match="absent"):
        read_runs([good, tmp_path / "absent"])
    with pytest.raises(ValueError, match="no runs"):
        read_runs([])
