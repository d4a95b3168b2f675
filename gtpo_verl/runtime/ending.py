"""Ends a process at once. Where PyTorch, verl and vLLM are imported, Python takes two to three seconds of a core to
free what they have made, object by object, for nothing."""

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def without_teardown() -> Iterator[None]:
    """Around a whole program, before its imports: it ends as any would (threads are waited for, `atexit` is served, the
    exit code is the same), and then is gone."""
    code = 1

    def end() -> None:
        logging.shutdown()  # the one thing that may have been registered before this, and so comes after it
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    atexit.register(end)
    try:
        yield
        code = 0
    except SystemExit as error:
        code = 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else 1
        raise
