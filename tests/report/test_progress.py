"""The display of a running training."""

import io

import pytest
from rich.console import Console

from gtpo_verl.report.progress import MetricsTail, ProgressDisplay


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def metrics(tmp_path):
    return tmp_path / "metrics.jsonl"


def append(path, *lines):
    with path.open("ab") as handle:
        handle.write(b"".join(lines))


def plain_display(clock):
    return ProgressDisplay(Console(file=io.StringIO(), force_terminal=False, width=120), clock)


def test_tail_gives_each_whole_line_once(files, metrics):
    tail = MetricsTail(metrics)
    assert tail.read() == []
    append(metrics, files.line(1, a=1), files.line(2, a=2)[:9])
    assert tail.read() == [(1, {"a": 1.0})]
    assert tail.read() == []
    append(metrics, files.line(2, a=2)[9:])
    assert tail.read() == [(2, {"a": 2.0})]


def test_tail_starts_over_when_the_file_is_written_anew(files, metrics):
    tail = MetricsTail(metrics)
    append(metrics, files.line(1, a=1), files.line(2, a=2))
    tail.read()
    metrics.write_bytes(files.line(1, a=5))
    assert tail.read() == [(1, {"a": 5.0})]


def test_tail_skips_what_it_cannot_read(files, metrics):
    tail = MetricsTail(metrics)
    append(metrics, b"noise\n", files.line(1, a=1))
    assert tail.read() == [(1, {"a": 1.0})]


def test_plain_lines_one_per_step_with_time_left(files, metrics):
    clock = Clock()
    display = plain_display(clock)
    display.update("dapo", metrics, 10)
    append(metrics, files.validation(0, **{"best@8": 0.5}))
    display.update("dapo", metrics, 10)
    for step in (1, 2):
        clock.now += 30
        append(metrics, files.training(step, reward=step / 4, entropy=0.2))
        display.update("dapo", metrics, 10)
        display.update("dapo", metrics, 10)
    assert display._console.file.getvalue().splitlines() == [
        "dapo: step 1/10  reward 0.250  entropy 0.200",
        "dapo: step 2/10  reward 0.500  entropy 0.200  ETA 4:00",
    ]


def test_steps_from_before_a_resume_do_not_count_as_speed(files, metrics):
    clock = Clock()
    display = plain_display(clock)
    append(metrics, *(files.training(step) for step in range(1, 24)))  # by the run that was stopped
    display.update("dapo", metrics, 30, resumed_step=20)
    assert display._console.file.getvalue() == ""
    metrics.write_bytes(b"".join(files.training(step) for step in range(1, 21)))  # what the resumed run keeps
    display.update("dapo", metrics, 30, resumed_step=20)
    assert display.seconds_left(30) is None
    for step in (21, 22):
        clock.now += 6
        append(metrics, files.training(step))
        display.update("dapo", metrics, 30, resumed_step=20)
    assert display.seconds_left(30) == pytest.approx(8 * 6)
    assert [line[:13] for line in display._console.file.getvalue().splitlines()] == ["dapo: step 21", "dapo: step 22"]


def test_an_unknown_total_is_left_out(files, metrics):
    display = plain_display(Clock())
    display.update("dapo", metrics, None)
    append(metrics, files.training(3))
    display.update("dapo", metrics, None)
    assert display._console.file.getvalue().startswith("dapo: step 3  reward")


@pytest.mark.parametrize("total", [10, None])
def test_a_terminal_gets_a_bar(files, metrics, total):
    out = io.StringIO()
    with ProgressDisplay(
        Console(file=out, force_terminal=True, _environ={"TERM": "xterm"}, width=120), Clock()
    ) as display:
        display.update("gtpo_v1", metrics, total)
        append(metrics, files.training(4, reward=0.75))
        display.update("gtpo_v1", metrics, total)
    shown = out.getvalue()
    assert "starting" in shown
    assert f"4/{total or '?'}" in shown
    assert "reward 0.750" in shown
    assert "\x1b[?25h" in shown  # the cursor is back


def test_a_spinner_says_what_a_run_waits_for_until_there_is_a_step(files, metrics):
    out = io.StringIO()
    with ProgressDisplay(
        Console(file=out, force_terminal=True, _environ={"TERM": "xterm"}, width=120), Clock()
    ) as display:
        display.wait("checking the configuration")
        display.wait("starting Ray")
        display.update("dapo", metrics, 10)
        display.wait("starting vLLM")
        display.update("dapo", metrics, 10)
        display._bar.refresh()  # a thread does so ten times a second
        append(metrics, files.training(1, reward=0.75))
        display.wait("ending")
        display.update("dapo", metrics, 10)
    shown = out.getvalue()
    assert "starting Ray" in shown
    assert "starting vLLM" in shown
    assert "reward 0.750" in shown
    assert "ending" not in shown
    assert "\x1b[?25h" in shown  # the cursor is back


def test_no_spinner_where_there_is_no_terminal(files, metrics):
    display = plain_display(Clock())
    display.wait("starting Ray")
    display.update("dapo", metrics, 10)
    assert display._console.file.getvalue() == ""


def test_a_second_run_starts_afresh(files, tmp_path):
    display = plain_display(Clock())
    for name in ("dapo", "gtpo_v1"):
        display.update(name, tmp_path / name / "metrics.jsonl", 5)
        run = files.write_run(tmp_path / name, files.training(1))
        display.update(name, run / "metrics.jsonl", 5)
    assert [line[:12] for line in display._console.file.getvalue().splitlines()] == ["dapo: step 1", "gtpo_v1: ste"]
