"""Files that appear when they are whole."""

import os

import pytest

from gtpo_verl.runtime.whole_file import whole_file


def test_appears_at_the_end(tmp_path):
    path = tmp_path / "a.json"
    with whole_file(path) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_write_the_same_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    with whole_file(path) as one:
        one.write_text("half")
        monkeypatch.setattr(os, "getpid", lambda: 7)
        with whole_file(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
        one.write_text("one")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "a.json").symlink_to(tmp_path / "there/a.json")
    with whole_file(tmp_path / "a.json") as part:
        part.write_text("new")
    assert (tmp_path / "a.json").is_symlink()
    assert (tmp_path / "there/a.json").read_text() == "new"


def test_the_error_is_the_first(tmp_path):
    with pytest.raises(ValueError, match="first"), whole_file(tmp_path / "a.json") as part:
        _fail_with_a_folder_in_the_way(part)


def _fail_with_a_folder_in_the_way(part):
    part.mkdir()
    raise ValueError("first")


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_of_an_error_nothing_stays_and_what_was_there_does(tmp_path, error):
    path = tmp_path / "a.json"
    path.write_text("old")

    def write() -> None:
        with whole_file(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
