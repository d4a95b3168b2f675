"""Worked arithmetic: chains of single digits, solved in visible steps, then ``#### <answer>``.

A problem is a chain such as ``3+5-6+4-1`` whose running totals stay single digits too. A worked solution folds it from
the left, one line per step::

    3+5=8
    8-6+4=6
    6-1=5
    #### 5

How many operands a step takes is free, and a solution may stop showing steps and state the answer: lengths vary.
A step over one operand is easy for a small model, a step over several is short but error-prone, and an answer without
steps is little more than a guess. The token after an operand (``=`` or another sign) and the first of a line are thus
real decisions, the kind of token whose entropy GTPO weighs, and reinforcement learning can improve on them.

Every problem belongs to exactly one split, decided by a hash of its text: splits are disjoint whatever the seed.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

DATA_SOURCE = "gtpo_arithmetic"

# Share of the problem space per split, in percent.
_SPLITS = (("validation", 10), ("probe", 10), ("train", 40), ("warmup", 40))
SPLITS = tuple(name for name, _ in _SPLITS)

_ANSWER = re.compile(r"####[ \t]*([+-]?[0-9]{1,18})(?![0-9])")


@dataclass(frozen=True)
class ArithmeticConfig:
    """What problems look like and how the worked solutions of the warm-up corpus are written.

    Attributes:
        min_terms, max_terms: numbers in a chain, drawn uniformly; both at least 2.
        max_first: the first number is drawn from 1..max_first.
        max_operand: every other number is drawn from 1..max_operand.
        max_value: running totals stay within 0..max_value; at least ``max_first`` and ``max_operand``.
        step_weights: relative frequency of steps over 1, 2, ... operands in worked solutions.
        skip_probability: how often, before each step, a worked solution leaves out all further ones.
    """

    min_terms: int = 3
    max_terms: int = 9
    max_first: int = 9
    max_operand: int = 9
    max_value: int = 9
    step_weights: tuple[float, ...] = (0.7, 0.3)
    skip_probability: float = 0.1

    def __post_init__(self) -> None:
        if not 2 <= self.min_terms <= self.max_terms:
            raise ValueError(f"2 <= min_terms <= max_terms is needed, got {self.min_terms} and {self.max_terms}")
        if min(self.max_first, self.max_operand) < 1 or max(self.max_first, self.max_operand) > self.max_value:
            raise ValueError("max_first and max_operand must lie in 1..max_value")
        if not self.step_weights or min(self.step_weights) < 0 or sum(self.step_weights) <= 0:
            raise ValueError(f"step_weights must be non-negative and not all 0, got {self.step_weights}")
        if not 0 <= self.skip_probability <= 1:
            raise ValueError(f"skip_probability must lie in 0..1, got {self.skip_probability}")


@dataclass(frozen=True)
class Problem:
    """A chain of signed integers, the first one positive; ``answer`` is their sum."""

    terms: tuple[int, ...]

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def text(self) -> str:
        return _chain(self.terms)

    @property
    def prompt(self) -> str:
        return f"{self.text}=?"

    @property
    def split(self) -> str:
        """The split that the problem belongs to, in every data set and for every seed."""
        bucket = int.from_bytes(hashlib.blake2b(self.text.encode(), digest_size=8).digest(), "big") % 100
        for name, share in _SPLITS:
            bucket -= share
            if bucket < 0:
                return name
        raise AssertionError("the shares of the splits do not sum to 100")


def _chain(terms: Sequence[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])


def draw_problem(rng: random.Random, config: ArithmeticConfig) -> Problem:
    """Draw one problem, of any split."""
    terms = [rng.randint(1, config.max_first)]
    total = terms[0]
    for _ in range(rng.randint(config.min_terms, config.max_terms) - 1):
        lowest, highest = max(-config.max_operand, -total), min(config.max_operand, config.max_value - total)
        operand = rng.choice([value for value in range(lowest, highest + 1) if value])
        terms.append(operand)
        total += operand
    return Problem(tuple(terms))


def problems(split: str, seed: int, config: ArithmeticConfig) -> Iterator[Problem]:
    """Yield problems of one split without end, in an order fixed by ``seed``; a problem may recur.

    Raises:
        ValueError: ``split`` is unknown.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")
    rng = random.Random(f"{split}/{seed}")
    while True:
        problem = draw_problem(rng, config)
        if problem.split == split:
            yield problem


def distinct_problems(split: str, count: int, seed: int, config: ArithmeticConfig) -> list[Problem]:
    """Return ``count`` different problems of a split.

    Raises:
        ValueError: the split is unknown, or seems to hold fewer than ``count`` problems under this configuration.
    """
    found: dict[Problem, None] = {}
    for drawn, problem in enumerate(problems(split, seed, config)):
        found[problem] = None
        if len(found) >= count:
            break
        if drawn > 20 * count + 1000:
            raise ValueError(f"split {split!r} holds too few different problems: found {len(found)} of {count}")
    return list(found)


def worked_solution(problem: Problem, rng: random.Random, config: ArithmeticConfig) -> str:
    """Write one correct solution, with as many steps as ``config`` and ``rng`` make it show."""
    lines = []
    total, rest = problem.terms[0], list(problem.terms[1:])
    sizes = range(1, len(config.step_weights) + 1)
    while rest and rng.random() >= config.skip_probability:
        size = min(rng.choices(sizes, config.step_weights)[0], len(rest))
        result = total + sum(rest[:size])
        lines.append(f"{_chain([total, *rest[:size]])}={result}")
        total, rest = result, rest[size:]
    return "\n".join([*lines, f"#### {problem.answer}"])


def corpus(seed: int, config: ArithmeticConfig) -> Iterator[tuple[str, str]]:
    """Yield (prompt, worked solution) pairs of the warm-up split without end, in an order fixed by ``seed``."""
    rng = random.Random(f"solutions/{seed}")
    for problem in problems("warmup", seed, config):
        yield problem.prompt, worked_solution(problem, rng, config)


def rows(split: str, count: int, seed: int, config: ArithmeticConfig) -> list[dict[str, Any]]:
    """Return ``count`` rows of a split in the form verl's ``RLHFDataset`` reads, all of different problems."""
    return [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
            "extra_info": {"split": split, "index": index, "terms": len(problem.terms)},
        }
        for index, problem in enumerate(distinct_problems(split, count, seed, config))
    ]


def extract_answer(response: str) -> str | None:
    """Return the integer after the last ``####`` of a response in canonical form (``"-7"``), or None without one.

    An integer of more than 18 digits counts as none: it is never right, and Python refuses to parse the longest ones.
    """
    found = _ANSWER.findall(response)
    return str(int(found[-1])) if found else None
