"""What the terminal says of a run that goes on, and of a validation."""

from pathlib import Path

import pytest

from gtpo_verl.launch.terminal import _differing, _validation

LINE = '{"step": %d, "data": {"val-core/sums/acc/mean@8": %s, "val-aux/sums/reward/mean@8": 0.1}}\n'


def test_a_validation_says_the_scores_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "validation.jsonl"
    path.write_text(LINE % (3, 0.25) + LINE % (5, 0.12345))
    assert _validation(path) == f"step 5 validated: val-core/sums/acc/mean@8 0.1235 ({path})"


@pytest.mark.parametrize("content", [None, "", "{torn"])
def test_a_validation_without_a_line_points_to_the_log(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "validation.jsonl"
    if content is not None:
        path.write_text(content)
    assert _validation(path) == "validated; the log has the scores"


def test_changes_are_listed_up_to_a_number() -> None:
    assert _differing([]) == ""
    few, many = ([f"k{i}: 0 -> 1" for i in range(count)] for count in (2, 11))
    assert _differing(few) == ", with another configuration than before: k0: 0 -> 1, k1: 0 -> 1"
    assert _differing(many).endswith("k7: 0 -> 1, and 3 more")
