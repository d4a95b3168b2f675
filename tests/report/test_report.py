"""The report as a whole: figure, summary, files."""

import io
import json

import pytest
from matplotlib.image import imread
from rich.console import Console

from gtpo_verl.report import figure, write_report
from gtpo_verl.report.runs import read_runs
from gtpo_verl.report.summary import Change


@pytest.fixture
def runs(files, tmp_path):
    folders = []
    for algorithm, gain in (("dapo", 0.01), ("gtpo_v1", 0.02)):
        for seed in (1, 2, 3):
            lines = [files.validation(0, **{"best@4": 0.5, "best@8": 0.6})]
            lines += [files.training(step, reward=0.4 + gain * step, entropy=0.2 + seed / 100) for step in range(1, 13)]
            lines += [files.validation(12, **{"best@4": 0.7, "best@8": 0.8})]
            folders.append(files.write_run(tmp_path / f"{algorithm}-seed{seed}", *lines))
    return folders


def test_panels_have_titles_axes_units_and_both_algorithms(runs):
    drawn = figure.draw(read_runs(runs), "Title")
    assert [ax.get_title() for ax in drawn.axes] == [
        "Policy entropy",
        "Response length",
        "Training reward",
        "Validation accuracy, best of 8",
    ]
    for ax in drawn.axes:
        assert ax.get_ylabel()
        assert [one.get_label() for one in ax.lines] == ["DAPO", "GTPO v1"]
        assert len({one.get_linestyle() for one in ax.lines}) == len({one.get_color() for one in ax.lines}) == 2
        assert len(ax.collections) == 2
    assert [ax.get_xlabel() for ax in drawn.axes[2:]] == ["training step"] * 2
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["DAPO", "GTPO v1"]
    assert "3 seeds" in drawn.get_suptitle()


def test_curves_show_the_logged_values(runs):
    entropy, _, reward, validation = figure.draw(read_runs(runs), "").axes
    assert entropy.lines[0].get_ydata() == pytest.approx([0.22] * 12)
    assert reward.lines[1].get_xdata() == pytest.approx(range(1, 13))
    assert reward.lines[1].get_ydata() == pytest.approx([0.4 + 0.02 * step for step in range(1, 13)])
    assert list(validation.lines[0].get_xdata()) == [0, 12]
    assert validation.lines[0].get_ydata() == pytest.approx([0.6, 0.8])


def test_one_seed_has_no_band(runs):
    drawn = figure.draw(read_runs([runs[0], runs[3]]), "Title")
    assert not any(ax.collections for ax in drawn.axes)
    assert drawn.get_suptitle() == "Title"


def test_what_was_not_logged_is_said(files, tmp_path):
    run = files.write_run(tmp_path / "dapo", files.training(1))
    ax = figure.draw(read_runs([run]), "").axes[3]
    assert [text.get_text() for text in ax.texts] == ["not logged"]


def test_files_and_summary(runs, tmp_path):
    console = Console(record=True, width=80, file=io.StringIO())
    png = write_report(runs, tmp_path / "deep" / "report", console=console)
    assert sorted(path.name for path in png.parent.iterdir()) == ["curves.png", "curves.svg", "summary.json"]
    assert imread(png).shape[1] == 1600
    assert (png.parent / "curves.svg").read_text().count("<svg") == 1
    summary = json.loads((png.parent / "summary.json").read_text())
    assert [(one["run"], one["steps"]) for one in summary[:2]] == [("dapo-seed1", 12), ("dapo-seed2", 12)]
    assert summary[0]["reward"] == pytest.approx({"start": 0.43, "end": 0.5, "window": 5})
    assert summary[0]["best_of_k"] == {"start": 0.6, "end": 0.8, "window": 1}
    shown = console.export_text()
    assert "gtpo_v1-seed3" in shown
    assert "best@8" in shown
    assert "0.43→0.50" in shown


def test_a_cut_off_line_is_said_in_the_table(files, tmp_path):
    run = files.write_run(tmp_path / "dapo", files.training(1), files.training(2), files.training(3)[:-5])
    console = Console(record=True, width=80, file=io.StringIO())
    write_report([run], tmp_path / "report", console=console)
    shown = console.export_text()
    assert "2*" in shown
    assert "cut off" in shown


@pytest.mark.parametrize(
    ("values", "change"),
    [
        ({}, None),
        ({1: 3.0}, None),
        ({1: 3.0, 2: 5.0}, Change(3.0, 5.0, 1)),
        ({1: 1.0, 2: 3.0, 3: 9.0, 4: 5.0, 5: 7.0}, Change(2.0, 6.0, 2)),
        ({step: float(step) for step in range(20)}, Change(2.0, 17.0, 5)),
    ],
)
def test_change_compares_windows_that_do_not_overlap(values, change):
    assert Change.of(values, 5) == change
