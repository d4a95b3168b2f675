"""What runs wrote, damaged or odd: it is read as it says, or refused by the name of its file; a report is never torn.

``GTPO_VERL_FUZZ_MINUTES`` gives the long budget (`budget`).
"""

from __future__ import annotations

import gzip
import json
import math
import os
import string
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from budget import tried
from damage import DAMAGE, JSON, damaged
from hypothesis import assume, example, given
from hypothesis import strategies as st
from made import step as made_step
from omegaconf import OmegaConf
from rich.console import Console

from gtpo_verl.inspect import dump
from gtpo_verl.inspect.responses import InspectError
from gtpo_verl.report import prompts, write_report
from gtpo_verl.report.contents import Contents
from gtpo_verl.report.metrics_log import MetricsError, MetricsLog, read_lines
from gtpo_verl.report.trackers import read_events, read_wandb_export
from gtpo_verl.run_folder.metrics_history import MetricsHistory

MEASURES = [
    *("actor/entropy", "response_length/mean", "critic/score/mean", "critic/rewards/mean", "timing_s/step"),
    *("gtpo/right_tokens_negative_frac", "actor/pg_clipfrac", "other", "val-core/a/acc/mean@8"),
    *(
        "val-core/a/acc/best@8/mean",
        "val-aux/a/acc/best@4/mean",
        "val-core/b/c/acc/mean@8",
        "val-core/b/c/acc/maj@8/mean",
    ),
]
NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([0, 1, -1, 0.5, 1e-320, 3e38, 1e39, 1.7e308, 10**400, True, None, "1", [1], {"a": 1}]),
)
STEPS = st.one_of(st.integers(0, 30), st.sampled_from([2**31 - 1, 2**31, 2**63, 10**30, -1, True, 1.0, "1", None]))


@contextmanager
def folder() -> Iterator[Path]:
    """Of one example, so that they do not see each other."""
    with tempfile.TemporaryDirectory(prefix="fuzz-report-") as made:
        yield Path(made)


def finite(value: Any) -> bool:
    """What counts as a logged number: one that single precision can hold."""
    return isinstance(value, int | float) and abs(value) <= 3.4028234663852886e38


def read_or_refused(read: Callable[[Path], MetricsLog], path: Path) -> MetricsLog | None:
    try:
        log = read(path)
    except MetricsError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error).strip() or path.suffix in (".csv", ".parquet")
        return None
    for step, values in log.steps.items():
        assert type(step) is int
        assert 0 <= step < 2**31
        assert all(isinstance(value, float) and math.isfinite(value) for value in values.values())
    assert list(log.steps) == sorted(log.steps)
    json.dumps([log.steps, log.last_step, sorted(log.names)])
    return log


# verl's own file ------------------------------------------------------------------------------------------------------

RECORDS = st.lists(
    st.tuples(
        st.integers(0, 50), st.dictionaries(st.one_of(st.sampled_from(MEASURES), st.text()), NUMBERS, max_size=4)
    ),
    max_size=6,
)


def lines_of(records: Any) -> bytes:
    return b"".join(json.dumps({"step": step, "data": data}).encode() + b"\n" for step, data in records)


@tried(80, share=2)
@given(records=RECORDS, packed=st.booleans())
def test_what_was_logged_is_read_and_the_last_counts(records: Any, packed: bool) -> None:
    expected: dict[int, dict[str, float]] = {}
    for step, data in records:
        expected.setdefault(step, {}).update({name: float(value) for name, value in data.items() if finite(value)})
    with folder() as here:
        path = here / f"metrics.jsonl{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(lines_of(records)) if packed else lines_of(records))
        log = read_or_refused(read_lines, path)
    assert log is not None
    assert log.steps == expected
    assert not log.truncated


@tried(80, share=2)
@given(
    records=RECORDS,
    line=st.one_of(JSON, st.binary(max_size=60), st.sampled_from([b"[" * 100_000, b'{"a":' * 9999])),
    place=st.integers(0, 6),
)
def test_a_line_of_another_form_is_named(records: Any, line: bytes, place: int) -> None:
    assume(b"\n" not in line and line.strip())
    lines = lines_of(records).splitlines(keepends=True)
    place = min(place, len(lines))
    with folder() as here:
        path = here / "metrics.jsonl"
        path.write_bytes(b"".join([*lines[:place], line + b"\n", *lines[place:]]))
        try:
            read_lines(path)
        except MetricsError as error:
            assert f"{path}: line {place + 1}: " in str(error)
            return
    record = json.loads(line)
    assert type(record["step"]) is int
    assert type(record["data"]) is dict


