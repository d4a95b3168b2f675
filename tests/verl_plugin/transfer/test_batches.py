"""What a batch in TransferQueue must be."""

import pytest

from gtpo_verl.verl_plugin.transfer import check_single_row_sessions


def test_several_rows_a_session_are_refused() -> None:
    check_single_row_sessions(["a_0_0", "a_1_0", "b_0_0"])
    with pytest.raises(ValueError, match=r"session a_1"):
        check_single_row_sessions(["a_0_0", "a_1_0", "a_1_1"])
