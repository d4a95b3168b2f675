"""The preflight's table: red what stops a run, yellow what may, grey what cannot be known from here."""

from collections.abc import Sequence

from gtpo_verl.preflight.findings import Finding, Status
from gtpo_verl.runtime.tables import console

_STYLES = {Status.OK: "", Status.WARN: "yellow", Status.FAIL: "bold red", Status.UNKNOWN: "bright_black"}


def print_table(findings: Sequence[Finding]) -> None:
    """Prints one row a finding, then how many there are of each status, to standard output."""
    from rich.markup import escape
    from rich.table import Table

    output = console()
    table = Table("where", "what", "")
    table.add_column("detail", overflow="fold")  # no path is cut
    table.add_column("change", overflow="fold")
    for finding in findings:
        cells = (finding.where, finding.what, finding.status.value, finding.detail, finding.key)
        table.add_row(*(escape(cell) for cell in cells), style=_STYLES[finding.status])
    output.print(table)
    counts = {status: sum(finding.status is status for finding in findings) for status in Status}
    output.print(", ".join(f"{count} {status.value}" for status, count in counts.items()))
