"""Answers per second of the reward for mathematical problems.

    python benchmarks/rewards.py [--answers 8192] [--threads 32] [--hung 4]

Groups of 16 responses share a problem, as in training: of each group about half repeat the ground truth in some
spelling, the rest are wrong or have no answer. A third of the problems has an integer as its answer, which needs no
algebra; the others need the worker processes. ``--hung`` answers hang the parser, each until its limit.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from gtpo_verl.rewards.math import compute_score
from gtpo_verl.rewards.pool import Limits

GROUP = 16
FILLER = "Let us look at this step by step. We add the terms and simplify, which gives the next line.\n" * 60
HUNG = r"\binom{100000000}{50000000}"


def problem(random_: random.Random) -> tuple[str, list[str], list[str]]:
    """A ground truth, right answers, and wrong ones."""
    a, b, c = random_.randint(2, 99), random_.randint(2, 99), random_.randint(2, 99)
    kinds: list[tuple[str, list[str], list[str]]] = [
        (str(a * b), [f"{a * b}", f"${a * b}$", rf"\boxed{{{a * b}}}"], [str(a * b + 1), str(a + b), f"{a}.5"]),
        (str(a * b * 1000), [f"{a * b * 1000:,}", f"{a * b * 1000}"], [f"{a * b * 1000 + 1:,}", "0"]),
        (rf"\frac{{{a}}}{{{a + b}}}", [rf"\dfrac{{{a}}}{{{a + b}}}", f"{a}/{a + b}"], [rf"\frac{{{a}}}{{{b}}}", "1"]),
        (
            rf"{a}\sqrt{{{b}}}",
            [rf"\sqrt{{{b}}} \cdot {a}", rf"{a} \sqrt {{{b}}}"],
            [rf"{b}\sqrt{{{a}}}", rf"\sqrt{{{c}}}"],
        ),
        (rf"({a}, {b})", [f"({a},{b})", rf"\left({a}, {b}\right)"], [f"({b + 1}, {a})", f"({a}, {b}, {c})"]),
        (rf"[{a}, {a + b})", [f"[{a},{a + b})"], [f"({a}, {a + b})", f"[{a}, {a + c + 100})"]),
        (rf"\{{{a}, {a + b}\}}", [f"{a + b}, {a}", rf"\{{{a + b}, {a}\}}"], [rf"\{{{a}\}}", f"{a}"]),
        (f"x^2+{a}x+{b}", [f"{b}+{a}x+x^2", f"x^2 + {a}*x + {b}"], [f"x^2-{a}x+{b}", f"x^2+{b}x+{a + 1}"]),
        (rf"\frac{{{a}\pi}}{{{b}}}", [rf"\frac{{{a}}}{{{b}}}\pi", rf"{a}\pi/{b}"], [rf"\frac{{{a}}}{{{b}}}", r"\pi"]),
    ]
    return random_.choice(kinds[:2] if random_.random() < 1 / 3 else kinds[2:])


def jobs(count: int, hung: int, seed: int = 0) -> list[tuple[str, str]]:
    random_ = random.Random(seed)
    made: list[tuple[str, str]] = []
    while len(made) < count:
        truth, right, wrong = problem(random_)
        for _ in range(GROUP):
            dice = random_.random()
            answer = random_.choice(right) if dice < 0.5 else random_.choice(wrong)
            made.append((FILLER + (f"Answer: ${answer}$" if dice < 0.9 else "and so on"), truth))
    made = made[:count]
    for place in random_.sample(range(count), hung):
        made[place] = (FILLER + f"Answer: {HUNG}", made[place][1])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=min(32, (os.cpu_count() or 1) + 4))
    parser.add_argument("--hung", type=int, default=0)
    arguments = parser.parse_args()
    work = jobs(arguments.answers, arguments.hung)
    started = time.perf_counter()
    with ThreadPoolExecutor(arguments.threads) as executor:
        results = list(executor.map(lambda job: compute_score("benchmark", *job), work))
    seconds = time.perf_counter() - started
    print(f"{len(work)} answers in {seconds:.1f} s, {len(work) / seconds:.0f} per second, starting workers included")
    print(f"{Limits.from_environment().processes} workers, {arguments.threads} threads, {os.cpu_count()} cores")
    print(f"{len(set(work))} of the answers are distinct")
    print(dict(Counter(str(result["failure"]) for result in results)))


if __name__ == "__main__":
    main()
