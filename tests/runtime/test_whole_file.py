"""Files that appear when they are whole."""

import pytest

from gtpo_verl.runtime.whole_file import whole_file


def test_appears_at_the_end(tmp_path):
    path = tmp_path / "a.json"
    with whole_file(path) as part:
        part.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


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
