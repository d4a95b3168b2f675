"""Reading what verl's file logger writes, damaged files too."""

import gzip

import orjson
import pytest

from gtpo_verl.report.metrics_log import MetricsError, read_lines


def write(tmp_path, *lines, name="metrics.jsonl"):
    content = b"".join(lines)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return tmp_path / name


def test_values_by_step_and_null_and_text_left_out(files, tmp_path):
    log = read_lines(write(tmp_path, files.training(2), files.line(1, a=1, b=None, c="text", d=True, e=[1])))
    assert list(log.steps) == [1, 2]
    assert log.steps[1] == {"a": 1.0, "d": 1.0}
    assert not log.truncated


def test_what_verls_logger_writes_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    from verl.utils.tracking import FileLogger

    logger = FileLogger("project", "experiment")
    logger.log({"actor/entropy": 0.5, "critic/score/mean": float("nan")}, 3)
    logger.finish()
    assert read_lines(tmp_path / "metrics.jsonl").steps == {3: {"actor/entropy": 0.5}}
    assert orjson.loads((tmp_path / "metrics.jsonl").read_bytes())["step"] == 3


def test_a_validation_logged_again_after_a_resume_is_merged(files, tmp_path):
    again = files.line(1, **{"val": 0.75})
    log = read_lines(write(tmp_path, files.training(1, val=0.5), again))
    assert log.series("val") == {1: 0.75}
    assert log.series("actor/entropy") == {1: 0.2}


def test_a_cut_off_last_line_is_tolerated_and_said(files, tmp_path):
    log = read_lines(write(tmp_path, files.training(1), files.training(2)[:-20]))
    assert list(log.steps) == [1]
    assert log.truncated


def test_a_last_line_that_lacks_only_its_newline_counts(files, tmp_path):
    log = read_lines(write(tmp_path, files.training(1), files.training(2).rstrip()))
    assert list(log.steps) == [1, 2]
    assert not log.truncated


def test_a_gzipped_file_is_the_same(files, tmp_path):
    lines = [files.training(1), files.training(2)]
    packed = read_lines(write(tmp_path, *lines, name="dapo-seed1.jsonl.gz"))
    assert packed.steps == read_lines(write(tmp_path, *lines)).steps
    assert not packed.truncated


def test_gzipped_files_put_together_are_one(files, tmp_path):
    path = tmp_path / "dapo.jsonl.gz"
    path.write_bytes(gzip.compress(files.training(1)) + gzip.compress(files.training(2)))
    assert list(read_lines(path).steps) == [1, 2]


def test_a_gzipped_file_whose_end_is_missing_counts_as_far_as_it_goes(files, tmp_path):
    path = tmp_path / "dapo.jsonl.gz"
    packed = gzip.compress(b"".join(files.training(step, noise=hash(str(step))) for step in range(1, 2000)))
    path.write_bytes(packed[: len(packed) // 2])
    log = read_lines(path)
    assert 500 < log.last_step < 1500
    assert list(log.steps) == list(range(1, log.last_step + 1))
    assert log.truncated


def test_values_of_prompts_stand_apart(files, tmp_path):
    log = read_lines(write(tmp_path, files.training(4), files.line(4, **{"val-prompts/task": {"a1": 0.5, "b2": None}})))
    assert log.prompts == {4: {"task": {"a1": 0.5}}}
    assert not any("prompts" in name for name in log.names)


def test_values_of_prompts_alone_are_no_step(files, tmp_path):
    # A run that was cut off in its last validation, after its responses were written and before its metrics were.
    log = read_lines(write(tmp_path, files.training(3), files.line(4, **{"val-prompts/task": {"a1": 0.5}})))
    assert (log.last_step, log.prompts) == (3, {4: {"task": {"a1": 0.5}}})


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_file_that_was_only_opened_has_no_steps(tmp_path, content):
    log = read_lines(write(tmp_path, content))
    assert (log.steps, log.last_step, log.truncated) == ({}, 0, False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"step": 1}\n', r"line 1: not of the form"),
        (b"[1]\n", r"line 1: not of the form"),
        (b'{"step": 1, "data": {"a": 1}}\n\xff\xfe\n{"step": 2, "data": {}}\n', r"line 2: not JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, words):
    with pytest.raises(MetricsError, match=rf"metrics\.jsonl: {words}"):
        read_lines(write(tmp_path, content))


def test_a_file_that_is_not_gzip_is_named(tmp_path):
    path = tmp_path / "dapo.jsonl.gz"
    for content in (b'{"step": 1, "data": {}}\n', gzip.compress(b"x" * 9000)[:-30] + b"y" * 30):
        path.write_bytes(content)
        with pytest.raises(MetricsError, match=r"dapo\.jsonl\.gz: not a gzip file"):
            read_lines(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(MetricsError, match=r"absent\.jsonl: cannot be read \(No such file"):
        read_lines(tmp_path / "absent.jsonl")
