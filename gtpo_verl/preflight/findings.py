"""One line of the preflight's table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """What a line says of the job: fine, may work, will fail, cannot be known from here."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """What was looked at, where, and what came out.

    Attributes:
        what: the subject, e.g. `free disk`.
        status: FAIL makes the preflight's exit code 1; UNKNOWN is what cannot be known from here.
        detail: one sentence with the numbers.
        where: `driver`, or the name of a node.
        key: the configuration key, variable or file to change; empty where there is nothing to change.
    """

    what: str
    status: Status
    detail: str
    where: str = "driver"
    key: str = ""

    def __str__(self) -> str:
        change = f" (change {self.key})" if self.key else ""
        return f"{self.where}: {self.what}: {self.detail}{change}"


def refused(findings: Iterable[Finding]) -> list[Finding]:
    """Those that make a run pointless."""
    return [finding for finding in findings if finding.status is Status.FAIL]


def from_refusal(what: str, check: Callable[[], object], success: str, key: str = "") -> Finding:
    """A check that raises ValueError, OSError or RuntimeError, as a finding."""
    try:
        check()
    except (ValueError, OSError, RuntimeError) as error:
        return Finding(what, Status.FAIL, str(error), key=key)
    return Finding(what, Status.OK, success)
