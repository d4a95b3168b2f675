"""The figure of the README: a right and a wrong response, each token coloured by its advantage, beside DAPO's.

    python benchmarks/credit_figure.py benchmarks/results/credit_tiny/step_1.parquet "8-6+3-1+2" 4 3 docs/credit.svg

The numbers are those that the page gives to the responses of the prompt. docs/inspect.md says where the file is from.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from gtpo_verl.inspect import dump
from gtpo_verl.inspect.page import complete
from gtpo_verl.inspect.responses import ADVANTAGES, DAPO, Response, Step

# Those of the page.
BLUE, WHITE, ORANGE = np.array([66, 140, 210]), np.array([255, 255, 255]), np.array([235, 130, 40])
CELL, LINE, LEFT, GAP = 20, 28, 16, 40
MINUS = "\N{MINUS SIGN}"
NAMES = {"gtpo_v2": "GTPO v2"}


def draw(step: Step, prompt: str, numbers: Sequence[int]) -> str:
    """Return the figure as SVG.

    Args:
        prompt: text of one.
        numbers: of the responses to it, from 1.

    Raises:
        ValueError: no prompt contains the text, or it has no such response.
    """
    groups = [one for one in complete(step).groups() if prompt in one[0].prompt]
    if not groups or not all(1 <= number <= len(groups[0]) for number in numbers):
        raise ValueError(f"no prompt with {prompt!r} in it, or no response {' or '.join(map(str, numbers))} to it")
    responses = [groups[0][number - 1] for number in numbers]
    shown = [one.values[name][one.mask] for one in responses for name in (ADVANTAGES, DAPO)]
    limit = float(np.abs(np.concatenate(shown)).max())
    width = max(len(line) for one in responses for line in _lines(step, one))
    second = LEFT + max(width * CELL, 320) + GAP
    whole = second + max(width * CELL, 320) + LEFT

    parts: list[str] = []
    y = 30
    question = groups[0][0].prompt.strip().splitlines()
    parts.append(_text(LEFT, y, "The problem: " + next(line for line in question if prompt in line), "bold"))
    for one in responses:
        y += 36
        verdict = "✓ right" if one.right else "✗ wrong"
        for x, name, label in ((LEFT, ADVANTAGES, NAMES.get(step.algorithm, step.algorithm)), (second, DAPO, "DAPO")):
            mean = float(one.values[name][one.mask].mean())
            parts.append(_text(x, y, f"{verdict}, {label}: mean advantage {mean:+.2f}".replace("-", MINUS)))
        y += 10
        for line in _lines(step, one):
            for place, t in enumerate(line):
                for x, name in ((LEFT, ADVANTAGES), (second, DAPO)):
                    text = step.pieces[one.tokens[t]].replace("\n", "↵").replace("<|im_end|>", "■")
                    value = float(one.values[name][t]) if one.mask[t] else 0.0
                    parts.append(_cell(x + place * CELL, y, text, value / limit))
            y += LINE
    y += 22
    steps = 60
    for index in range(steps):
        shade = -1 + 2 * (index + 0.5) / steps
        parts.append(f'<rect x="{LEFT + 70 + index * 4}" y="{y}" width="4.5" height="14" fill="{_colour(shade)}"/>')
    parts.append(_text(LEFT, y + 12, f"{MINUS}{limit:.1f}"))
    parts.append(_text(LEFT + 70 + steps * 4 + 10, y + 12, f"+{limit:.1f}, advantage; white is 0; ■ is the end"))
    height = y + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" width="{whole}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="14">\n'
        f'<rect width="{whole}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _lines(step: Step, response: Response) -> Iterator[list[int]]:
    """The tokens of each line of a response's text."""
    line: list[int] = []
    for t, token in enumerate(response.tokens):
        line.append(t)
        if step.pieces[token].endswith("\n"):
            yield line
            line = []
    if line:
        yield line


def _cell(x: int, y: int, text: str, part: float) -> str:
    box = f'<rect x="{x}" y="{y}" width="{CELL}" height="{LINE - 4}" fill="{_colour(part)}" stroke="#ddd"/>'
    style = 'text-anchor="middle" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"'
    return f'{box}<text x="{x + CELL / 2}" y="{y + 16}" {style}>{escape(text)}</text>'


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(text)}</text>'


def _colour(part: float) -> str:
    end = BLUE if part > 0 else ORANGE
    return "#{:02x}{:02x}{:02x}".format(*np.rint(WHITE + (end - WHITE) * min(1.0, abs(part))).astype(int))


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dump", type=Path)
    parser.add_argument("prompt", help="text of the prompt")
    parser.add_argument("numbers", type=int, nargs="+", metavar="number", help="of a response to it, from 1")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    options.output.write_text(draw(dump.read(options.dump), options.prompt, options.numbers), encoding="utf-8")


if __name__ == "__main__":
    main()
