"""The report as a whole: figures, tables, files."""

import io
import json
import os

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from gtpo_verl.report import figure, measures, write_report
from gtpo_verl.report.contents import Contents
from gtpo_verl.report.metrics_log import MetricsError
from gtpo_verl.report.runs import read_runs
from gtpo_verl.report.summary import Summary, TextTable, show


def run_lines(files, gain, seed, last=12):
    lines = [files.validation(0, mean=0.4, **{"best@4": 0.5, "best@8": 0.6})]
    lines += [
        files.training(step, reward=0.4 + gain * step, entropy=0.2 + seed / 100, **{"timing_s/step": 3.0})
        for step in range(1, last + 1)
    ]
    end = files.validation(12, mean=0.5 + gain + seed / 100, **{"best@4": 0.7, "best@8": 0.8})
    return [*lines, end] if last == 12 else lines


@pytest.fixture
def runs(files, tmp_path):
    return [
        files.write_run(tmp_path / f"{algorithm}-seed{seed}", *run_lines(files, gain, seed), planned=12)
        for algorithm, gain in (("dapo", 0.01), ("gtpo_v1", 0.02))
        for seed in (1, 2, 3)
    ]


@pytest.fixture
def cut_off(files, tmp_path, runs):
    """A run of the second algorithm that was killed at step 8 of 12."""
    return files.write_run(tmp_path / "gtpo_v1-seed4", *run_lines(files, 0.02, 4, last=8), planned=12)


def drawn(places, title="Title"):
    found = read_runs(places)
    return figure.draw(found, measures.curves(found.logs), title)


def lines(ax, kind):
    return {line.get_gid().split("/")[1]: line for line in ax.lines if line.get_gid().endswith(f"/{kind}")}


def report(places, output):
    console = Console(record=True, width=80, file=io.StringIO())
    return write_report(places, output, console=console).parent, console.export_text()


def test_panels_have_titles_axes_units_and_both_algorithms(runs):
    shown = drawn(runs)
    assert [ax.get_title() for ax in shown.axes] == [
        "Policy entropy",
        "Response length",
        "Training reward",
        "Validation accuracy, mean of 8",
        "Validation accuracy, best of 8",
        "Validation accuracy, best of 4",
    ]
    for ax in shown.axes:
        assert ax.get_ylabel()
        assert ax.get_xlabel() == "training step"
        assert [one.get_label() for one in ax.lines] == ["DAPO", "GTPO v1"]
        assert len({one.get_linestyle() for one in ax.lines}) == len({one.get_color() for one in ax.lines}) == 2
        assert len(ax.collections) == 2
    assert [text.get_text() for text in shown.legends[0].get_texts()] == ["DAPO", "GTPO v1"]
    assert "mean over 3 seeds, band: its 95 % interval" in shown.get_suptitle()


def test_curves_show_the_logged_values(runs):
    entropy, _, reward, mean, best, _ = drawn(runs).axes
    assert entropy.lines[0].get_ydata() == pytest.approx([0.22] * 12)
    assert reward.lines[1].get_xdata() == pytest.approx(range(1, 13))
    assert reward.lines[1].get_ydata() == pytest.approx([0.4 + 0.02 * step for step in range(1, 13)])
    assert mean.lines[1].get_ydata() == pytest.approx([0.4, 0.54])
    assert list(best.lines[0].get_xdata()) == [0, 12]
    assert best.lines[0].get_ydata() == pytest.approx([0.6, 0.8])


