"""Runs side by side, what is skipped, what is kept, and what may not be mixed. A short program stands for the training;
tests/e2e/test_reproduction.py has the real one."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.reproduction import __main__ as command
from benchmarks.reproduction import provenance
from benchmarks.reproduction.manifest import Manifest, Planned, Scale
from benchmarks.reproduction.results import _KEPT as KEPT
from benchmarks.reproduction.results import Results
from benchmarks.reproduction.schedule import Schedule
from gtpo_verl.report import measures
from gtpo_verl.report.metrics_log import MetricsLog, read_lines

# Writes when it began and ended, on which card, and one line of metrics; `seconds=`, `code=` among its arguments.
PROGRAM = """
import json, os, pathlib, sys, time
options = dict(argument.split("=", 1) for argument in sys.argv[1:])
folder = pathlib.Path(options["gtpo_verl.run_dir"][1:-1].replace("\\\\'", "'"))
began = time.monotonic()
(folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"actor/entropy": 0.5}}) + "\\n")
time.sleep(float(options.get("seconds", 0)))
times = {"began": began, "ended": time.monotonic(), "card": os.environ.get("CUDA_VISIBLE_DEVICES")}
(folder / "times.json").write_text(json.dumps(times))
sys.exit(int(options.get("code", 0)))
"""


VALIDATED = {"mean": "", "best": "/mean", "maj": "/mean"}


@pytest.fixture(autouse=True)
def signals():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    signal.alarm(0)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def planned(count, *overrides):
    return [Planned(f"dapo-seed{seed}", overrides) for seed in range(1, count + 1)]


def schedule(tmp_path, scale):
    return Schedule([sys.executable, "-c", PROGRAM], scale, tmp_path / "a, b=c's")


def times(tmp_path):
    return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/*/times.json"))]


def most_at_once(spans):
    return max(sum(other["began"] <= one["began"] < other["ended"] for other in spans) for one in spans)


def test_so_many_run_on_each_card(tmp_path):
    ended = list(schedule(tmp_path, Scale(2, 2, seconds_apart=0)).finished(planned(7, "seconds=1")))
    assert sorted(run.name for run, _, _ in ended) == [f"dapo-seed{seed}" for seed in range(1, 8)]
    by_card = {card: [one for one in times(tmp_path) if one["card"] == card] for card in ("0", "1")}
    assert [len(spans) for spans in by_card.values()] in ([4, 3], [3, 4])
    assert all(most_at_once(spans) <= 2 for spans in by_card.values())
    assert most_at_once(times(tmp_path)) > 2


def test_without_cards_the_environment_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    list(schedule(tmp_path, Scale(0, 1, seconds_apart=0)).finished(planned(2, "seconds=0.5")))
    assert [one["card"] for one in times(tmp_path)] == ["5", "5"]
    assert most_at_once(times(tmp_path)) == 1


def test_starts_on_a_card_are_apart_and_on_two_cards_at_once(tmp_path):
    list(schedule(tmp_path, Scale(2, 3, seconds_apart=2.0)).finished(planned(4, "seconds=5")))
    began = {card: sorted(one["began"] for one in times(tmp_path) if one["card"] == card) for card in ("0", "1")}
    assert all(second - first > 1.5 for first, second in began.values())
    assert most_at_once(times(tmp_path)) == 4


def test_a_run_that_fails_stops_no_other(tmp_path):
    runs = [*planned(1, "code=3"), Planned("gtpo_v1-seed1", ())]
    ended = {run.name: code for run, code, _ in schedule(tmp_path, Scale(0, 1, seconds_apart=0)).finished(runs)}
    assert ended == {"dapo-seed1": 3, "gtpo_v1-seed1": 0}


def test_a_signal_ends_the_runs_and_starts_no_more(tmp_path):
    started = schedule(tmp_path, Scale(0, 2, seconds_apart=0))
    running = started.finished(planned(4, "seconds=300"))
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.alarm(3)
    began = time.monotonic()
    assert [(run.name, code) for run, code, _ in running] == [("dapo-seed1", -15), ("dapo-seed2", -15)]
    assert time.monotonic() - began < 60
    assert started.stopped_by == signal.SIGTERM


def make_run(folder, *steps, cut_off=b""):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in steps]
    (folder / "metrics.jsonl").write_bytes("".join(lines).encode() + cut_off)


def test_what_is_kept_of_a_run(tmp_path):
    (run,) = planned(1, "algorithm=dapo")
    kept = {"actor/entropy": 0.5, "timing_s/step": 3.0, "val-aux/a/b/acc/best@2/mean": 1.0}
    data = {**kept, "actor/perf/max_memory_allocated_gb": 1.0, "timing_s/adv": 1.0, "val-aux/a/b/reward/mean@2": 1.0}
    make_run(tmp_path / run.name, (1, data), cut_off=b'{"step": 2, "da')
    results = Results(tmp_path / "results")
    results.keep(run, tmp_path, source="abc", steps=9)
    log = read_lines(results.log(run))
    assert log.steps == {1: kept}
    assert results.record() == {"dapo-seed1": {"source": "abc", "steps": 9, "overrides": ["algorithm=dapo"]}}
    first = results.log(run).read_bytes()
    results.keep(run, tmp_path, source="abc", steps=9)
    assert results.log(run).read_bytes() == first


def test_every_measure_of_a_report_is_kept():
    read = []

    class Log(MetricsLog):
        def series(self, name):
            read.append(name)
            return {}

    log = Log(Path("metrics.jsonl"), {0: {f"val-core/t/acc/{one}@8{end}": 1.0 for one, end in VALIDATED.items()}})
    for measure in [*measures.curves([log]), *measures.diagnostics([log]), *measures.final_measures([log])]:
        measure.series(log)
    assert len(set(read)) > 12
    assert [name for name in read if not KEPT.match(name)] == []


def test_a_run_that_logged_nothing_is_not_forgotten(tmp_path):
    results = Results(tmp_path / "results")
    results.keep(*planned(1), tmp_path, source="abc")
    assert gzip.decompress(results.log(*planned(1)).read_bytes()) == b""


def test_done_is_what_has_all_steps_here_or_in_the_results(tmp_path):
    one, two, three = planned(3)
    results = Results(tmp_path / "results")
    make_run(tmp_path / one.name, (1, {"a": 1}), (2, {"a": 1}))
    make_run(tmp_path / two.name, (1, {"a": 1}))
    assert [results.has(run, tmp_path, 2) for run in (one, two, three)] == [True, False, False]
    make_run(tmp_path / "elsewhere" / two.name, (1, {"a": 1}), (2, {"a": 1}))
    results.keep(two, tmp_path / "elsewhere", source="abc")
    assert results.has(two, tmp_path, 2)
    # Cut off in its last validation.
    lines = [(1, {"a": 1}), (2, {"val-prompts/task": {"a1": 0.5}})]
    text = "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in lines)
    results.log(three).write_bytes(gzip.compress(text.encode()))
    assert not results.has(three, tmp_path, 2)


def test_a_set_is_made_by_one_process_at_a_time(tmp_path):
    results = Results(tmp_path / "results")
    with pytest.raises(ValueError, match="results: a start of this set is at work there"):
        Results(results.folder)


def test_under_nohup_a_hangup_ends_nothing(tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    schedule(tmp_path, Scale(0, 1, seconds_apart=0))
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def manifest(**changes):
    given = {"set": "s", "steps": 1, "seeds": [1, 2], "overrides": [], "runs": {"dapo": {}}, "scales": {}}
    return Manifest(**{**given, **changes})


def test_other_versions_are_refused(tmp_path):
    results = Results(tmp_path)
    provenance.check(manifest(versions={"verl": "0.9.1"}), "abc", results)
    with pytest.raises(ValueError, match=r"for verl 0\.0\.1; installed is 0\.9\.1"):
        provenance.check(manifest(versions={"verl": "0.0.1"}), "abc", results)
    with pytest.raises(ValueError, match="for no-such-package 1; installed is nothing"):
        provenance.check(manifest(versions={"no-such-package": "1"}), "abc", results)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b'{"dapo-seed1": 1}', b'{"dapo-seed1": {"steps"'])
def test_a_damaged_record_is_named(tmp_path, content):
    results = Results(tmp_path)
    (tmp_path / "runs.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"runs\.json: "):
        provenance.check(manifest(), "abc", results)


def test_results_that_do_not_say_their_code_are_not_added_to(tmp_path):
    results = Results(tmp_path)
    (tmp_path / "runs.json").write_text('{"dapo-seed1": {"steps": 9}}')
    with pytest.raises(ValueError, match="dapo-seed1 was made with other code"):
        provenance.check(manifest(), "abc", results)


def test_results_of_other_code_are_not_added_to(tmp_path):
    results = Results(tmp_path / "results")
    results.keep(*planned(1), tmp_path, source="abc", revision="r1")
    provenance.check(manifest(), "abc", results)
    with pytest.raises(ValueError, match=r"dapo-seed1 was made with other code \(revision r1\)"):
        provenance.check(manifest(alike=["def"]), "def", results)
    provenance.check(manifest(alike=["abc"]), "def", results)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (["lr=2"], "lr=1, lr=2"),
        ([], "lr=1"),
        (["lr=1", "b=1"], "b=1"),
    ],
    ids=["other", "fewer", "more"],
)
def test_results_of_other_settings_are_not_added_to(tmp_path, now, words):
    (run,) = planned(1, "lr=1", "trainer.project_name=another_set")
    results = Results(tmp_path / "results")
    results.keep(run, tmp_path, source="abc", revision="r1")
    same = planned(2, "trainer.project_name=s", "lr=1")
    provenance.check(manifest(), "abc", results, same)
    with pytest.raises(ValueError, match=rf"results: dapo-seed1 was made with other settings: {words}$"):
        provenance.check(manifest(), "abc", results, planned(2, "trainer.project_name=s", *now))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of one commit, with a package and a document."""
    root = tmp_path / "repository"
    for folder in ("gtpo_verl", "gtpo_verl/report", "configs", "docs"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.py").write_text("1\n")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(provenance, "ROOT", root)
    return root


def head(repository):
    return subprocess.run(["git", "-C", repository, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


def test_a_revision_is_that_of_the_package_whatever_documents_and_report_say(repository, tmp_path):
    pinned, results = manifest(revision=head(repository)), Results(tmp_path / "results")
    (repository / "docs/a.py").write_text("2\n")
    (repository / "gtpo_verl/report/a.py").write_text("2\n")
    provenance.check(pinned, "abc", results)
    (repository / "configs/a.py").write_text("2\n")
    with pytest.raises(ValueError, match=r"configs/a\.py"):
        provenance.check(pinned, "abc", results)
    with pytest.raises(ValueError, match="no-such-revision"):
        provenance.check(manifest(revision="no-such-revision"), "abc", results)


def test_provenance_says_commit_and_code(repository):
    before = provenance.provenance(manifest(versions={"verl": "0.9.1"}))
    assert before["revision"] == head(repository)
    assert before["versions"] == {"verl": "0.9.1"}
    for beside in ("docs/a.py", "gtpo_verl/report/a.py"):
        (repository / beside).write_text("2\n")
    assert provenance.source_digest() == before["source"]
    (repository / "gtpo_verl/a.py").write_text("2\n")
    after = provenance.provenance(manifest())
    assert after["source"] != before["source"]
    assert after["revision"] == head(repository) + "-dirty"


def test_a_finished_set_starts_nothing_and_is_reported(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    validated = {f"val-core/{source}/acc/mean@8": 0.5 for source in ("sums", "sorts")}
    for run in planned(2):
        make_run(tmp_path / "runs/s" / run.name, (1, {"actor/entropy": 0.5, **validated}))
    results = Results(tmp_path / "results")
    # `prepare` would fail, if it were run.
    given = manifest(prepare=["no-such-command"], sources=["sums"])
    assert command.reproduce(given, Scale(0, 1, seconds_apart=0), results) == 0
    assert "s: 2 runs, 2 done" in capfd.readouterr().out
    assert sorted(path.name for path in results.folder.iterdir()) == [
        "dapo-seed1.jsonl.gz",
        "dapo-seed2.jsonl.gz",
        "report",
        "runs.json",
    ]
    assert (results.folder / "report/report.html").exists()
    assert json.loads((results.folder / "report/report.json").read_text())["sources"] == ["sums"]


@pytest.mark.parametrize("says", [True, False], ids=["says its code", "of an earlier version"])
def test_steps_that_a_killed_start_did_not_put_on_record_are(tmp_path, monkeypatch, says):
    monkeypatch.chdir(tmp_path)
    results = Results(tmp_path / "results")
    scale = Scale(0, 1, seconds_apart=0)
    given = manifest(steps=2, seeds=[1], alike=["abc", "def"])
    (run,) = given.planned(scale)
    make_run(tmp_path / "earlier" / run.name, (1, {"actor/entropy": 0.5}))
    results.keep(run, tmp_path / "earlier", source="abc", revision="r1")
    make_run(tmp_path / "runs/s" / run.name, *((step, {"actor/entropy": 0.5}) for step in (1, 2)))
    if says:
        results.begin(run, tmp_path / "runs/s", source="def", revision="r2")
    assert command.reproduce(given, scale, results) == 0
    assert read_lines(results.log(run)).last_step == 2
    facts = results.record()[run.name]
    assert ((facts["source"], facts["revision"]) == ("def", "r2")) == says


@pytest.mark.parametrize("holds", ["a checkpoint", "all steps", "a step", "nothing"])
def test_what_another_start_made_is_not_mixed_with_other_code_or_settings(tmp_path, holds):
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    one, two = planned(2, "lr=1")
    (runs / two.name / "checkpoints").mkdir(parents=True)
    results.begin(two, runs, source="abc", revision="r1")
    if holds == "a checkpoint":
        (runs / two.name / "checkpoints/latest_checkpointed_iteration.txt").write_text("1")
    elif holds != "nothing":
        make_run(runs / two.name, (2 if holds == "all steps" else 1, {"actor/entropy": 0.5}))
    provenance.check(manifest(steps=2), "abc", results, [one, two], runs)
    provenance.check(manifest(steps=2, alike=["abc"]), "def", results, [one, two], runs)
    for source, lr, words in (
        ("def", "lr=1", r"runs: dapo-seed2 was made with other code \(revision r1\)"),
        ("abc", "lr=2", r"runs: dapo-seed2 was made with other settings: lr=1, lr=2"),
    ):
        if holds in ("a checkpoint", "all steps"):
            with pytest.raises(ValueError, match=words):
                provenance.check(manifest(steps=2), source, results, planned(2, lr), runs)
        else:  # it begins anew
            provenance.check(manifest(steps=2), source, results, planned(2, lr), runs)


@pytest.mark.parametrize("content", ["", "[1]", "null"])
def test_damaged_facts_of_a_run_are_named(tmp_path, content):
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    (run,) = planned(1)
    make_run(runs / run.name, (2, {"actor/entropy": 0.5}))
    (runs / run.name / "made_with.json").write_text(content)
    with pytest.raises(ValueError, match=r"runs/dapo-seed1/made_with.json: "):
        provenance.check(manifest(steps=2), "abc", results, [run], runs)


def test_what_a_run_is_made_with_is_there_before_it_starts(tmp_path):
    results = Results(tmp_path / "results")
    folder = tmp_path / "runs"
    (run,) = planned(1)
    program = "import json, pathlib, sys; folder = pathlib.Path('runs', 'dapo-seed1'); "
    program += "sys.exit(json.loads((folder / 'made_with.json').read_text())['code'])"
    scale = Scale(0, 1, seconds_apart=0)
    started = Schedule(
        [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {program}"],
        scale,
        folder,
        lambda begun: results.begin(begun, folder, code=7),
    )
    assert [code for _, code, _ in started.finished([run])] == [7]
