"""What a worker process may not do: evaluate text, start programs, write files, use the network, grow without bound.

One patch of a library, for this process only: sympy's ``sympify`` and ``parse_expr`` evaluate text as Python
(``sympy/parsing/sympy_parser.py``, ``eval_expr``), and even ``sympy.Number("13")``, which the LaTeX parser calls for
every number, comes there. Here they read plain numbers and refuse everything else. An audit hook (PEP 578) forbids what
would do harm if some text were evaluated all the same.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from typing import Any, NoReturn

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.kill",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.truncate",
    "os.putenv",
    "subprocess.Popen",
    "socket.",
    "ctypes.dlopen",
    "shutil.",
    "pty.spawn",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Forbidden(PermissionError):
    """Something in a worker process tried what workers may not do."""


def contain(memory_bytes: int) -> None:
    """Contains this process, for good. Call it once everything is imported.

    Args:
        memory_bytes: address space that may be added to what is in use now.
    """
    import sympy.parsing.sympy_parser as parser

    parser.eval_expr = _evaluate_nothing  # for those that imported parse_expr by name
    parser.parse_expr = _read_number
    sys.addaudithook(_audit)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", encoding="ascii") as statm:
        in_use = int(statm.read().split()[0]) * _PAGE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = in_use + memory_bytes
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def end_after(seconds: float) -> None:
    """Lets the kernel end this process after ``seconds`` of wall-clock time; 0 takes that back.

    Only the kernel can: one multiplication of huge numbers holds the interpreter's lock for minutes, so no thread and
    no Python signal handler would run.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _read_number(text: str, *_: Any, **__: Any) -> Any:
    import sympy

    if re.fullmatch(r"\s*\d+\s*", text, re.ASCII):
        return sympy.Integer(int(text))
    # sympy makes its tables of integrals at their first use, and writes 3/2 as text in them.
    if (ratio := re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text, re.ASCII)) and int(ratio[2]):
        return sympy.Rational(int(ratio[1]), int(ratio[2]))
    if re.fullmatch(r"\s*(?:\d+\.\d*|\.\d+)\s*", text, re.ASCII):
        return sympy.Float(text.strip())
    raise Forbidden("text is not evaluated as Python")


def _evaluate_nothing(*_: Any, **__: Any) -> NoReturn:
    raise Forbidden("text is not evaluated as Python")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        flags = arguments[2] if len(arguments) > 2 else 0
        if isinstance(flags, int) and flags & _WRITING:
            raise Forbidden("a worker writes no files")
    elif event.startswith(_FORBIDDEN):
        raise Forbidden(event)
