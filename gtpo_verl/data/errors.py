"""Errors of this package besides `gtpo_verl.tasks.data_files.DataFileError`, and how foreign ones are quoted."""

from __future__ import annotations


class DownloadError(RuntimeError):
    """A file cannot be downloaded; the message names it and says why, in one line."""


class RequestError(ValueError):
    """The command asks for something that does not exist or does not go together."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
