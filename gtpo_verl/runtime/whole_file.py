"""Files that appear when they are whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Behind the name of a file that is being written; one that stays there is of a process that was killed.
PART = ".part"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The path of a file to write, which takes the place of `path` when the block ends; after an error what was there
    before is there still, and nothing else.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()  # a link stays one
    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")  # two processes may write the same file
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