def test_the_sources_of_the_accuracies_are_said_and_must_be_there(runs, tmp_path):
    source = measures.validated_sources(read_runs(runs).logs)[0]
    console = Console(record=True, width=200, file=io.StringIO())
    folder = write_report(runs, tmp_path / "report", console=console, sources=[source, source]).parent
    assert f"means over {source}." in console.export_text()
    assert json.loads((folder / "report.json").read_text())["sources"] == [source]
    with pytest.raises(MetricsError, match=f"no run was validated on sorts; there are {source}"):
        write_report(runs, tmp_path / "other", sources=[source, "sorts"])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("k", "validated", "words"),
    [
        (8, "dapo", "not validated on sorts: gtpo_v1-seed1, gtpo_v1-seed2, gtpo_v1-seed3$"),
        (4, "", "no k of which all runs have mean@k of gtpo_arithmetic, sorts"),
    ],
    ids=["some runs have one", "no common k"],
)
def test_sources_without_a_mean_are_refused(files, runs, tmp_path, k, validated, words):
    for run in runs:
        if run.name.startswith(validated):
            more = files.validation(0, source="sorts", **{f"best@{k}": 0.5})
            (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes() + more)
    with pytest.raises(MetricsError, match=words):
        write_report(runs, tmp_path / "report", sources=["gtpo_arithmetic", "sorts"])
    assert not (tmp_path / "report").exists()


def test_one_seed_has_no_band(runs):
    shown = drawn([runs[0], runs[3]])
    assert not any(ax.collections for ax in shown.axes)
    assert shown.get_suptitle() == "Title"


def test_a_run_that_ended_early_is_marked_where_it_ended(runs, cut_off):
    shown = drawn([*runs, cut_off])
    entropy = shown.axes[0]
    assert lines(entropy, "ended").keys() == {"gtpo_v1"}
    assert lines(entropy, "ended")["gtpo_v1"].get_xydata() == pytest.approx(np.array([[8, 0.24]]))
    # To step 8 the mean is over four seeds; from there on it is a paler one, over three.
    assert np.isfinite(lines(entropy, "mean")["gtpo_v1"].get_ydata()).tolist() == [True] * 8 + [False] * 4
    fewer = lines(entropy, "fewer")["gtpo_v1"]
    assert np.isfinite(fewer.get_ydata()).tolist() == [False] * 7 + [True] * 5
    assert fewer.get_alpha() < 1
    assert "cross: a run that ended early" in shown.get_suptitle()
    assert lines(entropy, "fewer").keys() == {"gtpo_v1"}


def test_the_axis_holds_every_seed_and_not_the_band(runs):
    low, high = drawn(runs).axes[0].get_ylim()
    assert 0.19 < low < 0.21
    assert 0.23 < high < 0.25


# Twice a subscript, which matplotlib's formulas refuse; and longer than there is room for.
ODD = "a$_b_c$" + "x" * 100


@pytest.fixture
def two_methods(files, tmp_path):
    """Eight seeds of the first method, three of the second, which differ from DAPO by seed."""
    gains = {"dapo": dict.fromkeys(range(8), 0.0)}
    gains |= {"gtpo_v1": {seed: 0.01 * seed for seed in range(8)}, ODD: {1: -0.03, 2: 0.0, 3: 0.03}}
    for algorithm, of_seeds in gains.items():
        for seed, gain in of_seeds.items():
            lines = run_lines(files, gain, seed)
            files.write_run(tmp_path / f"runs/{algorithm}-seed{seed}", *lines, planned=12)
    return Contents.of([tmp_path / "runs"])


def test_differences_show_each_seed_their_mean_and_the_interval(two_methods, tmp_path):
    shown = figure.draw_differences(
        two_methods.comparison, two_methods.compared, list(two_methods.runs.groups), "Title $1"
    )
    assert [ax.get_title() for ax in shown.axes] == [
        "Validation accuracy, mean of 8",
        "Validation accuracy, best of 8",
        "Validation accuracy, best of 4",
        "Training reward",
        "Policy entropy",
        "Response length",
    ]
    mean = shown.axes[0]
    for row in (mean, shown.axes[3]):
        assert [text.get_text() for text in row.get_yticklabels()] == ["a$_b_c$xxxxxxxx…xxxxxxxxxxxxxx", "GTPO v1"]
    assert mean.get_ylim()[0] > mean.get_ylim()[1]
    dots = {name: line.get_xydata() for name, line in differences(mean, "seeds").items()}
    assert dots["gtpo_v1"] == pytest.approx(np.array([[0.01 * seed, 1] for seed in range(8)]), abs=1e-9)
    assert dots[ODD] == pytest.approx(np.array([[-0.03, 0], [0, 0], [0.03, 0]]), abs=1e-9)
    assert [line.get_xdata()[0] for line in differences(mean, "mean").values()] == pytest.approx([0, 0.035], abs=1e-9)
    # Three pairs have no interval.
    (interval,) = differences(mean, "interval").values()
    found = two_methods.comparison.differences
    compared = next(one for one in found if (one.measure, one.algorithm) == ("mean@8", "gtpo_v1"))
    assert list(interval.get_xdata()) == [compared.low, compared.high]
    said = "minus DAPO at step 12; dots: seeds; marker: their mean; line: its 95 % interval, where there are 6 or more"
    assert shown.get_suptitle().endswith(said)
    figure.save(shown, tmp_path, "differences", "description")


