"""Figures and numbers under benchmarks/results are those of the metrics beside them."""

import gzip
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from gtpo_verl.report import write_report
from gtpo_verl.report.contents import Contents
from gtpo_verl.report.runs import label
from gtpo_verl.report.summary import to_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
FINGERPRINT = re.compile(rb"values-sha256:[0-9a-f]{64}")
LOGS = "*.jsonl.gz"


def published_sets():
    return sorted({path.parent for name in (LOGS, "report") for path in RESULTS.glob(f"*/{name}")})


def fingerprint(path):
    found = FINGERPRINT.search(path.read_bytes())
    return found and found[0].decode()


def faults(folder):
    """What of a set's `report` is not what its logs give."""
    published = sorted((folder / "report").glob("*"))
    numbers = folder / "report/report.json"
    contents = Contents.of([folder], json.loads(numbers.read_text()).get("sources", ()) if numbers.exists() else ())
    marks = contents.fingerprints()
    wanted = ["curves.svg", *(["differences.svg"] if contents.compared else []), "report.json"]
    found = [f"{name} is missing" for name in wanted if folder / "report" / name not in published]
    for path in published:
        if path.name == "report.json":
            numbers = json.loads(json.dumps(to_json(contents.runs, contents.comparison, contents.sources)))
            found += [f"report.json: {where}" for where in differing(json.loads(path.read_text()), numbers)]
        elif fingerprint(path) != marks.get(path.stem, "nothing"):
            found.append(f"{path.name} was drawn from other values")
    return found


