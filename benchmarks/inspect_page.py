"""How large the page of `gtpo-verl inspect` is, how fast it opens, and how smoothly it scrolls, in a real Chromium.

    python benchmarks/inspect_page.py [--groups 8] [--size 16] [--length 20000]

A dump of random values is written and drawn: words of a vocabulary of 20,000, of which a few are frequent, as in a
text. The page opens in a headless Chromium without a network. *Open* is from the call to the first drawn tokens;
*frames* are the times between two of them while the text scrolls, 200 of each kind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gtpo_verl.inspect import dump
from gtpo_verl.inspect.command import inspect
from gtpo_verl.inspect.responses import Response, Step

# The driver of the browser is the tests'.
sys.path.append(str(Path(__file__).parents[1] / "tests/report"))

SCROLL = """(async down => {
  const view = document.getElementById("view"), frame = () => new Promise(requestAnimationFrame), times = []
  let before = await frame()
  for (let i = 0; i < 200; i++) {
    view.scrollTop = (view.scrollTop + down) % (view.scrollHeight - view.clientHeight)
    if (i % 20 === 19) view.scrollLeft += 400
    const now = await frame()
    times.push(now - before)
    before = now
  }
  return times
})"""
WORK = """(() => {
  view.scrollTop = 0
  return Array.from({length: 50}, () => {
    view.scrollTop += view.clientHeight * 2 / 3
    const start = performance.now()
    draw()
    return performance.now() - start
  })
})()"""
SEARCH = """(() => {
  document.getElementById("search").value = "word 19"
  const start = performance.now()
  find()
  return [performance.now() - start, hits.length]
})()"""
STEP = "(() => { const start = performance.now(); showGroup(1); return performance.now() - start })()"


def made(groups: int, size: int, length: int) -> Step:
    """Random responses; every other one is right."""
    rng = np.random.default_rng(0)
    pieces = [f" word {number}" if number % 17 else "\n" for number in range(20_000)]
    responses = []
    for row in range(groups * size):
        entropy = rng.exponential(0.4, length).astype(np.float32)
        log_probs = -rng.exponential(0.4, length).astype(np.float32)
        responses.append(
            Response(
                uid=str(row // size),
                prompt=f"Prompt {row // size}",
                right=row % 2 == 0,
                score=float(row % 2 == 0),
                length_penalty=0.0,
                tokens=(rng.zipf(1.3, length) % len(pieces)).astype(np.int32),
                mask=np.ones(length, bool),
                values={
                    "advantages": rng.normal(0, 1, length).astype(np.float32),
                    "shaped_rewards": rng.normal(1, 0.1, length).astype(np.float32),
                    "entropy": entropy,
                    "old_log_probs": log_probs,
                    "rollout_log_probs": log_probs + rng.normal(0, 0.01, length).astype(np.float32),
                },
                ids=rng.integers(0, 150_000, length).astype(np.int32),
            )
        )
    return Step(1, "gtpo_v2", {}, pieces, responses)


def main() -> None:
    """Measure, and print a line each."""
    import browser

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--length", type=int, default=20_000)
    options = parser.parse_args()
    executable = browser.find()
    if executable is None:
        sys.exit(f"this needs Chromium: {browser.INSTALL}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step = made(options.groups, options.size, options.length)
        start = time.perf_counter()
        path = dump.write(step, folder / "tokens", 2**40)
        print(f"dump: {path.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - start:.1f} s")
        start = time.perf_counter()
        page = inspect(folder, folder / "page.html", groups=options.groups).path
        print(f"page: {page.stat().st_size / 1e6:.1f} MB in {time.perf_counter() - start:.1f} s")
        tab = browser.Browser(executable, folder / "home")
        try:
            start = time.perf_counter()
            tab.open(page)
            tab.wait_until("document.querySelectorAll('.row span').length > 100")
            print(f"open: {time.perf_counter() - start:.1f} s")
            for what, down in (("60 pixels", "60"), ("two thirds of a window", "view.clientHeight * 2 / 3")):
                times = np.array(tab.evaluate(f"{SCROLL}({down})"))
                print(f"frames, {what} each: median {np.median(times):.1f} ms, ", end="")
                print(f"95 % below {np.quantile(times, 0.95):.1f} ms, longest {times.max():.1f} ms")
            print(f"the script's own work for two thirds of a window: median {np.median(tab.evaluate(WORK)):.1f} ms")
            drawn = tab.evaluate("document.querySelectorAll('.row span').length")
            print(f"tokens in the document: {drawn}")
            print(f"next prompt: {tab.evaluate(STEP):.0f} ms")
            took, hits = tab.evaluate(SEARCH)
            print(f"first search: {took:.0f} ms, {hits} found")
            heap = tab.evaluate("performance.memory.usedJSHeapSize")
            print(f"heap: {heap / 1e6:.0f} MB; complaints: {tab.complaints}")
        finally:
            tab.close()


if __name__ == "__main__":
    main()
