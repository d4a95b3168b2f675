"""Where runs lie, what they are called, and whether they came to their end."""

import gzip
import json

import pytest

from gtpo_verl.report.metrics_log import MetricsError
from gtpo_verl.report.runs import find_metrics, label, read_runs, run_name


def names(places):
    return [run.name for run in read_runs(places).runs]


@pytest.mark.parametrize(
    ("name", "algorithm", "seed"),
    [
        ("gtpo_v1-seed12", "gtpo_v1", 12),
        ("dapo", "dapo", None),
        ("grpo_s_v2_seed=3", "grpo_s_v2", 3),
        ("seed1", "seed1", None),
    ],
)
def test_algorithm_and_seed_by_folder_name(files, tmp_path, name, algorithm, seed):
    (run,) = read_runs([files.write_run(tmp_path / name, files.training(1))]).runs
    assert (run.name, run.algorithm, run.seed) == (name, algorithm, seed)


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


def test_seeds_come_together_in_order_and_dapo_first(files, tmp_path):
    given = ["gtpo_v1-seed10", "gtpo_v1-seed9", "dapo-seed2", "dapo-seed1"]
    groups = read_runs([files.write_run(tmp_path / name, files.training(1)) for name in given]).groups
    assert {algorithm: [run.seed for run in group] for algorithm, group in groups.items()} == {
        "dapo": [1, 2],
        "gtpo_v1": [9, 10],
    }
    assert list(groups) == ["dapo", "gtpo_v1"]


def test_every_kind_of_file_in_a_folder_is_a_run(files, tmp_path, monkeypatch):
    folder = files.write_run(tmp_path / "set/dapo-seed1", files.training(1)).parent
    (folder / "dapo-seed2.jsonl").write_bytes(files.training(1))
    (folder / "dapo-seed3.jsonl.gz").write_bytes(gzip.compress(files.training(1)))
    (folder / "dapo-seed4.csv").write_text("_step,actor/entropy\n1,0.5\n")
    monkeypatch.setenv("TENSORBOARD_DIR", str(folder / "dapo-seed5/tensorboard"))
    from verl.utils.tracking import _TensorboardAdapter

    logger = _TensorboardAdapter("project", "experiment")
    logger.log({"actor/entropy": 0.5}, 1)
    logger.finish()
    (folder / "report").mkdir()
    (folder / "report/report.json").write_text("{}")
    (folder / "notes.txt").write_text("")
    expected = [f"dapo-seed{seed}" for seed in range(1, 6)]
    assert names([folder]) == expected
    assert [run.log.series("actor/entropy") for run in read_runs([folder]).runs] == [{1: 0.2}] * 3 + [{1: 0.5}] * 2
    # Each by itself, and named twice.
    assert names([*sorted(folder.glob("dapo*")), folder]) == expected
    assert run_name(find_metrics([next(folder.glob("*/*/*tfevents*"))])[0]) == "dapo-seed5"


def test_verls_own_file_comes_before_a_trackers(files, tmp_path):
    run = files.write_run(tmp_path / "dapo-seed1", files.training(1))
    (run / "tensorboard").mkdir()
    (run / "tensorboard/events.out.tfevents.1").write_bytes(b"")
    (run / "validation.jsonl").write_bytes(files.training(7))
    assert find_metrics([run]) == [run / "metrics.jsonl"]


def test_what_a_run_was_started_for(files, tmp_path):
    whole = files.write_run(tmp_path / "dapo-seed1", files.training(1), files.training(2), planned=2)
    cut = files.write_run(tmp_path / "dapo-seed2", files.training(1), planned=3)
    unknown = files.write_run(tmp_path / "dapo-seed3", files.training(1))
    runs = read_runs([whole, cut, unknown])
    assert [runs.end_of(run) for run in runs.runs] == [2, 3, 2]  # without a word, that of the longest
    assert [runs.ended_early(run) for run in runs.runs] == [False, True, True]


def test_a_sets_record_says_what_runs_were_started_for(files, tmp_path):
    for seed in (1, 2):
        (tmp_path / f"dapo-seed{seed}.jsonl.gz").write_bytes(gzip.compress(files.training(4)))
    (tmp_path / "runs.json").write_text(json.dumps({"dapo-seed1": {"steps": 4}, "dapo-seed2": {"steps": 5}}))
    runs = read_runs([tmp_path])
    assert [runs.ended_early(run) for run in runs.runs] == [False, True]


@pytest.mark.parametrize("config", ["trainer: [", "- 1", "trainer: {total_training_steps: null}", ""])
def test_a_configuration_that_says_nothing_is_no_error(files, tmp_path, config):
    run = files.write_run(tmp_path / "dapo", files.training(1))
    (run / "config.yaml").write_text(config)
    assert read_runs([run]).runs[0].planned is None


def test_a_run_before_its_first_step_is_there(files, tmp_path):
    files.write_run(tmp_path / "dapo-seed1", files.training(1), planned=9)
    files.write_run(tmp_path / "dapo-seed2", planned=9)  # verl has opened the file
    files.write_run(tmp_path / "dapo-seed3", planned=9).joinpath("metrics.jsonl").unlink()
    runs = read_runs([tmp_path])
    assert [(run.name, run.log.last_step, runs.ended_early(run)) for run in runs.runs] == [
        ("dapo-seed1", 1, True),
        ("dapo-seed2", 0, True),
        ("dapo-seed3", 0, True),
    ]


def test_what_cannot_be_reported_is_named(files, tmp_path):
    good = files.write_run(tmp_path / "good", files.training(1))
    with pytest.raises(MetricsError, match="absent: no such run folder"):
        read_runs([good, tmp_path / "absent"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    for place in ("empty", "notes.txt"):
        with pytest.raises(MetricsError, match=rf"{place}: no metrics \(\.jsonl, .*tensorboard"):
            read_runs([good, tmp_path / place])
    with pytest.raises(ValueError, match="no runs"):
        read_runs([])
    with pytest.raises(MetricsError, match=r"idle/metrics\.jsonl: no metrics; has a step finished yet\?"):
        read_runs([files.write_run(tmp_path / "idle")])
    files.write_run(tmp_path / "broken", b"{}\n", files.training(1))
    with pytest.raises(MetricsError, match=r"broken/metrics\.jsonl: line 1"):
        read_runs([tmp_path])


def test_two_runs_of_one_name_are_not_mixed(files, tmp_path):
    for folder in ("a", "b"):
        files.write_run(tmp_path / folder / "dapo-seed1", files.training(1))
    with pytest.raises(MetricsError, match=r"a/dapo-seed1/.* are both called dapo-seed1: report them apart"):
        read_runs([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize("planned", [-1, 2**31, "many", float("nan")])
def test_a_number_of_steps_that_is_none_is_not_waited_for(files, tmp_path, planned):
    files.write_run(tmp_path / "dapo-seed1", files.training(1), files.training(2), planned=planned)
    (run,) = read_runs([tmp_path]).runs
    assert run.planned is None