def differences(ax, kind):
    """By algorithm; the first line of a panel is that of no difference."""
    found = [(line.get_gid().split("/"), line) for line in ax.lines[1:]]
    return {algorithm: line for (_, algorithm, of), line in found if of == kind}


def test_what_no_interval_or_not_the_end_is_said_of(files, tmp_path):
    for algorithm, seed in (("dapo", 1), ("dapo", 2), ("gtpo_v1", 1), ("gtpo_v1", 2), ("gtpo_v2", 3)):
        lines = run_lines(files, 0.01, seed, last=8)
        files.write_run(tmp_path / f"runs/{algorithm}-seed{seed}", *lines, planned=12)
    contents = Contents.of([tmp_path / "runs"])
    said = figure.differences_text(contents.comparison, contents.compared)
    assert said == "minus DAPO at step 8 of 12; dots: seeds; marker: their mean"
    # No row for what has no pair.
    assert figure.compared_algorithms(contents.comparison, contents.compared) == ["gtpo_v1"]


@pytest.mark.parametrize("kept", [("gtpo_v1",), ("dapo",), ("dapo-seed1", "gtpo_v1-seed1")])
def test_without_pairs_there_are_no_differences_nor_those_of_an_earlier_report(runs, tmp_path, kept):
    report(runs, tmp_path / "report")
    folder, shown = report([run for run in runs if run.name.startswith(kept)], tmp_path / "report")
    assert "Minus" not in shown
    assert not (folder / "differences.svg").exists()
    assert "<h2>Differences</h2>" not in (folder / "report.html").read_text()


def test_what_was_not_logged_is_said(files, tmp_path):
    run = files.write_run(tmp_path / "dapo", files.training(1))
    shown = drawn([run]).axes
    assert [[text.get_text() for text in ax.texts] for ax in shown[:4]] == [[], [], [], ["not logged"]]


def test_files(runs, tmp_path):
    folder, _ = report(runs, tmp_path / "deep" / "report")
    assert sorted(path.name for path in folder.iterdir()) == [
        "curves.png",
        "curves.svg",
        "diagnostics.png",
        "diagnostics.svg",
        "differences.png",
        "differences.svg",
        "report.html",
        "report.json",
    ]
    assert imread(folder / "curves.png").shape[1] == 1760
    assert (folder / "curves.svg").read_text().count("<svg") == 1


