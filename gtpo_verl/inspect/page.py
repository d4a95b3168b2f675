"""Steps as one HTML page that needs nothing else: values in 8 bits, drawn by the page's own script where they are seen.

The template holds the script and the style. Everything that a model or a user wrote stands in blocks of JSON, which the
script puts on the page as text; a content security policy lets no other script run, and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gtpo_verl.algorithms import group_advantages
from gtpo_verl.inspect.responses import (
    ADVANTAGES,
    DAPO,
    DIFFERENCE,
    ENTROPY,
    LOG_PROB,
    ROLLOUT_LOG_PROB,
    SHAPED,
    Response,
    Step,
)
from gtpo_verl.runtime.whole_file import whole_file

# The levels that a value is rounded to, from the least of its response to the largest; the one beyond them is "none".
LEVELS = 255
NONE = 255
# The largest page that is made where no steps were asked for by number.
MAX_BYTES = 150e6

LABELS = {
    ADVANTAGES: "advantage",
    DAPO: "DAPO's advantage",
    SHAPED: "shaped reward",
    ENTROPY: "entropy (nats)",
    LOG_PROB: "log-probability (nats)",
    DIFFERENCE: "log-probability, actor minus rollout (nats)",
}
# Coloured around 0; the others around the mean of their step.
_SIGNED = (ADVANTAGES, DAPO, SHAPED, DIFFERENCE)
# Share of tokens whose colour is not the darkest.
_WITHIN = 0.98


@dataclass(frozen=True)
class Page:
    """A page, ready to be saved; Jupyter shows it below the cell that returns it."""

    html: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, which appears when it is whole.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        with whole_file(path) as part:
            part.write_text(self.html, encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        # A frame of its own: neither the notebook's style nor its scripts meet the page's.
        return (
            '<iframe sandbox="allow-scripts" width="100%" height="720" style="border: 1px solid #ccc" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )


@dataclass(frozen=True)
class Encoded:
    """A step as the page holds it, but for the vocabulary's numbers.

    Attributes:
        step: with `dapo` and `difference` among the values of its responses.
        rows: for each response of each group the ranges and levels of its quantities.
    """

    step: Step
    rows: Sequence[Sequence[Mapping[str, tuple[list[float], NDArray[np.uint8]]]]]

    @cached_property
    def size(self) -> float:
        """Bytes in the page, roughly: two for a token, one for each value that is not the same all along."""
        levels = sum(len(levels) for group in self.rows for row in group for _, levels in row.values())
        return 4 / 3 * (2 * sum(len(response.tokens) for response in self.step.responses) + levels)


def encode(step: Step) -> Encoded:
    """Add what is made for the page, and round every value to 8 bits of the range of its response."""
    step = complete(step)
    rows = [
        [
            {name: quantised(response.values[name], response.mask) for name in LABELS if name in response.values}
            for response in group
        ]
        for group in step.groups()
    ]
    return Encoded(step, rows)


def complete(step: Step) -> Step:
    """Add the advantages of the same responses under DAPO, and the difference between actor and rollout."""
    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(one.uid for one in step.responses))}
    scores = torch.tensor([one.score for one in step.responses], dtype=torch.float64)
    group = torch.tensor([numbers[one.uid] for one in step.responses], dtype=torch.int64)
    responses = []
    for response, advantage in zip(step.responses, group_advantages(scores, group).tolist(), strict=True):
        values = {**response.values, DAPO: np.full(len(response.tokens), advantage, np.float32)}
        if LOG_PROB in values and ROLLOUT_LOG_PROB in values:
            values[DIFFERENCE] = values[LOG_PROB] - values[ROLLOUT_LOG_PROB]
        responses.append(replace(response, values=values))
    return replace(step, responses=responses)


def quantised(values: NDArray[np.float32], mask: NDArray[np.bool_]) -> tuple[list[float], NDArray[np.uint8]]:
    """Round the values of a response to even levels between its least and its largest one.

    Args:
        values: (n,); those that are not finite, or where `mask` is false, are none.
        mask: (n,).
    Returns:
        The range: `[]` if there are no values, `[value]` if all are the same, else `[least, largest]`; and (n,) levels
        from 0 to 254, 255 for none. A value that all n have needs no levels: there are 0 then. The error is at most
        (largest - least) / 508.
    """
    shown = mask & np.isfinite(values)
    if not shown.any():
        return [], np.zeros(0, np.uint8)
    exact = values.astype(np.float64)
    low, high = float(exact[shown].min()), float(exact[shown].max())
    if low == high and shown.all():
        return [low], np.zeros(0, np.uint8)
    levels = np.full(len(values), NONE, np.uint8)
    levels[shown] = np.rint((exact[shown] - low) / ((high - low) or 1) * (LEVELS - 1))
    return [low, high], levels


def build(steps: Sequence[Encoded], title: str, omitted: Sequence[int] = ()) -> Page:
    """Make the page.

    Args:
        steps: in the order in which they are walked through; the page opens with the last one.
        title: text.
        omitted: steps that found no place, which the page names.
    """
    vocabulary: dict[str, int] = {}
    numbers = [np.array([vocabulary.setdefault(text, len(vocabulary)) for text in one.step.pieces]) for one in steps]
    wide = len(vocabulary) > 2**16
    blocks, about = [], []
    for index, (one, of_pieces) in enumerate(zip(steps, numbers, strict=True)):
        lines, groups = [], []
        for group, rows in zip(one.step.groups(), one.rows, strict=True):
            for response, row in zip(group, rows, strict=True):
                tokens = of_pieces[response.tokens].astype("<u4" if wide else "<u2")
                lines.append(b"".join([tokens.tobytes(), *(levels.tobytes() for _, levels in row.values())]))
            responses = [_about(*pair) for pair in zip(group, rows, strict=True)]
            groups.append({"uid": group[0].uid, "prompt": group[0].prompt, "responses": responses})
        data = "\n".join(base64.b64encode(line).decode() for line in lines)
        blocks.append(f'<script type="text/plain" id="data-{index}">{data}</script>')
        about.append(
            {
                "step": one.step.step,
                "algorithm": one.step.algorithm,
                "settings": one.step.settings,
                "groups": groups,
            }
        )
    page = {
        "title": title,
        "quantities": _scales([one.step for one in steps]),
        "wide": wide,
        "steps": about,
        "omitted": list(omitted),
    }
    blocks += [_json("page", page), _json("pieces", list(vocabulary))]
    template = files("gtpo_verl.inspect").joinpath("page.html").read_text("utf-8")
    return Page(template.replace("<!-- policy -->", _policy(template)).replace("<!-- data -->", "\n".join(blocks)))


def _about(response: Response, row: Mapping[str, tuple[list[float], NDArray[np.uint8]]]) -> dict[str, Any]:
    means = {}
    for name in row:
        shown = response.values[name][response.mask].astype(np.float64)
        shown = shown[np.isfinite(shown)]
        means[name] = float(shown.mean()) if len(shown) else None
    return {
        "right": bool(response.right),
        "score": float(response.score),
        "penalty": response.length_penalty,
        "length": len(response.tokens),
        "trained": int(response.mask.sum()),
        "means": means,
        "ranges": {name: span for name, (span, _) in row.items()},
    }


def _scales(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The quantities that there are, each with the middle of its colours and how far below and above they reach.

    They are the same in all steps, and those of the two advantages are the same, so that they compare.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, label in LABELS.items():
        shown = [
            one.values[name][one.mask & np.isfinite(one.values[name])]
            for step in steps
            for one in step.responses
            if name in one.values
        ]
        if not shown:
            continue
        values = np.concatenate(shown)
        if not len(values):
            centre = below = above = 0.0
        elif name in _SIGNED:
            centre, below = 0.0, float(np.quantile(np.abs(values), _WITHIN))
            above = below
        else:
            centre = float(values.mean(dtype=np.float64))
            low, high = np.quantile(values, [(1 - _WITHIN) / 2, (1 + _WITHIN) / 2])
            below, above = centre - float(low), float(high) - centre
        found[name] = {"key": name, "label": label, "centre": centre, "below": below, "above": above}
    advantages = [found[name] for name in (ADVANTAGES, DAPO) if name in found]
    for one in advantages:
        one["below"] = one["above"] = max(other["above"] for other in advantages)
    for one in found.values():  # a mean may lie beyond nearly all values, or there is but one
        one["below"], one["above"] = (reach if reach > 0 else 1.0 for reach in (one["below"], one["above"]))
    return list(found.values())


def _policy(template: str) -> str:
    """Allows the template's own style and script, by their digests, and nothing else."""
    digests = {}
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", template, re.DOTALL)
        digests[element] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digests['style']}'; script-src 'sha256-{digests['script']}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _json(identity: str, value: Any) -> str:
    # All in ASCII and without "<": nothing in it can end the block, or begin a comment.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{identity}">{text}</script>'
