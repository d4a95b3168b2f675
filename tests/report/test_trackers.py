"""Metrics as trackers keep them give the same curves as verl's own file."""

import pandas
import pytest

from gtpo_verl.report.metrics_log import MetricsError
from gtpo_verl.report.trackers import read_events, read_wandb_export

BEST = "val-core/reasoning_gym/chain_sum/acc/best@8/mean"


def tensorboard(folder, monkeypatch, *steps):
    """One start of a run that logs through verl's own adapter."""
    monkeypatch.setenv("TENSORBOARD_DIR", str(folder))
    from verl.utils.tracking import _TensorboardAdapter

    logger = _TensorboardAdapter("project", "experiment")
    for step, data in steps:
        logger.log(data, step)
    logger.finish()


def test_tensorboard_keeps_verls_names_and_values(tmp_path, monkeypatch):
    tensorboard(tmp_path, monkeypatch, (0, {BEST: 0.25}), (1, {"actor/entropy": 0.5, BEST: float("nan")}))
    log = read_events(tmp_path)
    assert log.steps == {0: {BEST: 0.25}, 1: {"actor/entropy": 0.5}}


def test_after_a_resume_the_later_file_counts(tmp_path, monkeypatch):
    tensorboard(tmp_path, monkeypatch, *((step, {"a": step}) for step in range(1, 10)))
    tensorboard(tmp_path, monkeypatch, *((step, {"a": step + 0.5}) for step in range(5, 8)))
    assert read_events(tmp_path).series("a") == {1: 1, 2: 2, 3: 3, 4: 4, 5: 5.5, 6: 6.5, 7: 7.5}


def test_events_of_one_time_are_all_the_runs(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:  # as a converter writes them
        for step, value in ((1, 10), (2, 20), (3, 30), (2, 21)):
            writer.add_scalar("a", value, step, walltime=1.7e9)
    assert read_events(tmp_path).series("a") == {1: 10, 2: 21}


def test_a_cut_off_event_file_counts_as_far_as_it_goes(tmp_path, monkeypatch):
    tensorboard(tmp_path, monkeypatch, *((step, {"a": step}) for step in range(1, 10)))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    assert list(read_events(tmp_path).steps) == list(range(1, 9))


def history(step=(1, 2), **columns):
    """As `wandb.Api().run(...).scan_history()` gives it: a row a step, `_` before what is wandb's own."""
    return pandas.DataFrame({"_step": step, "_runtime": [9.5, 19.5], "_timestamp": [1.7e9, 1.7e9], **columns})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_export_of_wandb(tmp_path, ending):
    table = history(**{"actor/entropy": [0.5, 0.25], BEST: [None, 0.75], "note": ["a", "b"]})
    path = tmp_path / f"dapo-seed1.{ending}"
    table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
    assert read_wandb_export(path).steps == {1: {"actor/entropy": 0.5}, 2: {"actor/entropy": 0.25, BEST: 0.75}}


def test_infinities_and_lists_of_wandb_are_left_out(tmp_path):
    path = tmp_path / "dapo.parquet"
    history(a=[1.0, float("inf")], b=[[1, 2], [3]], c=[{"x": 1}, {"x": 2}]).to_parquet(path)
    assert read_wandb_export(path).steps == {1: {"a": 1.0}, 2: {}}
    csv = tmp_path / "dapo.csv"
    csv.write_text('_step,a,b\n1,Infinity,"[1, 2]"\n2,NaN,3\n')
    assert read_wandb_export(csv).steps == {1: {}, 2: {"b": 3.0}}


def test_rows_of_one_step_are_merged(tmp_path):
    path = tmp_path / "dapo.csv"
    history(step=(1, 1), a=[1.0, None], b=[None, 2.0]).to_csv(path, index=False)
    assert read_wandb_export(path).steps == {1: {"a": 1.0, "b": 2.0}}


def test_what_is_no_history_is_named(tmp_path):
    chart = tmp_path / "chart.csv"
    chart.write_text('"Step","dapo-seed1 - actor/entropy"\n1,0.5\n')
    with pytest.raises(MetricsError, match=r"chart\.csv: no column _step, so not the history of a wandb run"):
        read_wandb_export(chart)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(MetricsError, match=r"broken\.parquet: cannot be read as parquet"):
        read_wandb_export(broken)