@tried(80, share=2)
@given(step=STEPS, data=st.dictionaries(st.text(), NUMBERS, max_size=3), last=st.booleans())
def test_a_step_is_a_whole_number_of_a_run(step: Any, data: Any, last: bool) -> None:
    with folder() as here:
        path = here / "metrics.jsonl"
        text = json.dumps({"step": step, "data": data}) + "\n" + ("" if last else '{"step": 1, "data": {}}\n')
        path.write_text(text, encoding="utf-8")
        log = read_or_refused(read_lines, path)
    assert (log is not None) is (type(step) is int and 0 <= step < 2**31)


@tried(80, share=2)
@given(records=RECORDS, damage=DAMAGE, packed=st.booleans())
def test_a_damaged_log_is_read_or_named(records: Any, damage: Any, packed: bool) -> None:
    content = lines_of(records)
    with folder() as here:
        path = here / f"metrics.jsonl{'.gz' if packed else ''}"
        path.write_bytes(damaged(gzip.compress(content) if packed else content, damage))
        read_or_refused(read_lines, path)


@tried(80, share=2)
@given(records=RECORDS, damage=DAMAGE, resumed=st.integers(0, 60), trains=st.booleans(), torn=st.booleans())
def test_the_lines_up_to_the_resumed_step_survive(
    records: Any, damage: Any, resumed: int, trains: bool, torn: bool
) -> None:
    content = damaged(lines_of(records), damage) if torn else lines_of(records)
    with folder() as here, pytest.MonkeyPatch.context() as patch:
        path = here / "metrics.jsonl"
        patch.setenv("VERL_FILE_LOGGER_PATH", str(path))
        path.write_bytes(content)
        trainer = OmegaConf.create({"logger": ["file"], "project_name": "p", "experiment_name": "e"})
        history = MetricsHistory.take(trainer, resumed, trains)
        kept = history._lines
        if trains and resumed == 0:
            assert kept == b""
            assert not content or (here / "metrics.jsonl.previous").read_bytes() == content
            return
        # A kill between taking and restoring: the next start finds the same.
        path.write_bytes(b"")
        assert MetricsHistory.take(trainer, resumed, trains)._lines == kept
    if not torn:
        expected = [(step, data) for step, data in records if step <= resumed or not trains]
        assert kept == lines_of(expected)


# Trackers' files ------------------------------------------------------------------------------------------------------

COLUMNS = st.dictionaries(
    st.one_of(st.sampled_from(["_step", "_runtime", *MEASURES]), st.text(max_size=5)),
    st.sampled_from(["numbers", "steps", "texts", "lists", "dates", "huge", "bools", "none", "bytes"]),
    max_size=4,
)
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "numbers": st.one_of(st.none(), st.floats()),
    "steps": st.integers(0, 50),
    "texts": st.one_of(st.none(), st.text(max_size=5), st.sampled_from(["1", "NaN", "inf", "1e999", "0x1", "1_0"])),
    "lists": st.lists(st.integers(0, 3), max_size=2),
    "dates": st.datetimes(),
    "huge": st.sampled_from([2**63 - 1, -(2**63), 0]),
    "bools": st.booleans(),
    "none": st.none(),
    "bytes": st.binary(max_size=3),
}


@st.composite
def exports(draw: Any) -> dict[str, list[Any]]:
    rows = draw(st.integers(0, 4))
    return {
        name: [draw(CELLS[kind]) for _ in range(rows)]
        for name, kind in draw(COLUMNS).items()
        if not any("\ud800" <= character <= "\udfff" for character in name)
    }


@tried(80, share=2)
@given(table=exports(), damage=DAMAGE, torn=st.booleans())
def test_an_export_is_read_or_named(table: dict[str, list[Any]], damage: Any, torn: bool) -> None:
    with folder() as here:
        path = here / "run.parquet"
        try:
            pyarrow.parquet.write_table(pyarrow.table(table), path)
        except (pyarrow.ArrowException, UnicodeEncodeError):
            assume(False)
        if torn:
            path.write_bytes(damaged(path.read_bytes(), damage))
        log = read_or_refused(read_wandb_export, path)
        if not torn and log is not None:
            assert "_step" in table


