"""What would fail on a cluster minutes or hours after a start, found before it: `gtpo-verl preflight`."""

from gtpo_verl.preflight.findings import Finding, Status

__all__ = ["Finding", "Status"]
