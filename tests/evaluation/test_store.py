"""Responses on disk: whole rows or none, and never beside rows that were made otherwise."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gtpo_verl.evaluation.store import RESPONSES, SCHEMA, SETTINGS, Store

SETTINGS_OF_ONE = {"model": "a1", "temperature": 1.0, "max_tokens": 64}
WRITER = Path(__file__).with_name("store_process.py")


def row(number: int) -> dict[str, object]:
    """As store_process.py makes it."""
    return {"problem": number // 4, "sample": number % 4, "text": str(number), "tokens": 1, "right": True}


def test_a_writer_that_is_killed_anywhere_loses_nothing_that_it_wrote(tmp_path: Path) -> None:
    generator = random.Random(0)
    written = 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(tmp_path / "one")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        written = int(process.stdout.readline())
        time.sleep(generator.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        written = int(rest[-1]) if rest else written
        found = Store(tmp_path / "one").responses()
        # The last rows may be there without having been said to be.
        assert len(found) in (written, written + 3)
        assert found["text"].to_pylist() == [str(i) for i in range(len(found))]
    store = Store(tmp_path / "one")
    before = store.responses()
    store.compact()
    assert store.responses().equals(before)
    assert sorted(path.name for path in (tmp_path / "one").iterdir() if path.suffix != ".part") == [RESPONSES, SETTINGS]


def test_rows_that_stand_twice_count_once(tmp_path: Path) -> None:
    """As after a kill between the whole file and the deletion of its shards."""
    store = Store(tmp_path)
    store.append([row(2), row(0)])
    store.append([row(1), row(0)])
    assert store.responses()["text"].to_pylist() == ["0", "1", "2"]
    assert store.responses().schema == SCHEMA


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.check(SETTINGS_OF_ONE)
    store.open(SETTINGS_OF_ONE)
    # Nothing was sampled with them yet: other ones may take their place.
    other = {**SETTINGS_OF_ONE, "model": "b2", "max_tokens": 32}
    store.check(other)
    store.open(other)
    store.open(SETTINGS_OF_ONE)
    store.append([row(0)])
    store.check(dict(SETTINGS_OF_ONE))
    with pytest.raises(
        ValueError, match=r"other settings \(max_tokens: 64 -> 32; model: a1 -> b2\); choose another --out"
    ):
        store.check(other)
    store.open(other)  # what stands there stays
    store.check(SETTINGS_OF_ONE)


def test_responses_of_unknown_settings_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([row(0)])
    with pytest.raises(ValueError, match=f"holds responses but no {SETTINGS}"):
        store.check(SETTINGS_OF_ONE)
    (tmp_path / SETTINGS).write_text("{")
    with pytest.raises(ValueError, match=f"{SETTINGS}: not readable"):
        store.check(SETTINGS_OF_ONE)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([row(0)])
    (tmp_path / "shards/000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"000000\.parquet: not readable"):
        store.responses()


@pytest.mark.parametrize("change", [{"right": None}, {"tokens": None}])
def test_verdicts_that_are_missing_are_named(tmp_path: Path, change: dict[str, object]) -> None:
    store = Store(tmp_path)
    store.append([row(0), {**row(1), **change}])
    (column,) = change
    with pytest.raises(ValueError, match=rf"000000\.parquet: not readable \({column}: rows without a value\)"):
        store.responses()


def test_a_byte_that_a_disk_changed_is_noticed(tmp_path: Path) -> None:
    """Of the file of shards and of the whole one, which are compressed differently: no verdict turns."""
    store = Store(tmp_path)
    store.append([row(number) for number in range(64)])
    before = store.responses()
    for path in (tmp_path / "shards/000000.parquet", tmp_path / RESPONSES):
        content, noticed = path.read_bytes(), 0
        for place in range(4, len(content) // 2, 29):
            path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
            try:
                found = store.responses()
            except ValueError as error:
                noticed += str(path) in str(error)
                continue
            assert found.equals(before), place
        assert noticed > 10
        path.write_bytes(content)
        store.compact()
