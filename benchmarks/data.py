"""Time and peak memory of `gtpo-verl data dapo-math-17k` on a file of the published size and shape.

    python benchmarks/data.py [--problems 17917] [--copies 100] [--order copies|shuffled|repeated] [--folder FOLDER]

The texts are random words, about as long as the published ones. ``copies`` repeats the whole list, ``shuffled`` mixes
all rows, ``repeated`` puts the repetitions of a problem side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from gtpo_verl.rewards.prompts import dapo_prompt


def write_file(path: Path, problems: int, copies: int, order: str) -> None:
    random_ = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(random_.choices(letters, k=random_.randint(1, 9))) for _ in range(20_000)]
    texts = [dapo_prompt(" ".join(random_.choices(words, k=random_.randint(20, 90)))) for _ in range(problems)]
    rows = pyarrow.Table.from_pylist(
        [
            {
                "data_source": "math_dapo",
                "prompt": [{"content": text, "role": "user"}],
                "ability": "MATH",
                "reward_model": {"ground_truth": str(random_.randint(0, 999)), "style": "rule-lighteval/MATH_v2"},
                "extra_info": {"index": f"{number:032x}"},
            }
            for number, text in enumerate(texts)
        ]
    )
    places = np.tile(np.arange(problems), copies)
    if order == "shuffled":
        np.random.default_rng(0).shuffle(places)
    elif order == "repeated":
        places.sort()
    with pyarrow.parquet.ParquetWriter(path, rows.schema) as writer:
        for start in range(0, len(places), 1 << 20):  # the row groups of pyarrow's and pandas' own defaults
            part = places[start : start + (1 << 20)]
            writer.write_table(rows.take(pyarrow.array(part)), row_group_size=1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=17_917)
    parser.add_argument("--copies", type=int, default=100)
    parser.add_argument("--order", choices=("copies", "shuffled", "repeated"), default="copies")
    parser.add_argument("--folder", default=None, help="for the file and the output; a temporary one by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder, "dapo-math-17k.parquet")
        # A program's peak begins with what the process that started it had in memory, so this one has to stay small.
        if os.fork() == 0:
            write_file(path, arguments.problems, arguments.copies, arguments.order)
            os._exit(0)
        if os.wait()[1]:
            sys.exit("the file could not be written")
        command = [sys.executable, "-m", "gtpo_verl.cli", "data", "dapo-math-17k", "--from", str(path)]
        started = time.perf_counter()
        pid = os.posix_spawn(sys.executable, [*command, "--output", folder + "/out"], os.environ)
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - started
        if status:
            sys.exit("the command failed")
        counts = json.loads(Path(folder, "out/dapo-math-17k.manifest.json").read_text(encoding="utf-8"))["counts"]
        print(f"{path.stat().st_size / 1e6:.0f} MB, order {arguments.order}: {counts}")
        processor = usage.ru_utime + usage.ru_stime
        print(f"{seconds:.1f} s, {processor:.1f} s of processor time, peak {usage.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
