"""Reading verl's metrics files, damaged ones too."""

import orjson
import pytest

from gtpo_verl.report import metrics_log
from gtpo_verl.report.metrics_log import MetricsError, read_metrics


def write(files, tmp_path, *lines):
    return files.write_run(tmp_path / "dapo-seed1", *lines)


def test_values_by_step_and_null_and_text_left_out(files, tmp_path):
    run = write(files, tmp_path, files.training(2), files.line(1, a=1, b=None, c="text", d=True, e=[1]))
    log = read_metrics(run)
    assert list(log.steps) == [1, 2]
    assert log.steps[1] == {"a": 1.0, "d": 1.0}
    assert not log.truncated


def test_what_verls_logger_writes_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    from verl.utils.tracking import FileLogger

    logger = FileLogger("project", "experiment")
    logger.log({"actor/entropy": 0.5, "critic/score/mean": float("nan")}, 3)
    logger.finish()
    assert read_metrics(tmp_path).steps == {3: {"actor/entropy": 0.5}}
    assert orjson.loads((tmp_path / "metrics.jsonl").read_bytes())["step"] == 3


def test_a_validation_logged_again_after_a_resume_is_merged(files, tmp_path):
    again = files.line(1, **{"val": 0.75})
    log = read_metrics(write(files, tmp_path, files.training(1, val=0.5), again))
    assert log.series("val") == {1: 0.75}
    assert log.series("actor/entropy") == {1: 0.2}


def test_a_cut_off_last_line_is_tolerated_and_said(files, tmp_path):
    log = read_metrics(write(files, tmp_path, files.training(1), files.training(2)[:-20]))
    assert list(log.steps) == [1]
    assert log.truncated


def test_a_last_line_that_lacks_only_its_newline_counts(files, tmp_path):
    log = read_metrics(write(files, tmp_path, files.training(1), files.training(2).rstrip()))
    assert list(log.steps) == [1, 2]
    assert not log.truncated


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no metrics"),
        (b"\n\n", "no metrics"),
        (b'{"step": 1, "da', "no metrics but a cut-off line"),
        (b'{"step": 1}\n', r"line 1: not of the form"),
        (b"[1]\n", r"line 1: not of the form"),
        (b'{"step": 1, "data": {"a": 1}}\n\xff\xfe\n{"step": 2, "data": {}}\n', r"line 2: not JSON"),
    ],
)
def test_a_damaged_file_is_named(files, tmp_path, content, words):
    run = write(files, tmp_path, content)
    with pytest.raises(MetricsError, match=rf"metrics\.jsonl: {words}"):
        read_metrics(run)


def test_a_missing_run_or_file_is_named(tmp_path):
    with pytest.raises(MetricsError, match="absent: no such run folder"):
        read_metrics(tmp_path / "absent")
    with pytest.raises(MetricsError, match=r"no metrics\.jsonl, and other \.jsonl files are none"):
        read_metrics(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(MetricsError, match=r"are a\.jsonl, b\.jsonl"):
        read_metrics(tmp_path)


def test_verls_own_file_name_is_found(files, tmp_path):
    (tmp_path / "experiment.jsonl").write_bytes(files.training(1))
    assert read_metrics(tmp_path).path == tmp_path / "experiment.jsonl"


def test_the_highest_k_that_all_runs_have_is_taken(files, tmp_path):
    one = files.validation(0, **{"best@2": 0.5, "best@4": 0.6, "best@8": 0.7})
    other = files.validation(0, **{"best@2": 0.1, "best@4": 0.2})
    logs = [read_metrics(files.write_run(tmp_path / name, line)) for name, line in (("a", one), ("b", other))]
    shared = metrics_log.best_of_k(logs)
    assert (shared.k, shared.series(logs[0]), shared.series(logs[1])) == (4, {0: 0.6}, {0: 0.2})
    assert metrics_log.best_of_k(logs[:1]).k == 8
    assert metrics_log.best_of_k(logs[:1]).series(logs[0]) == {0: 0.7}


def test_validation_is_averaged_over_data_sources(files, tmp_path):
    lines = [files.validation(0, source=s, **{"best@8": v}) for s, v in (("rg/a", 0.2), ("rg/b", 0.4))]
    log = read_metrics(write(files, tmp_path, *lines, files.validation(5, source="rg/a", **{"best@8": 1.0})))
    metric = metrics_log.best_of_k([log])
    assert metric.series(log) == {0: pytest.approx(0.3)}


def test_without_validation_there_is_no_metric(files, tmp_path):
    assert metrics_log.best_of_k([read_metrics(write(files, tmp_path, files.training(1)))]) is None


def test_reward_falls_back_to_rewards(files, tmp_path):
    log = read_metrics(write(files, tmp_path, files.line(1, **{"critic/rewards/mean": 0.25})))
    assert metrics_log.reward(log) == {1: 0.25}
    both = read_metrics(write(files, tmp_path, files.training(1, reward=0.5)))
    assert metrics_log.reward(both) == {1: 0.5}
