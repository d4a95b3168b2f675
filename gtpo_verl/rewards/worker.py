"""A process that grades answers, one at a time: JSON lines on standard input and output.

Started by `gtpo_verl.rewards.pool`. It ends when its input ends or its parent is gone, and never later than its time
limit after a request.
"""

from __future__ import annotations

import json
import os
import select
from typing import Any

# The parent kills a worker at the limit; the kernel does when the parent is gone by then.
_GRACE_S = 1.0
_PARENT_CHECK_MS = 2000


def main(parent: int, seconds: float, memory_bytes: int) -> None:
    """Answers requests until the parent is gone.

    Args:
        parent: process id of the parent.
        seconds: limit per request, wall clock.
        memory_bytes: address space a worker may use beyond what its imports need.
    """
    requests = 0
    # The protocol keeps the real standard output; what libraries print goes nowhere.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        from gtpo_verl.rewards import containment, grading
    except Exception as error:
        _reply(replies, {"error": f"{type(error).__name__}: {error}"})
        return
    containment.contain(memory_bytes)
    _reply(replies, {"ready": True})

    buffered = b""
    poll = select.poll()
    poll.register(requests, select.POLLIN | select.POLLHUP)
    while True:
        while b"\n" not in buffered:
            if os.getppid() != parent:
                return
            if not poll.poll(_PARENT_CHECK_MS):
                continue
            chunk = os.read(requests, 1 << 16)
            if not chunk:
                return
            buffered += chunk
        line, _, buffered = buffered.partition(b"\n")
        request = json.loads(line)
        containment.end_after(seconds + _GRACE_S)
        verdict = _grade(grading, request["answer"], request["truth"])
        containment.end_after(0)
        _reply(replies, {"verdict": verdict})
        if verdict == "out_of_memory":
            return  # what is left of the heap is not to be trusted


def _grade(grading: Any, answer: Any, truth: Any) -> str:
    try:
        return str(grading.grade(answer, truth))
    except MemoryError:
        return "out_of_memory"


def _reply(replies: Any, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()