@tried(80, share=2)
@given(
    header=st.lists(st.one_of(st.sampled_from(["_step", "_step", *MEASURES, ""]), st.text(max_size=4)), max_size=4),
    rows=st.lists(
        st.lists(st.one_of(st.floats().map(str), st.text(max_size=6), st.integers().map(str)), max_size=5), max_size=4
    ),
    raw=st.one_of(st.none(), st.binary(max_size=80)),
)
def test_a_table_of_text_is_read_or_named(header: list[str], rows: list[list[str]], raw: bytes | None) -> None:
    with folder() as here:
        path = here / "run.csv"
        text = "\n".join(",".join(row) for row in [header, *rows])
        path.write_bytes(text.encode("utf-8", "surrogatepass") if raw is None else raw)
        read_or_refused(read_wandb_export, path)


def event_file(events: list[tuple[int, str, float]]) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    class Sink(list):
        def write(self, data: bytes) -> None:
            self.append(data)

    sink = Sink()
    writer = RecordWriter(sink)
    writer.write(Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
    for number, (step, tag, value) in enumerate(events):
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.write(Event(wall_time=2.0 + number, step=step, summary=summary).SerializeToString())
    return b"".join(sink)


@tried(40, share=2)
@given(
    events=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 40), st.sampled_from([-1, 2**31, 2**62])),
            st.sampled_from(MEASURES),
            st.floats(width=32),
        ),
        max_size=5,
    ),
    damage=DAMAGE,
    torn=st.booleans(),
)
def test_event_files_are_read_or_named(events: list[tuple[int, str, float]], damage: Any, torn: bool) -> None:
    with folder() as here:
        content = event_file(events)
        (here / "events.out.tfevents.1").write_bytes(damaged(content, damage) if torn else content)
        read_or_refused(read_events, here)


# Whole reports --------------------------------------------------------------------------------------------------------

