"""How wide a table may be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LOG_WIDTH = 160  # characters, where there is no terminal and COLUMNS says nothing


def console() -> Console:
    """A console on standard output that is as wide as COLUMNS says, else as the terminal, else wide enough for a log.

    Rich by itself takes 80 for a log, and for whatever it holds for a dumb terminal (FORCE_COLOR and TERM=dumb, as in
    some CI), COLUMNS or not. Nor does it see COLUMNS once the library datasets has mapped in several processes, which
    puts another object in the place of `os.environ`.
    """
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return Console(width=int(columns), height=25)  # by the width alone it would not go
    terminal = Console()
    return terminal if terminal.is_terminal and not terminal.is_dumb_terminal else Console(width=_LOG_WIDTH, height=25)