def differing(old, new, where=""):
    """Where two reports' numbers differ; ends of bootstrap intervals only by more than other random numbers make."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return [one for key in old for one in differing(old[key], new[key], f"{where}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [one for index in range(len(old)) for one in differing(old[index], new[index], f"{where}.{index}")]
    if isinstance(old, float) and isinstance(new, float):
        resampled = where.startswith(".differences") and where.endswith((".low", ".high"))
        return [] if new == pytest.approx(old, rel=0.05 if resampled else 1e-6, abs=1e-9) else [where]
    return [] if old == new else [where]


def test_every_published_set_is_what_its_metrics_give():
    for folder in published_sets():
        assert faults(folder) == [], f"`gtpo-verl report {folder} --output {folder}/report [--sources ...]` renews it"


def test_figures_of_the_documentation_are_among_them():
    known = {fingerprint(path) for folder in published_sets() for path in (folder / "report").glob("*.svg")}
    drawn = {path: fingerprint(path) for path in (ROOT / "docs").rglob("*.svg")}
    assert [path for path, mark in drawn.items() if mark is not None and mark not in known] == []


# What the columns of a table of docs/results.md show of report.json.
COLUMNS = {
    "smollm2": [
        ("finals", "mean@32", ("mean", "low", "high")),
        ("differences", "mean@32", ("mean", "low", "high")),
        ("finals", "best@32", ("mean",)),
        ("finals", "best@16", ("mean",)),
        ("finals", "maj@32", ("mean",)),
        ("finals", "mean@32, reasoning_gym/simple_equations", ("mean",)),
        ("finals", "entropy", ("mean",)),
        ("finals", "length", ("mean",)),
    ],
    "arithmetic": [
        ("finals", "mean@8", ("mean", "low", "high")),
        ("differences", "mean@8", ("mean", "low", "high")),
        ("differences", "mean@8", ("p_holm",)),
        ("differences", "mean@8", ("differs",)),
        ("finals", "entropy", ("mean",)),
        ("finals", "length", ("mean",)),
    ],
}
PARTS = ("arithmetic_signs", "arithmetic_blame", "arithmetic_variants")
COLUMNS |= dict.fromkeys(PARTS, COLUMNS["arithmetic"])


@pytest.mark.parametrize("name", COLUMNS)
def test_the_tables_of_the_results_are_the_reports_numbers(name):
    numbers = json.loads((RESULTS / name / "report/report.json").read_text())
    parts = re.split(r"\n##+ ", (ROOT / "docs/results.md").read_text())
    section = next(part for part in parts if f"/{name}/" in part)
    rows = [[cell.strip("* ") for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:2] == "| "]
    algorithms = {label(one["algorithm"]): one["algorithm"] for one in numbers["finals"]}
    found = {cells[0].partition(",")[0]: cells for cells in rows if cells[0].partition(",")[0] in algorithms}
    assert set(found) == set(algorithms)
    for title, (head, *cells) in found.items():
        assert len(cells) == len(COLUMNS[name])
        for cell, (kind, measure, keys) in zip(cells, COLUMNS[name], strict=True):
            wanted = {"algorithm": algorithms[title], "measure": measure}
            shown = [one for one in numbers[kind] if wanted.items() <= one.items()]
            if not shown:
                assert (title, cell) == ("DAPO", "")
                continue
            values = [shown[0][key] for key in keys if shown[0][key] is not None]  # too few pairs for an interval
            written = [cell] if keys == ("differs",) else re.findall(r"[-+]?\d+(?:\.\d+)?", cell)
            assert written == [as_written(*pair) for pair in zip(values, written, strict=True)], (title, measure)
            # A row says where it is of fewer seeds than were started.
            started = sum(run["algorithm"] == algorithms[title] for run in numbers["runs"])
            assert kind == "differences" or (shown[0]["seeds"] < started) == ("seeds" in head)


def as_written(value, text):
    """A value with as many decimals, and the sign, that a text has."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:{'+' if text[0] == '+' else ''}.{len(text.partition('.')[2])}f}"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A published set as it should be, of random runs."""
    folder = tmp_path_factory.mktemp("published") / "small"
    folder.mkdir()
    record = {}
    for algorithm in ("dapo", "gtpo_v1"):
        for seed in range(1, 7):
            lines = [
                {
                    "step": step,
                    "data": {"actor/entropy": seed / 10 + step, "timing_s/step": 3.0, "critic/score/mean": 0.5},
                }
                for step in range(1, 5)
            ]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"{algorithm}-seed{seed}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
            record[f"{algorithm}-seed{seed}"] = {"steps": 4}
    (folder / "runs.json").write_text(json.dumps(record))
    # As `gtpo-verl report FOLDER --output FOLDER/report` does.
    write_report([folder], folder / "report", console=Console(file=io.StringIO()))
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "small"))


def found_after(folder, change):
    change()
    return faults(folder)


def test_a_set_that_matches_has_no_fault(folder):
    assert found_after(folder, lambda: None) == []


def test_other_metrics_than_those_drawn_are_found(folder):
    log = folder / "gtpo_v1-seed3.jsonl.gz"

    def change():
        text = gzip.decompress(log.read_bytes()).replace(b'"actor/entropy": 4.3', b'"actor/entropy": 4.31')
        log.write_bytes(gzip.compress(text))

    found = found_after(folder, change)
    assert [fault for fault in found if "drawn" in fault] == [
        f"{name} was drawn from other values"
        for name in ("curves.png", "curves.svg", "differences.png", "differences.svg", "report.html")
    ]
    assert any(fault.startswith("report.json: .finals") for fault in found)


def test_a_run_that_is_left_out_is_found(folder):
    assert found_after(folder, (folder / "dapo-seed1.jsonl.gz").unlink)


def test_a_step_that_a_run_was_to_make_is_found(folder):
    record = folder / "runs.json"
    found = found_after(folder, lambda: record.write_text(record.read_text().replace('"steps": 4', '"steps": 5')))
    assert "report.json: .runs.0.ended_early" in found


def test_numbers_that_were_changed_by_hand_are_found(folder):
    path = folder / "report/report.json"

    def change():
        numbers = json.loads(path.read_text())
        numbers["differences"][0]["mean"] += 0.001
        path.write_text(json.dumps(numbers))

    assert found_after(folder, change) == ["report.json: .differences.0.mean"]


def test_figures_without_their_origin_and_missing_ones_are_found(folder):
    report = folder / "report"

    def change():
        (report / "curves.svg").unlink()
        (report / "diagnostics.svg").write_text("<svg/>")
        (report / "best.png").write_bytes(b"")

    assert found_after(folder, change) == [
        "curves.svg is missing",
        "best.png was drawn from other values",
        "diagnostics.svg was drawn from other values",
    ]


def test_logs_without_a_report_are_found(folder):
    assert found_after(folder, lambda: shutil.rmtree(folder / "report")) == [
        "curves.svg is missing",
        "differences.svg is missing",
        "report.json is missing",
    ]