PLAIN_NUMBERS = st.one_of(st.floats(-10, 10), NUMBERS)
NAMES = st.one_of(
    st.sampled_from(
        ["dapo", "gtpo_v1", "grpo_s_v2", "lr=$1e-3$", "a[bold]b", "[red]", "_x", "<b>", "a{b}", "ü…", "x$"]
    ),
    st.text(string.ascii_letters + string.punctuation.replace("/", "") + " \t\n\x01é\U0001f600\udcff", max_size=8),
).filter(lambda name: name.strip() not in ("", ".", ".."))
RUNS = st.dictionaries(
    st.tuples(NAMES, st.one_of(st.none(), st.integers(0, 7))),
    st.lists(
        st.tuples(st.integers(0, 12), st.dictionaries(st.sampled_from(MEASURES), PLAIN_NUMBERS, max_size=6)), max_size=5
    ),
    min_size=1,
    max_size=4,
)
SEEDS = st.lists(
    st.lists(
        st.tuples(st.integers(0, 4), st.dictionaries(st.sampled_from(MEASURES), PLAIN_NUMBERS, max_size=6)), max_size=4
    ),
    min_size=12,
    max_size=12,
).map(lambda runs: {(("dapo", "gtpo_v1")[index % 2], index // 2): run for index, run in enumerate(runs)})


def write_runs(here: Path, runs: Any, planned: int | None = None) -> list[Path]:
    places = []
    for (name, seed), records in runs.items():
        place = here / (name if seed is None else f"{name}-seed{seed}")
        place.mkdir()
        (place / "metrics.jsonl").write_bytes(lines_of(records))
        if planned is not None:
            (place / "config.yaml").write_text(yaml.safe_dump({"trainer": {"total_training_steps": planned}}))
        places.append(place)
    return places


@tried(40, share=4)
@given(runs=st.one_of(RUNS, SEEDS), planned=st.one_of(st.none(), st.integers(-1, 20), st.just(2**40)))
def test_any_runs_are_compared_or_named(runs: Any, planned: Any) -> None:
    with folder() as here:
        places = write_runs(here, runs, planned)
        try:
            contents = Contents.of(places)
        except MetricsError as error:
            assert any(str(place) in str(error) for place in places)
            return
        found = contents.comparison
        for final in found.finals:
            assert final.mean is None or math.isfinite(final.mean)
            assert final.low is None or final.low <= final.mean <= final.high  # type: ignore[operator]
        for difference in found.differences:
            assert math.isfinite(difference.mean)
            assert difference.p is None or 0 <= difference.p <= difference.p_holm <= 1  # type: ignore[operator]
        contents.fingerprints()


@tried(2, share=6)
@given(runs=RUNS)
@example(runs={("lr=$1e-3$", 1): [(1, {"actor/entropy": 0.5})], ("a[bold]b", 1): [(1, {"actor/entropy": 1})]})
def test_a_report_of_any_runs_is_whole_and_names_them(runs: Any) -> None:
    with folder() as here:
        places = write_runs(here, runs)
        shown = Console(file=StringIO(), width=400)
        try:
            write_report(places, here / "report", console=shown)
        except MetricsError as error:
            assert any(str(place) in str(error) for place in places)
            assert not (here / "report").exists()
            return
        numbers = json.loads((here / "report" / "report.json").read_text(encoding="utf-8"), parse_constant=refuse)
        # What is no text, of bytes that are no UTF-8, is made one.
        written = {os.fsencode(place.name).decode("utf-8", "replace") for place in places}
        assert {run["run"] for run in numbers["runs"]} == written
        assert {path.name for path in (here / "report").iterdir()} >= {"curves.png", "curves.svg", "report.html"}
        page = (here / "report" / "report.html").read_text(encoding="utf-8")
        assert page.rstrip().endswith("</html>")
        text = shown.file.getvalue()  # type: ignore[attr-defined]
        for name, _ in runs:
            if name.isprintable() and not name.startswith(("dapo", "grpo", "gtpo")):
                assert name in text, name


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


# Beside the metrics ---------------------------------------------------------------------------------------------------

ROW = {"uid": "a_0", "input": "What is 1+1?", "acc": 1.0}
RESPONSES = st.lists(
    st.one_of(
        JSON,
        st.fixed_dictionaries(
            {
                "uid": st.one_of(st.text(), st.integers()),
                "input": st.one_of(st.text(), st.none(), st.integers(), st.just("\ud800"), st.just("What is 1+1?")),
                "acc": NUMBERS,
            }
        ).map(lambda row: json.dumps(row).encode()),
    ),
    max_size=4,
)
CONFIGS = st.one_of(
    st.binary(max_size=40),
    st.fixed_dictionaries(
        {
            "data": st.one_of(
                st.none(),
                st.lists(st.none(), max_size=1),
                st.fixed_dictionaries({"val_files": st.sampled_from(["val", "absent", None, 3, ["val"], [None], {}])}),
            )
        }
    ).map(lambda config: json.dumps(config).encode()),
)
QUESTIONS = st.lists(
    st.one_of(
        st.none(),
        st.lists(st.fixed_dictionaries({"content": st.one_of(st.none(), st.just("What is 1+1?"))}), max_size=2),
    ),
    max_size=3,
)


@tried(60, share=2)
@given(responses=RESPONSES, config=CONFIGS, questions=QUESTIONS, damage=st.one_of(st.none(), DAMAGE))
def test_accuracies_of_prompts_are_found_or_left_out(
    responses: Any, config: bytes, questions: Any, damage: Any
) -> None:
    with folder() as here:
        (here / "validation").mkdir()
        (here / "validation" / "3.jsonl").write_bytes(b"\n".join(responses))
        val = here / "val"
        kind = pyarrow.list_(pyarrow.struct([("content", pyarrow.string())]))
        table = pyarrow.table({"prompt": pyarrow.array(questions, kind), "data_source": ["x"] * len(questions)})
        pyarrow.parquet.write_table(table, val)
        if damage is not None:
            val.write_bytes(damaged(val.read_bytes(), damage))
        (here / "config.yaml").write_bytes(config.replace(b'"val"', json.dumps(str(val)).encode()))
        found = prompts.accuracies(here, 3)
        assert all(math.isfinite(value) for source in found.values() for value in source.values())


@tried(60, share=2)
@given(damage=DAMAGE)
def test_a_damaged_dump_of_tokens_is_read_or_named(damage: Any) -> None:
    with folder() as here:
        path = dump.write(made_step(groups=1, size=2, length=6), here, 1e9)
        path.write_bytes(damaged(path.read_bytes(), damage))
        try:
            dump.read(path)
        except InspectError as error:
            assert str(path) in str(error)
