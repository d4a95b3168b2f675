"""From a run to its page: which steps and groups are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from gtpo_verl.inspect import dump
from gtpo_verl.inspect.page import MAX_BYTES, Encoded, build, encode
from gtpo_verl.inspect.responses import InspectError, Step


@dataclass(frozen=True)
class Shown:
    """What was written.

    Attributes:
        path: of the page.
        steps: that it shows.
        omitted: those that would have made it too large.
    """

    path: Path
    steps: list[int]
    omitted: list[int]


def inspect(run: Path, output: Path, steps: Sequence[int] = (), prompt: str | None = None, groups: int = 8) -> Shown:
    """Draw what a run dumped.

    Args:
        run: its folder, or one of dumps.
        output: the page to write.
        steps: their numbers; none: all of the dump, or the newest that make a page of up to 150 MB.
        prompt: show the groups whose prompt contains this text, in any case of letters, and no steps without one.
        groups: the most of a step.

    Raises:
        InspectError: no such run, no dump in it, no such step or prompt, or a damaged file; it says which there are.
        OSError: the page cannot be written.
    """
    if groups < 1:
        raise InspectError(f"--groups {groups}: at least 1 is needed")
    if not output.absolute().parent.is_dir():
        raise InspectError(f"{output}: there is no folder {output.parent}")
    folder = dump.find(run)
    found = dump.steps(folder)
    for step in steps:
        if step not in found:
            raise InspectError(f"{folder}: no step {step}; there are {', '.join(map(str, found))}")
    wanted = sorted(set(steps) or found)
    encoded: list[Encoded] = []
    size, read = 0.0, 0
    for step in reversed(wanted):
        chosen = _groups(dump.read(found[step]), prompt, groups)
        if chosen.responses:
            one = encode(chosen)
            size += one.size
            if encoded and not steps and size > MAX_BYTES:
                break
            encoded.insert(0, one)
        read += 1
    if not encoded:
        of = f"of steps {', '.join(map(str, wanted))}"
        empty = f"{folder}: nothing to draw: the dumps {of} have no rows"
        raise InspectError(empty if prompt is None else f"{folder}: no prompt {of} contains {prompt!r}")
    omitted = wanted[: len(wanted) - read]
    path = build(encoded, run.resolve().name, omitted).save(output)
    return Shown(path, [one.step.step for one in encoded], omitted)


def _groups(step: Step, prompt: str | None, most: int) -> Step:
    chosen = [one for one in step.groups() if prompt is None or prompt.casefold() in one[0].prompt.casefold()]
    return replace(step, responses=list(chain.from_iterable(chosen[:most])))