def test_the_same_runs_give_the_same_files(runs, tmp_path):
    first, second = (report(runs, tmp_path / name)[0] for name in "ab")
    for name in ("curves.svg", "curves.png", "differences.svg", "report.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize(
    "name", ["curves.png", "curves.svg", "diagnostics.png", "differences.svg", "report.json", "report.html"]
)
def test_a_file_that_cannot_be_written_stays_as_it_was(runs, tmp_path, name):
    report(runs[:5], tmp_path / "out")
    before = (tmp_path / "out" / name).read_bytes()
    (tmp_path / "out" / f"{name}.{os.getpid()}.part").mkdir()
    with pytest.raises(OSError, match="out"):
        report(runs, tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == before


def test_numbers(runs, cut_off, tmp_path):
    folder, _ = report([*runs, cut_off], tmp_path / "report")
    numbers = json.loads((folder / "report.json").read_text())
    assert numbers["step"] == 12
    assert [one["run"] for one in numbers["runs"] if one["ended_early"]] == ["gtpo_v1-seed4"]
    final = next(one for one in numbers["finals"] if (one["measure"], one["algorithm"]) == ("reward", "gtpo_v1"))
    assert (final["seeds"], final["start"], final["mean"]) == (3, pytest.approx(0.46), pytest.approx(0.6))
    difference = next(one for one in numbers["differences"] if one["measure"] == "mean@8")
    assert difference["mean"] == pytest.approx(0.01)
    assert (difference["pairs"], difference["low"], difference["differs"]) == (3, None, None)
    assert difference["by_seed"] == pytest.approx({"1": 0.01, "2": 0.01, "3": 0.01})


def test_the_terminal_has_the_tables_and_what_ended_early(runs, cut_off, tmp_path):
    _, shown = report([*runs, cut_off], tmp_path / "report")
    assert "1 of 7 ended early or still run: gtpo_v1-seed4 at step 8 of 12." in " ".join(shown.split())
    rows = [line.split() for line in shown.splitlines()]
    assert ["reward", "GTPO", "v1", "0.460", "0.600", "0.600", "to", "0.600", "3", "of", "4"] in rows
    assert ["mean@8", "GTPO", "v1", "+0.010", "-", "3", "-", "-", "-"] in rows
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_narrow_terminal_breaks_names_and_no_number():
    numbers = ["-0.314", "-0.534 to -0.119", "8 x 64", "0.008", "0.016", "yes"]
    columns = ["measure", "algorithm", "difference", "95 % interval", "pairs", "p", "Holm", "differs"]
    names = ["mean@32, reasoning_gym/basic_arithmetic", "GRPO-S v2 sign guard " + "x" * 100]
    console = Console(record=True, width=80, file=io.StringIO())
    show(Summary([], [TextTable("Title", columns, [[*names, *numbers]], [])], {}), console)
    shown = console.export_text()
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(" ".join(numbers) in " ".join(line.split()) for line in lines)
    assert shown.count("x") - shown.count("x 64") == 100
    assert all(column in shown for column in columns[2:])


def test_an_unfinished_set_is_no_result(files, tmp_path):
    for seed in (1, 2):
        files.write_run(tmp_path / f"runs/dapo-seed{seed}", *run_lines(files, 0.01, seed, last=8), planned=12)
    _, shown = report([tmp_path / "runs"], tmp_path / "report")
    assert "No run has reached step 12: the tables are of step 8" in " ".join(shown.split())


def test_runs_that_were_to_end_before_the_others_are_said_to_be_in_no_table(files, tmp_path):
    for seed, last in ((1, 12), (2, 8)):
        files.write_run(tmp_path / f"runs/dapo-seed{seed}", *run_lines(files, 0.01, seed, last=last), planned=last)
    _, shown = report([tmp_path / "runs"], tmp_path / "report")
    assert "In no table, as they were to end before step 12: dapo-seed2." in " ".join(shown.split())


def test_a_cut_off_line_is_said(files, tmp_path):
    run = files.write_run(tmp_path / "dapo", files.training(1), files.training(2), files.training(3)[:-5])
    folder, _ = report([run], tmp_path / "report")
    assert "its metrics are cut off" in (folder / "report.html").read_text()


def test_a_single_run_is_enough(files, tmp_path, runs):
    report(runs, tmp_path / "report")  # an earlier one, of which no figure stays that this one does not draw
    folder, shown = report([files.write_run(tmp_path / "dapo", files.training(1))], tmp_path / "report")
    assert "Minus" not in shown
    assert not (folder / "diagnostics.svg").exists()
    assert "<h2>Diagnostics</h2>" not in (folder / "report.html").read_text()


def test_hundreds_of_runs(files, tmp_path):
    for algorithm in range(12):
        for seed in range(25):
            lines = [files.training(step, entropy=seed / 100 + step) for step in range(1, 6)]
            files.write_run(tmp_path / f"runs/algorithm{algorithm}-seed{seed}", *lines)
    folder, shown = report([tmp_path / "runs"], tmp_path / "report")
    assert shown.count("25 of 25") == 12 * 3
    assert (folder / "report.html").stat().st_size < 5e6
