"""Text on its way out: the terminal gets what its encoding has, files are UTF-8."""

import io
import os
import sys

_TERMINAL = "GTPO_VERL_TERMINAL_ENCODING"


def open_standard_streams() -> None:
    """Puts the null device where the shell has closed input, output or errors (`2>&-`): the next file that is opened
    would take its place, and be written into."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_WRONLY if descriptor else os.O_RDONLY)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def end_output() -> str | None:
    """Writes what standard output still holds. Returns why that cannot be; nothing is tried again then."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"standard output: {error.strerror}"
    return None


def hold_to_terminal() -> None:
    """Characters that the terminal's encoding lacks are replaced by `?`, instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def start_over_in_utf8() -> None:
    """Where the locale is none of UTF-8, starts this program again in UTF-8 mode: names of files are UTF-8 then,
    and libraries open files of their own. The terminal keeps its encoding. Else does nothing."""
    if sys.flags.utf8_mode or sys.getfilesystemencoding() == "utf-8":
        return
    environment = {**os.environ, "PYTHONUTF8": "1", "PYTHONIOENCODING": f"{sys.stdout.encoding}:replace"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def child_variables() -> dict[str, str]:
    """Environment variables for a child that writes files as UTF-8 whatever the locale, and knows what the terminal
    takes (`terminal_encoding`)."""
    return {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:replace", _TERMINAL: sys.stderr.encoding or "utf-8"}


def terminal_encoding() -> str:
    """Of the terminal that a process started with `child_variables` has inherited."""
    return os.environ.get(_TERMINAL) or sys.stderr.encoding or "utf-8"
