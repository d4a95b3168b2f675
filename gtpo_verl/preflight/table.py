"""The preflight's table: red what stops a run, yellow what may, grey what cannot be known from here."""

import os
from collections.abc import Sequence

from gtpo_verl.preflight.findings import Finding, Status

_STYLES = {Status.OK: "", Status.WARN: "yellow", Status.FAIL: "bold red", Status.UNKNOWN: "bright_black"}
_LOG_WIDTH = 160  # characters, where there is no terminal and COLUMNS says nothing


def print_table(findings: Sequence[Finding]) -> None:
    """Prints one row a finding, then how many there are of each status, to standard output."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=_LOG_WIDTH)
    table = Table("where", "what", "")
    table.add_column("detail", overflow="fold")  # no path is cut
    table.add_column("change", overflow="fold")
    for finding in findings:
        cells = (finding.where, finding.what, finding.status.value, finding.detail, finding.key)
        table.add_row(*(escape(cell) for cell in cells), style=_STYLES[finding.status])
    console.print(table)
    counts = {status: sum(finding.status is status for finding in findings) for status in Status}
    console.print(", ".join(f"{count} {status.value}" for status, count in counts.items()))
